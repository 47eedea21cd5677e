"""Copies of the lines that this process prints, sent to a log of a master.

What the script prints to `sys.stdout` and `sys.stderr` still goes where it went: only the method `write` of these
objects is replaced, so that a terminal stays a terminal and logging handlers that hold the objects are included.
Output of native code, which writes to the file descriptors, is not copied.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.log_lines import LineSplitter
from det_keras.protocol.values import timestamp

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
_MOST_LINES_PER_CALL = 1000
# While the master is unavailable, the oldest lines are dropped above this number.
_MOST_LINES = 100_000
_LAST_TRIES = 5
# The clock may also be set back by more.
_SAME_TIME = timedelta(seconds=1)


class OutputCopier:
    """Sends the lines that this process prints, about once a second.

    Args:
        task_id: the task to whose log the lines belong.
        rank: rank of this process; None for the only one.
        send: sends at most 1000 entries.
        period_s: pause between two calls, in seconds.
    """

    def __init__(
        self,
        task_id: str,
        rank: int | None,
        send: Callable[[Sequence[Mapping[str, object]]], object],
        *,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._task_id = task_id
        self._rank = rank
        self._send = send
        self._period_s = period_s
        self._waiting: deque[dict[str, object]] = deque(maxlen=_MOST_LINES)
        # A signal handler may print while the same thread holds the lock.
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._last_time = datetime.min.replace(tzinfo=timezone.utc)
        self._has_warned = False
        self._taps = [
            _Tap(stream, self._feed, name)
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
            if stream is not None
        ]
        self._thread = threading.Thread(target=self._run, name="det-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop copying and send the last lines."""
        if self._closing.is_set():
            return
        for tap in self._taps:
            tap.remove()
            self._add(tap.splitter.finish())
        self._closing.set()
        # The thread ends by itself: it stops at a master that does not answer.
        self._thread.join()

    def _feed(self, splitter: LineSplitter, text: str) -> None:
        with self._lock:
            self._add(splitter.feed(text.encode("utf-8", errors="replace")))

    def _add(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._waiting.extend(map(self._line, entries))

    def _line(self, entry: Mapping[str, Any]) -> dict[str, object]:
        rank = entry.get("r", self._rank)
        # Each line has a time of its own, by which a master recognises lines that are sent again. Lines that are read
        # together are in the same microsecond.
        time = datetime.fromtimestamp(entry["t"], timezone.utc)
        if timedelta(0) <= self._last_time - time < _SAME_TIME:
            time = self._last_time + timedelta(microseconds=1)
        self._last_time = time
        return {
            "task_id": self._task_id,
            "timestamp": timestamp(time),
            "log": entry["m"].rstrip("\r\n") + "\n",
            "level": f"LOG_LEVEL_{entry.get('l') or entry.get('v', 'INFO')}",
            "stdtype": entry["s"],
            "source": "task",
            **({} if rank is None else {"rank_id": rank}),
        }

    def _run(self) -> None:
        failures = 0
        while True:
            is_last = self._closing.wait(self._period_s if failures == 0 else 5 * self._period_s)
            try:
                self._send_waiting()
                failures = 0
            except MasterUnavailableError:
                # The reports, which wait for the same master, say so.
                failures += 1
            if is_last and (not self._waiting or failures >= _LAST_TRIES):
                return
            if is_last:
                # `wait` no longer waits.
                threading.Event().wait(self._period_s)

    def _send_waiting(self) -> None:
        while self._waiting:
            # New lines are only appended, or push out the oldest: those that are sent are counted from the front.
            with self._lock:
                lines = [
                    self._waiting.popleft() for _ in range(min(len(self._waiting), _MOST_LINES_PER_CALL))
                ]
            try:
                self._send(lines)
            except MasterUnavailableError:
                with self._lock:
                    self._waiting.extendleft(
                        reversed(lines[max(0, len(lines) + len(self._waiting) - _MOST_LINES) :])
                    )
                raise
            except MasterError as error:
                if not self._has_warned:
                    self._has_warned = True
                    logger.warning(
                        "The master refused lines of this log, which are only printed here: %s", error
                    )


class _Tap:
    """Passes what is written to a text stream to a listener too, until it is removed."""

    def __init__(self, stream: Any, listener: Callable[[LineSplitter, str], None], name: str) -> None:
        self.splitter = LineSplitter(name)
        self._stream = stream
        self._listener = listener
        self._pid = os.getpid()
        self._write = stream.write
        self._is_removed = False
        try:
            stream.write = self._on_write
        except AttributeError:
            logger.warning("What is printed to %s is not copied to the master: it cannot be observed.", name)

    def remove(self) -> None:
        """Restore the stream, unless its method was replaced again since."""
        self._is_removed = True
        if getattr(self._stream, "__dict__", {}).get("write") == self._on_write:
            del self._stream.write

    def _on_write(self, text: str) -> Any:
        result = self._write(text)
        # A forked child, such as a worker that loads data, has no thread that sends.
        if not self._is_removed and os.getpid() == self._pid:
            self._listener(self.splitter, text)
        return result
