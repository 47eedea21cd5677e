"""Reports of metrics on their way into the database: those that arrive together share one commit.

A commit waits for the disk, and that is what a report mostly costs. So a thread of its own takes whatever
has arrived meanwhile into one transaction, and acknowledges none before it is certain.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import UnavailableError
from det_keras.master.reports import metrics

__all__ = ["ReportBatcher"]

logger = logging.getLogger(__name__)

# More would make the first of them wait too long.
_MOST_TOGETHER = 64


@dataclass(eq=False)
class _Waiting:
    """A report, and who waits for its acknowledgement."""

    report: metrics.Report
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[None]
    error: Exception | None = None


class ReportBatcher:
    """Stores reports.

    Args:
        store: the database.
        report: stores one report in a transaction, with what follows from it.
    """

    def __init__(self, store: Store, report: Callable[[Transaction, metrics.Report], None]) -> None:
        self._store = store
        self._report = report
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="report_batcher", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Store what has arrived, and end."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(timeout=10.0)

    async def take(self, report: metrics.Report) -> None:
        """Return when a report is stored for certain; it may be sent again.

        Raises:
            NotFoundError: there is no such trial.
            InvalidArgumentError: the report is malformed, of another run, or contradicts an earlier one.
            UnavailableError: the master is stopping.
        """
        metrics.check_report(report)
        if self._is_closed:
            raise UnavailableError("The master is stopping.")
        loop = asyncio.get_running_loop()
        waiting = _Waiting(report, loop, loop.create_future())
        self._queue.put(waiting)
        await waiting.answer

    def _run(self) -> None:
        is_going_on = True
        while is_going_on:
            arrived = [self._queue.get()]
            while len(arrived) < _MOST_TOGETHER and not self._queue.empty():
                arrived.append(self._queue.get())
            is_going_on = None not in arrived
            self._store_all([one for one in arrived if one is not None])

    def _store_all(self, arrived: Sequence[_Waiting]) -> None:
        left: Sequence[_Waiting] = arrived
        try:
            with self._store.adding() as connection:
                left = [one for one in arrived if not metrics.add_quickly(connection, one.report)]
        except Exception:
            # Nothing of it is stored. One of them may be to blame: each gets an answer of its own.
            logger.exception("%d reports could not be stored together.", len(arrived))
            left = arrived
        for one in left:
            self._store_alone(one)
        for loop in {one.loop for one in arrived}:
            answered = [one for one in arrived if one.loop is loop]
            loop.call_soon_threadsafe(_acknowledge, answered)

    def _store_alone(self, waiting: _Waiting) -> None:
        try:
            with self._store.writing() as tx:
                self._report(tx, waiting.report)
        except Exception as error:
            # Whoever reported gets it.
            waiting.error = error


def _acknowledge(answered: Sequence[_Waiting]) -> None:
    for one in answered:
        # One who hung up has cancelled.
        if one.answer.done():
            continue
        if one.error is None:
            one.answer.set_result(None)
        else:
            one.answer.set_exception(one.error)
