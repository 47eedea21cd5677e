"""Waking those who wait: long polls and followed logs.

Writers live in threads, waiters on the event loop. A waiter registers first, looks at the state second and
sleeps third, so that nothing that happens in between is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator

__all__ = ["DELETIONS", "WORK", "Notifier", "Waiter", "allocation_topic", "task_topic"]


class Waiter:
    """One who waits for news about a topic."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until there is news since the last call, or the time is up; tell which."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        self._event.clear()
        return True

    def wake(self) -> None:
        """Let the waiter look again; on the event loop only."""
        self._event.set()


class Notifier:
    """Carries news from any thread to waiters on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: dict[str, set[Waiter]] = defaultdict(set)
        self._listeners: dict[str, Callable[[], None]] = {}
        self.is_closing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Name the loop on which the waiters live."""
        self._loop = loop

    def listen(self, topic: str, listener: Callable[[], None]) -> None:
        """Call `listener` at all news about `topic`, on the thread that brings them; it must be quick."""
        self._listeners[topic] = listener

    def notify(self, topic: str) -> None:
        """Wake all who wait for `topic`; from any thread."""
        listener = self._listeners.get(topic)
        if listener is not None:
            listener()
        self._call(self._wake, topic)

    def close(self) -> None:
        """Wake everybody for the last time: the master stops."""
        self.is_closing = True
        self._call(self._wake_all)

    @contextlib.contextmanager
    def waiting(self, topic: str) -> Iterator[Waiter]:
        """Yield a waiter that hears of everything from now on; on the event loop only."""
        waiter = Waiter()
        self._waiters[topic].add(waiter)
        try:
            yield waiter
        finally:
            self._waiters[topic].discard(waiter)
            if not self._waiters[topic]:
                del self._waiters[topic]

    def _call(self, function: object, *arguments: object) -> None:
        if self._loop is None:
            return
        # The loop may be closed already: then nobody waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)  # type: ignore[arg-type]  # generic on purpose

    def _wake(self, topic: str) -> None:
        for waiter in self._waiters.get(topic, ()):
            waiter.wake()

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()


#: Something may have to be started, stopped or looked at.
WORK = "work"

#: Files wait to be deleted.
DELETIONS = "deletions"


def allocation_topic(allocation_id: str) -> str:
    """Return the topic of what one allocation is asked to do."""
    return f"allocation/{allocation_id}"


def task_topic(task_id: str) -> str:
    """Return the topic of one task's log and end."""
    return f"task/{task_id}"
