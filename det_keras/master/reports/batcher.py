"""Stores reports of metrics in batches: reports that arrive together and only add a row share one commit.

A commit waits for the disk, which is most of the cost of a report. A thread therefore stores all reports that
arrived during the last commit in one transaction. A report that does more, such as a validation, gets its own. Reports
are acknowledged only after their commit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from det_keras.master.database.change_feed import Subject
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import UnavailableError
from det_keras.master.reports import metrics

logger = logging.getLogger(__name__)

# Larger batches would delay the first report too long.
_MOST_TOGETHER = 64


@dataclass(eq=False)
class _Waiting:
    """A report, and the request that waits for its acknowledgement."""

    report: metrics.Report
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[None]
    error: Exception | None = None


class ReportBatcher:
    """Stores reports.

    Args:
        store: the database.
        report: stores one report in a transaction, and passes validations to the search.
    """

    def __init__(self, store: Store, report: Callable[[Transaction, metrics.Report], None]) -> None:
        self._store = store
        self._report = report
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="report_batcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Store the reports that have arrived, and end the thread."""
        self._is_closed = True
        self._queue.put(None)
        self._thread.join(timeout=10.0)

    async def take(self, report: metrics.Report) -> None:
        """Store a report; returns after the commit. Storing the same report again changes nothing.

        Raises:
            NotFoundError: the trial does not exist.
            InvalidArgumentError: the report is malformed, of another run, or contradicts an earlier one.
            UnavailableError: the master is stopping.
        """
        metrics.check_report(report)
        if self._is_closed:
            raise UnavailableError("The master is stopping.")
        # The future belongs to this loop and is not thread-safe: the batcher's thread only schedules `_acknowledge` on
        # the loop, which sets the result there.
        loop = asyncio.get_running_loop()
        waiting = _Waiting(report, loop, loop.create_future())
        self._queue.put(waiting)
        await waiting.answer

    def _run(self) -> None:
        is_open = True
        while is_open:
            # `empty` is reliable here: no other thread takes from the queue.
            arrived = [self._queue.get()]
            while len(arrived) < _MOST_TOGETHER and not self._queue.empty():
                arrived.append(self._queue.get())
            is_open = None not in arrived
            self._store_all([waiting for waiting in arrived if waiting is not None])

    def _store_all(self, arrived: Sequence[_Waiting]) -> None:
        left: Sequence[_Waiting] = arrived
        try:
            reports = [waiting.report for waiting in arrived]
            with self._store.adding({Subject("trial", report.trial_id) for report in reports}) as connection:
                stored = metrics.add_quickly(connection, reports)
            left = [waiting for waiting, is_stored in zip(arrived, stored, strict=True) if not is_stored]
        except UnavailableError as error:
            # The clients repeat their reports until the database is back.
            for waiting in arrived:
                waiting.error = error
            left = ()
        except Exception:
            # The whole batch was rolled back. A single report may be the cause, so each is stored on its own.
            logger.exception("%d reports could not be stored together.", len(arrived))
            left = arrived
        for waiting in left:
            self._store_single(waiting)
        # Acknowledge the reports only now, after all commits.
        for loop in {waiting.loop for waiting in arrived}:
            answered = [waiting for waiting in arrived if waiting.loop is loop]
            loop.call_soon_threadsafe(_acknowledge, answered)

    def _store_single(self, waiting: _Waiting) -> None:
        try:
            with self._store.writing() as tx:
                self._report(tx, waiting.report)
        except Exception as error:
            # Raised in the client's request.
            waiting.error = error


def _acknowledge(answered: Sequence[_Waiting]) -> None:
    for waiting in answered:
        # The future of a client that has disconnected is cancelled.
        if waiting.answer.done():
            continue
        if waiting.error is None:
            waiting.answer.set_result(None)
        else:
            waiting.answer.set_exception(waiting.error)
