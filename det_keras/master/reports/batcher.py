"""Stores reports of metrics in batches: reports that arrive together and only add a row share one commit.

A commit waits for the disk, which is most of the cost of a report. A thread therefore stores all reports that
arrived during the last commit in one transaction, and the validations among them in another. A report that is merged
with an earlier one, or rolls some back, gets its own. Reports are acknowledged only after their commit.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from det_keras.master.database.change_feed import Subject
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, UnavailableError
from det_keras.master.reports import metrics
from det_keras.protocol.metrics import VALIDATION

logger = logging.getLogger(__name__)

# Larger batches would delay the first report too long.
_MOST_TOGETHER = 64
# Each takes some milliseconds, during which no other writer has its turn.
_MOST_VALIDATIONS = 64


@dataclass(eq=False)
class _Call:
    """The reports of a call, and the request that waits for their acknowledgement."""

    reports: Sequence[metrics.Report]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Exception | None]]
    #: Why reports were refused, by index.
    errors: dict[int, Exception] = field(default_factory=dict)


@dataclass(frozen=True)
class _Item:
    """A report of a call."""

    call: _Call
    index: int

    @property
    def report(self) -> metrics.Report:
        return self.call.reports[self.index]


class ReportBatcher:
    """Stores reports.

    Args:
        store: the database.
        report: stores one report in a transaction, and passes validations to the search.
    """

    def __init__(self, store: Store, report: Callable[[Transaction, metrics.Report], None]) -> None:
        self._store = store
        self._report = report
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
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

    async def take(self, reports: Sequence[metrics.Report]) -> list[Exception | None]:
        """Store the reports of a call in their order; returns after the commit.

        Storing the same report again changes nothing.

        Returns:
            For each report why it was not stored, None if it was: NotFoundError if the trial does not exist,
            InvalidArgumentError if it is malformed, of another run, or contradicts an earlier one, UnavailableError if
            the database cannot be used at the moment.

        Raises:
            UnavailableError: the master is stopping.
        """
        if self._is_closed:
            raise UnavailableError("The master is stopping.")
        # The future belongs to this loop and is not thread-safe: the batcher's thread only schedules `_acknowledge` on
        # the loop, which sets the result there.
        loop = asyncio.get_running_loop()
        call = _Call(reports, loop, loop.create_future())
        self._queue.put(call)
        return await call.answer

    def _run(self) -> None:
        is_open = True
        while is_open:
            # `empty` is reliable here: no other thread takes from the queue.
            arrived = [self._queue.get()]
            count = 0
            while count < _MOST_TOGETHER and not self._queue.empty():
                call = self._queue.get()
                arrived.append(call)
                count += len(call.reports) if call else 0
            is_open = None not in arrived
            self._store_calls([call for call in arrived if call is not None])

    def _store_calls(self, calls: Sequence[_Call]) -> None:
        left = []
        for call in calls:
            for index, report in enumerate(call.reports):
                try:
                    metrics.check_report(report)
                    left.append(_Item(call, index))
                except InvalidArgumentError as error:
                    call.errors[index] = error
        while left:
            left = self._store_next(left)
        # Acknowledge the reports only now, after all commits.
        for loop in {call.loop for call in calls}:
            loop.call_soon_threadsafe(_acknowledge, [call for call in calls if call.loop is loop])

    def _store_next(self, items: list[_Item]) -> list[_Item]:
        """Store the reports that only add a row, and the next ones that do more; return the others."""
        try:
            reports = [item.report for item in items]
            with self._store.adding({Subject("trial", report.trial_id) for report in reports}) as connection:
                stored = metrics.add_quickly(connection, reports)
        except UnavailableError as error:
            # The clients repeat their reports until the database is back.
            for item in items:
                item.call.errors[item.index] = error
            return []
        except Exception:
            # The whole batch was rolled back. A single report may be the cause, so each is stored on its own.
            logger.exception("%d reports could not be stored together.", len(items))
            for item in items:
                self._store_together([item])
            return []
        left = [item for item, is_stored in zip(items, stored, strict=True) if not is_stored]
        # A validation may overtake reports of other groups, and they it: only the order within a group has a meaning.
        validations = [item for item in left if item.report.group == VALIDATION]
        others = [item for item in left if item.report.group != VALIDATION]
        later, begun = validations[_MOST_VALIDATIONS:], set()
        self._store_together(validations[:_MOST_VALIDATIONS])
        for item in others:
            series = (item.report.trial_id, item.report.group)
            if series in begun:
                later.append(item)
            else:
                begun.add(series)
                self._store_together([item])
        return later

    def _store_together(self, items: Sequence[_Item]) -> None:
        """Store reports in one transaction; if one is refused, each in its own."""
        try:
            with self._store.writing() as tx:
                for item in items:
                    self._report(tx, item.report)
        except Exception as error:
            if len(items) == 1:
                # Returned to the client's request.
                items[0].call.errors[items[0].index] = error
                return
            for item in items:
                self._store_together([item])


def _acknowledge(calls: Sequence[_Call]) -> None:
    for call in calls:
        # The future of a client that has disconnected is cancelled.
        if not call.answer.done():
            call.answer.set_result([call.errors.get(index) for index in range(len(call.reports))])
