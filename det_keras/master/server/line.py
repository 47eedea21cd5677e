"""Lets few calls be worked on at a time. The others wait in line, where they cost nothing.

Python executes one thread at a time. Two hundred calls on forty threads are answered no sooner than in twos, but
everything else that the master does would wait for the processor behind all of them: above all, storing what running
trials report. So the calls of tasks, and reports, pass by the line.
"""

from __future__ import annotations

import asyncio

# A call that takes longer lets the next one begin: it may wait for a disk or for another process.
_LONGEST_S = 0.5


class Line:
    """The calls that are worked on, and those that wait for it in the order in which they came.

    Args:
        places: how many are worked on at a time.
        longest_s: a call that has been worked on for so long does not count any more.
    """

    def __init__(self, places: int, longest_s: float = _LONGEST_S) -> None:
        self._places = asyncio.Semaphore(places)
        self._longest_s = longest_s

    def turn(self) -> Turn:
        """Return the turn of one call, which has to take it."""
        return Turn(self._places, self._longest_s)


class Turn:
    """The turn of a call, which it may leave and take again; on the event loop only."""

    def __init__(self, places: asyncio.Semaphore, longest_s: float) -> None:
        self._places = places
        self._longest_s = longest_s
        self._end: asyncio.TimerHandle | None = None

    async def take(self) -> None:
        """Wait in line until the call may be worked on."""
        if self._end is None:
            await self._places.acquire()
            self._end = asyncio.get_running_loop().call_later(self._longest_s, self.leave)

    def leave(self) -> None:
        """Let the next call begin: the work is done, or this call waits for something else."""
        if self._end is not None:
            self._end.cancel()
            self._end = None
            self._places.release()
