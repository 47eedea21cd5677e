"""Logins by password: few at the same time, and with growing waits after wrong passwords.

Checking a password takes 64 MiB of memory and much of a processor by design. So it has threads of its own, and a short
queue: calls that need no password never wait for it.

Waits count for a user from an address, for an address, and for a user. The last ones are short: otherwise somebody
elsewhere could lock a user out. A user who has logged in from an address before is not held up there by what happens
at other addresses.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import math
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from det_keras.master.errors import TooManyRequestsError, UnauthenticatedError, UnavailableError
from det_keras.master.repeated_line import RepeatedLine

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREADS = 2
#: Logins that wait for a thread; others are refused.
MOST_QUEUED = 8
# After so long without a wrong password, earlier ones no longer count.
_MEMORY_S = 15 * 60.0
_MOST_KEYS = 10_000
_LONGEST_NAME = 64


@dataclass
class _Record:
    failures: int
    may_try_at: float
    forgotten_at: float


class Waits:
    """Growing waits between wrong attempts, by any key; with a bounded memory.

    Args:
        free: how many attempts may fail without a wait.
        longest_s: the longest wait, in seconds. It doubles with each failure, from one second.
        clock: seconds that never go back.
    """

    def __init__(self, free: int, longest_s: float, clock: Callable[[], float]) -> None:
        self._free = free
        self._longest_s = longest_s
        self._clock = clock
        # The one that failed last comes last.
        self._records: dict[Hashable, _Record] = {}

    def left_s(self, key: Hashable) -> float:
        """Return how long the next attempt has to wait, in seconds."""
        record = self._records.get(key)
        return 0.0 if record is None else max(0.0, record.may_try_at - self._clock())

    def add(self, key: Hashable) -> None:
        """Count a failure."""
        now_s = self._clock()
        record = self._records.pop(key, None)
        failures = 1 + (0 if record is None or record.forgotten_at <= now_s else record.failures)
        over = failures - self._free
        wait_s = min(2.0 ** min(over, 30), self._longest_s) if over >= 0 else 0.0
        self._records[key] = _Record(failures, now_s + wait_s, now_s + _MEMORY_S)
        if len(self._records) > _MOST_KEYS:
            del self._records[next(iter(self._records))]

    def clear(self, key: Hashable) -> None:
        """Forget the failures of a key."""
        self._records.pop(key, None)

    def withdraw(self, key: Hashable) -> None:
        """Take a failure back that was none."""
        record = self._records.get(key)
        if record is not None:
            record.failures -= 1
            record.may_try_at = self._clock()


class LoginAttempts:
    """Admits attempts to log in, and counts the wrong ones; on the event loop only.

    Args:
        clock: seconds that never go back.
        when_refused: called with the name and the address of a login that was wrong, on the thread that checked it.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        when_refused: Callable[[str, str], object] = lambda name, address: None,
    ) -> None:
        self._when_refused = when_refused
        self._of_both = Waits(10, 60.0, clock)
        self._of_address = Waits(50, 60.0, clock)
        self._of_user = Waits(100, 4.0, clock)
        # Users and the addresses from which they logged in, the last one last.
        self._known: dict[tuple[str, str], None] = {}
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="login")
        self._places = THREADS + MOST_QUEUED
        self._failed = RepeatedLine(logger, "Login of %r from %s refused: wrong name or password.", clock)
        self._held_up = RepeatedLine(logger, "Login of %r from %s refused: too many attempts.", clock)

    async def run(self, username: str, address: str, check: Callable[[], T]) -> T:
        """Return the result of a login.

        Args:
            username: upper and lower case are the same.
            address: the client's address.
            check: checks the password, on another thread.

        Raises:
            TooManyRequestsError: the attempt comes too early, or too many passwords are being checked.
            UnauthenticatedError: the name or the password is wrong.
        """
        user = username.lower()
        try:
            self._refuse_early(user, address)
            with self._place():
                return await self._counted(user, address, check)
        except TooManyRequestsError:
            self._held_up.log(user[:_LONGEST_NAME], address)
            raise

    def close(self) -> None:
        """End the threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _counted(self, user: str, address: str, check: Callable[[], T]) -> T:
        both = (user, address)
        # Counted before: otherwise as many attempts as fit into the queue would pass at once.
        counts: tuple[tuple[Waits, Hashable], ...] = (
            (self._of_both, both),
            (self._of_address, address),
            (self._of_user, user),
        )
        for waits, key in counts:
            waits.add(key)
        try:
            result = await asyncio.get_running_loop().run_in_executor(
                self._threads, contextvars.copy_context().run, self._checked, user, address, check
            )
        except UnauthenticatedError:
            self._failed.log(user[:_LONGEST_NAME], address)
            raise
        except BaseException:
            for waits, key in counts:
                waits.withdraw(key)
            raise
        for waits, key in counts:
            waits.withdraw(key)
        self._of_both.clear(both)
        self._known.pop(both, None)
        self._known[both] = None
        if len(self._known) > _MOST_KEYS:
            del self._known[next(iter(self._known))]
        return result

    def _checked(self, user: str, address: str, check: Callable[[], T]) -> T:
        try:
            return check()
        except UnauthenticatedError:
            # The login is refused in any case.
            with contextlib.suppress(UnavailableError):
                self._when_refused(user, address)
            raise

    def _refuse_early(self, user: str, address: str) -> None:
        both = (user, address)
        of_user_s = 0.0 if both in self._known else self._of_user.left_s(user)
        left_s = max(self._of_both.left_s(both), self._of_address.left_s(address), of_user_s)
        if left_s > 0:
            wait_s = math.ceil(left_s)
            raise TooManyRequestsError(
                f"There were too many wrong passwords. Try again in {wait_s} second{'s' * (wait_s > 1)}.",
                wait_s,
            )

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places:
            raise TooManyRequestsError(
                f"The master is checking {THREADS + MOST_QUEUED} passwords, as many as it does at once. "
                "Try again in a second.",
                1,
            )
        self._places -= 1
        try:
            yield
        finally:
            self._places += 1
