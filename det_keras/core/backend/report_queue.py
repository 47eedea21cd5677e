"""Reports on their way to the master: in order, in the background, as often as it takes.

Training never waits for the master and never fails because it is away. Reports keep their order; a
report that the master refuses is logged and dropped, since sending it again would not help.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from det_keras.errors import MasterError, MasterUnavailableError

__all__ = ["ReportQueue"]

logger = logging.getLogger(__name__)

_REMIND_S = 30.0


@dataclass
class _Report:
    label: str
    send: Callable[[], object]


class ReportQueue:
    """Sends reports from a thread of its own.

    Args:
        name: of the thread.
        close_timeout_s: how long `flush` waits for a master that is away, in seconds.
        retry_s: pause between two attempts while the master is away, in seconds.
    """

    def __init__(self, name: str, *, close_timeout_s: float = 600.0, retry_s: float = 1.0) -> None:
        self._letters: deque[_Report] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._give_up_at = float("inf")
        self._close_timeout_s = close_timeout_s
        self._retry_s = retry_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, label: str, send: Callable[[], object], *, replaces: bool = False) -> None:
        """Send a report after those before it; return at once.

        Args:
            label: what it is, for the log.
            send: makes the call; may be made again when the answer was lost.
            replaces: drop waiting reports with the same label first; only the newest counts.
        """
        with self._changed:
            if replaces:
                waiting = list(self._letters)
                self._letters = deque(waiting[:1] + [one for one in waiting[1:] if one.label != label])
            self._letters.append(_Report(label, send))
            self._changed.notify_all()

    def flush(self) -> None:
        """Return when nothing is waiting, or when the master has been away for too long."""
        with self._changed:
            self._give_up_at = time.monotonic() + self._close_timeout_s
            self._changed.notify_all()
            while self._letters and self._thread.is_alive():
                self._changed.wait(1.0)
            self._give_up_at = float("inf")

    def close(self) -> None:
        """Flush and end the thread."""
        self.flush()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._letters and not self._closing:
                    self._changed.wait()
                if not self._letters:
                    return
                letter = self._letters[0]
            self._deliver(letter)
            with self._changed:
                if self._letters and self._letters[0] is letter:
                    self._letters.popleft()
                self._changed.notify_all()

    def _deliver(self, letter: _Report) -> None:
        reminded_at = 0.0
        while True:
            try:
                letter.send()
                return
            except MasterUnavailableError as error:
                now = time.monotonic()
                if now > self._give_up_at:
                    logger.error("Gave up sending %s: %s", letter.label, error)
                    return
                if now - reminded_at > _REMIND_S:
                    reminded_at = now
                    logger.warning("%s waits for the master and will be sent again. %s", letter.label, error)
            except MasterError as error:
                if error.status < 500:
                    logger.error("The master refused %s: %s", letter.label, error)
                    return
                logger.warning("The master failed at %s and will be asked again: %s", letter.label, error)
                if time.monotonic() > self._give_up_at:
                    return
            except Exception:
                # A fault of ours must not end the thread: the reports behind this one would be lost.
                logger.exception("Could not send %s; it is dropped and the next reports go on.", letter.label)
                return
            with self._changed:
                self._changed.wait(self._retry_s)
