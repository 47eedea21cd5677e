"""Stores reports of metrics in batches: reports that arrive together and only add a row share one commit.

A commit waits for the disk, which is most of the cost of a report. A thread therefore stores all reports that
arrived during the last commit in one transaction. Those that do more, such as validations, which the search looks at,
share others. Reports are acknowledged only after their commit. The order within a series, the reports of one group of a
trial, is kept, and so is the order of a trial's reports in one call: who follows a trial never sees an epoch's training
before the validation of the last one.
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
from det_keras.master.errors import ApiError, InvalidArgumentError, UnavailableError
from det_keras.master.reports import metrics

logger = logging.getLogger(__name__)

# Larger batches would delay the first report too long.
_MOST_TOGETHER = 64
# Each takes some milliseconds, during which no other writer has its turn.
_MOST_SLOW = 64


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

    @property
    def series(self) -> tuple[int, str]:
        """The reports of one series are stored in their order."""
        return self.report.trial_id, self.report.group


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
        # The future belongs to this loop and is not thread-safe: the batcher's thread only schedules `_answer` on the
        # loop, which sets the result there.
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
        waiting, left = list(calls), _Left()
        for call in calls:
            for index, report in enumerate(call.reports):
                try:
                    metrics.check_report(report)
                    left.items.append(_Item(call, index))
                except InvalidArgumentError as error:
                    left.fail(_Item(call, index), error)
        while waiting:
            if left.items:
                self._store_next(left)
            # Acknowledged only after all commits of the call; it need not wait for the other calls.
            open_calls = {item.call for item in left.items}
            _acknowledge([call for call in waiting if call not in open_calls])
            waiting = [call for call in waiting if call in open_calls]

    def _store_next(self, left: _Left) -> None:
        """Store the reports that only add a row, and some that do more."""
        items = left.take()
        try:
            reports = [item.report for item in items]
            with self._store.adding({Subject("trial", report.trial_id) for report in reports}) as connection:
                stored = metrics.add_quickly(connection, reports, [item.call for item in items])
        except UnavailableError as error:
            # The clients repeat their reports until the database is back.
            for item in items:
                left.fail(item, error)
            return
        except Exception:
            # The whole batch was rolled back. A single report may be the cause, so each is stored on its own.
            logger.exception("%d reports could not be stored together.", len(items))
            self._store_each(left, items)
            return
        slow = [item for item, is_stored in zip(items, stored, strict=True) if not is_stored]
        left.items = slow[_MOST_SLOW:]
        if slow:
            self._store_slow(left, slow[:_MOST_SLOW])

    def _store_slow(self, left: _Left, items: Sequence[_Item]) -> None:
        """Store reports in one transaction; if one of them is refused, each in its own."""
        try:
            with self._store.writing(is_report=True) as tx:
                for item in items:
                    self._report(tx, item.report)
        except Exception:
            self._store_each(left, items)

    def _store_each(self, left: _Left, items: Sequence[_Item]) -> None:
        for item in items:
            if left.is_stopped(item):
                continue
            try:
                with self._store.writing(is_report=True) as tx:
                    self._report(tx, item.report)
            except Exception as error:
                left.fail(item, error)


class _Left:
    """The reports that are not stored yet, in their order.

    When one of them fails without being refused, the client sends it again: those after it in its series fail with it,
    since they must not overtake it.
    """

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self._stopped: dict[tuple[int, str], Exception] = {}

    def take(self) -> list[_Item]:
        """Return the reports that may be stored now, none of which is left."""
        items, self.items = self.items, []
        return [item for item in items if not self.is_stopped(item)]

    def is_stopped(self, item: _Item) -> bool:
        """Return whether a report must not be stored, since one before it failed; note its error."""
        error = self._stopped.get(item.series)
        if error is not None:
            item.call.errors[item.index] = error
        return error is not None

    def fail(self, item: _Item, error: Exception) -> None:
        """Note the error of a report."""
        # Answered to the client's request.
        item.call.errors[item.index] = error
        if not isinstance(error, ApiError) or isinstance(error, UnavailableError):
            self._stopped.setdefault(item.series, error)


def _acknowledge(calls: Sequence[_Call]) -> None:
    for loop in {call.loop for call in calls}:
        loop.call_soon_threadsafe(_answer, [call for call in calls if call.loop is loop])


def _answer(calls: Sequence[_Call]) -> None:
    for call in calls:
        # The future of a client that has disconnected is cancelled.
        if not call.answer.done():
            call.answer.set_result([call.errors.get(index) for index in range(len(call.reports))])
