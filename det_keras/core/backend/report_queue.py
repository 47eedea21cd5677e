"""A queue of reports to the master, sent in order, in the background, with retries.

`put` never waits for the master, and never fails if the master is unavailable. Reports keep their order. A report
that the master refuses is logged and dropped, since sending it again would not help. Some masters answer a refusal with
500, as if they had failed: such a report is sent a few times and then dropped too.

A report stays at the head of the queue while it is sent, so an empty queue means that all reports have arrived or were
dropped. It is sent without the lock: `put` never waits for the network.

Reports of metrics that wait one behind another are sent in one call, so a script that reports faster than a call takes
does not wait at its end for as many calls as it made reports.

A forked process has its own queue, which begins empty: the thread and what waits stay in the process that made them.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any

from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.metrics import MOST_TOGETHER

logger = logging.getLogger(__name__)

_REMIND_S = 30.0
# What a Determined 0.38.1 master says of reports that it refuses.
_REFUSALS = ("overwriting existing metric keys", "invalid run id")
# The call is not one of this master.
_UNKNOWN_CALL = (404, 501)
# How often a report is sent to a master that fails at it. The pause doubles each time: with `retry_s` 1, half a minute.
_MOST_FAILURES = 6
# Names of undelivered reports in a message.
_MOST_NAMED = 5
# Values in one call, which bound its length.
_MOST_VALUES = 20_000
# Superseded reports that may wait.
_MOST_SUPERSEDED = 1000

#: Sends the bodies of several reports in one call, and returns the errors of those that were not stored, by index.
SendTogether = Callable[[Sequence[Mapping[str, Any]]], Mapping[int, MasterError | MasterUnavailableError]]


@dataclass(eq=False)
class _Report:
    label: str
    send: Callable[[], object]
    #: What `send` sends, if it may be sent together with others.
    body: Mapping[str, Any] | None = None
    values: int = 0
    #: A newer report took its place.
    is_superseded: bool = False


class ReportQueue:
    """Sends reports from its own thread.

    Args:
        name: name of the thread.
        close_timeout_s: how long `flush` waits for an unavailable master, in seconds.
        retry_s: pause between two attempts while the master is unavailable, in seconds.
        send_together: sends several reports in one call, for a master that takes them; None sends each on its own.
    """

    def __init__(
        self,
        name: str,
        *,
        close_timeout_s: float = 600.0,
        retry_s: float = 1.0,
        send_together: SendTogether | None = None,
    ) -> None:
        self._name = name
        self._close_timeout_s = close_timeout_s
        self._retry_s = retry_s
        self._send_together = send_together
        self._begin()
        _queues.add(self)
        self._start()

    def _begin(self) -> None:
        self._waiting: deque[_Report] = deque()
        # The newest waiting reports that replace others, by label.
        self._replacing: dict[str, _Report] = {}
        self._superseded = 0
        # How many of the first ones are being sent.
        self._in_flight = 0
        self._lost: list[str] = []
        self._changed = threading.Condition()
        self._closing = False
        self._give_up_at = float("inf")
        self._thread: threading.Thread | None = None

    def put(
        self,
        label: str,
        send: Callable[[], object],
        *,
        replaces: bool = False,
        body: Mapping[str, Any] | None = None,
        values: int = 1,
    ) -> None:
        """Send a report after those before it; return at once.

        Args:
            label: name of the report in the log.
            send: makes the call. It is called again if the response was lost.
            replaces: drop waiting reports with the same label, since only the newest counts.
            body: what `send` sends, if `send_together` may send it with others; None if not.
            values: number of values in `body`.
        """
        report = _Report(label, send, body, values)
        with self._changed:
            if self._thread is None:
                # Of a forked process, which has no other end that all ways of forking have in common.
                Finalize(None, self.flush, exitpriority=0)
                self._start()
            if replaces:
                if label in self._replacing:
                    self._replacing[label].is_superseded = True
                    self._superseded += 1
                self._replacing[label] = report
                if self._superseded > _MOST_SUPERSEDED:
                    self._forget_superseded()
            self._waiting.append(report)
            self._changed.notify_all()

    def _forget_superseded(self) -> None:
        waiting = list(self._waiting)
        # The first ones are being sent at this moment.
        first, later = waiting[: self._in_flight], waiting[self._in_flight :]
        self._waiting = deque([*first, *(report for report in later if not report.is_superseded)])
        self._superseded = 0

    def flush(self) -> None:
        """Wait until no report is waiting, or until the master has been unavailable for too long."""
        with self._changed:
            self._give_up_at = time.monotonic() + self._close_timeout_s
            self._changed.notify_all()
            # Reports that others put meanwhile are waited for, too. The timeout notices a thread that has ended.
            while self._waiting and self._thread is not None and self._thread.is_alive():
                self._changed.wait(1.0)
            self._give_up_at = float("inf")

    def close(self) -> None:
        """Flush and end the thread.

        Raises:
            MasterUnavailableError: reports could not be delivered. That a master refuses a report is only logged.
        """
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        lost, self._lost = self._lost, []
        if lost:
            named = ", ".join(lost[:_MOST_NAMED]) + (", ..." if len(lost) > _MOST_NAMED else "")
            raise MasterUnavailableError(
                f"{len(lost)} report{'s' if len(lost) > 1 else ''} did not reach the master: {named}."
            )

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closing:
                    self._changed.wait()
                # Closing ends the thread only after the last report.
                if not self._waiting:
                    return
                first = self._first_waiting()
                counting = [report for report in first if not report.is_superseded]
                self._in_flight = len(first)
            self._deliver(counting)
            with self._changed:
                self._in_flight = 0
                for report in first:
                    self._waiting.popleft()
                    if self._replacing.get(report.label) is report:
                        del self._replacing[report.label]
                self._changed.notify_all()

    def _first_waiting(self) -> list[_Report]:
        """Return the reports of the next call and those superseded among them; the caller holds the lock."""
        found: list[_Report] = []
        values = count = 0
        for report in self._waiting:
            if report.is_superseded:
                found.append(report)
                continue
            values += report.values
            is_alone = report.body is None or self._send_together is None
            if count and (is_alone or values > _MOST_VALUES or count == MOST_TOGETHER):
                break
            found.append(report)
            count += 1
            if is_alone:
                break
        return found

    def _deliver(self, reports: list[_Report]) -> None:
        """Send reports, several in one call, until they have arrived or are dropped."""
        if len(reports) == 1 or self._send_together is None:
            for report in reports:
                self._deliver_single(report)
            return
        try:
            bodies = [report.body for report in reports if report.body is not None]
            failed = dict(self._send_together(bodies))
        except MasterUnavailableError as error:
            if time.monotonic() > self._give_up_at:
                logger.error("Gave up sending %d reports: %s", len(reports), error)
                self._lost += [report.label for report in reports]
                return
            # The master may need longer for all of them than an answer may take.
            half = len(reports) // 2
            self._deliver(reports[:half])
            self._deliver(reports[half:])
            return
        except Exception as error:
            if isinstance(error, MasterError) and error.status in _UNKNOWN_CALL:
                self._send_together = None
            # Otherwise something fails at one of them.
            failed = {index: MasterError(500, str(error)) for index in range(len(reports))}
        for index, reason in sorted(failed.items()):
            if isinstance(reason, MasterError) and _is_refusal(reason):
                _say_dropped(reports[index], reason)
            else:
                self._deliver_single(reports[index])

    def _deliver_single(self, report: _Report) -> None:
        reminded_at = -math.inf
        failures = 0
        while True:
            pause_s = self._retry_s
            try:
                report.send()
                return
            except (MasterUnavailableError, MasterError) as error:
                if isinstance(error, MasterError):
                    failures += 1
                    if _is_refusal(error) or failures == _MOST_FAILURES:
                        _say_dropped(report, error)
                        return
                    pause_s *= 2 ** (failures - 1)
                now = time.monotonic()
                if now > self._give_up_at:
                    logger.error("Gave up sending %s: %s", report.label, error)
                    self._lost.append(report.label)
                    return
                if now - reminded_at > _REMIND_S:
                    reminded_at = now
                    logger.warning("%s waits for the master and will be sent again. %s", report.label, error)
            except Exception:
                # An error in this package must not end the thread: the next reports would be lost.
                logger.exception(
                    "Could not send %s; it is dropped and the next reports are sent.", report.label
                )
                self._lost.append(report.label)
                return
            # Not on the condition, which every `put` notifies: frequent reports would use up the tries at once.
            time.sleep(pause_s)


_queues: weakref.WeakSet[ReportQueue] = weakref.WeakSet()


def _begin_after_fork() -> None:
    for queue in _queues:
        queue._begin()


os.register_at_fork(after_in_child=_begin_after_fork)


def _say_dropped(report: _Report, error: MasterError) -> None:
    logger.warning("The master refused %s, which is dropped: %s", report.label, error)


def _is_refusal(error: MasterError) -> bool:
    """Return whether the same report would be refused again; a Determined 0.38.1 master answers 500 to that as well."""
    is_known = any(text in str(error) for text in _REFUSALS)
    return error.status < 500 or error.status == 501 or is_known
