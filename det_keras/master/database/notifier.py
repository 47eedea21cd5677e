"""Waking waiting requests: long polls and followed logs.

Writers run on threads, waiters on the event loop. A waiter first registers, then reads the state, then sleeps.
A change between the last two steps sets its event, so the sleep ends at once and no change is missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator


class Waiter:
    """A request that waits for events of a topic."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    async def wait(self, timeout_s: float) -> bool:
        """Sleep until an event since the last call, at most `timeout_s`; return whether there was an event."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        self._event.clear()
        return True

    def wake(self) -> None:
        """Let the waiter read the state again; on the event loop only."""
        self._event.set()


class Notifier:
    """Sends events from any thread to waiters on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: dict[str, set[Waiter]] = defaultdict(set)
        self._listeners: dict[str, Callable[[], None]] = {}
        self.is_closing = False

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the event loop on which the waiters run."""
        self._loop = loop

    def listen(self, topic: str, listener: Callable[[], None]) -> None:
        """Call `listener` at each event of `topic`, on the notifying thread; it must return quickly."""
        self._listeners[topic] = listener

    def notify(self, topic: str) -> None:
        """Wake all waiters of `topic`; from any thread."""
        listener = self._listeners.get(topic)
        if listener is not None:
            listener()
        self._call(functools.partial(self._wake, topic))

    def close(self) -> None:
        """Wake all waiters for the last time: the master stops."""
        self.is_closing = True
        self._call(self._wake_all)

    @contextlib.contextmanager
    def waiting(self, topic: str) -> Iterator[Waiter]:
        """Yield a waiter that receives all events from now on; on the event loop only."""
        waiter = Waiter()
        self._waiters[topic].add(waiter)
        try:
            yield waiter
        finally:
            self._waiters[topic].discard(waiter)
            if not self._waiters[topic]:
                del self._waiters[topic]

    def _call(self, function: Callable[[], None]) -> None:
        if self._loop is None:
            return
        # `_waiters` is changed on the loop only, so it needs no lock. If the loop is closed, there are no waiters.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)

    def _wake(self, topic: str) -> None:
        for waiter in self._waiters.get(topic, ()):
            waiter.wake()

    def _wake_all(self) -> None:
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.wake()


#: A task may have to be started, stopped or checked.
WORK = "work"

#: A trial is to be compared with a copy.
VERIFICATIONS = "verifications"

#: Trials are to be brought into line with the state of their experiment.
SETTLING = "settling"

#: An event is to be sent to a webhook.
DELIVERIES = "deliveries"

#: Files are to be deleted.
DELETIONS = "deletions"


def allocation_topic(allocation_id: str) -> str:
    """Return the topic of one allocation's requests to stop, and of its end."""
    return f"allocation/{allocation_id}"


def delivery_topic(delivery_id: int) -> str:
    """Return the topic of the end of one delivery."""
    return f"delivery/{delivery_id}"


def task_topic(task_id: str) -> str:
    """Return the topic of one task's log and end."""
    return f"task/{task_id}"
