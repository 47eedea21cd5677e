"""All connections of clients, and which of them are closed when there is no room for another one.

Connections are kept by what they are doing, in the order in which they began it. So the one that gives way is found at
once, however many there are: an attack is when this is done most often. While the bound of calls
(`det_keras.master.server.admission`) leaves room for connections without one, some connection can always give way.
"""

from __future__ import annotations

import enum
import itertools
import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from det_keras.master.repeated_line import RepeatedLine
from det_keras.master.server.capacity import Capacity

logger = logging.getLogger(__name__)

#: How long an idle connection is kept, in seconds. Clients keep connections for their next call: closing one during a
#: call would look like a network error.
KEEP_ALIVE_S = 120
#: How long a client may take for the head of a request, and without a login also for its body, in seconds.
REQUEST_S = 10
# The time without progress after which a client without a login does not read its answer any more.
_STALLED_S = 30
# A connection does not give way before a request that was sent meanwhile had this time to arrive.
_LEAST_S = 0.25


class Activity(enum.Enum):
    """What a connection is doing."""

    WAITING = "waiting for a complete request: its head, and without a login also its body"
    STALLED = "sending an answer that the client, who has no login, does not read"
    IDLE_ANONYMOUS = "between two calls; the last one was without a login"
    IDLE = "between two calls"
    CALL = "answering a call"


_LONGEST_S = {
    Activity.WAITING: REQUEST_S,
    Activity.STALLED: _STALLED_S,
    Activity.IDLE_ANONYMOUS: KEEP_ALIVE_S,
    Activity.IDLE: KEEP_ALIVE_S,
}
# Those that give way before one that waits for a request, when there are too many in all.
_GIVING_WAY = (Activity.STALLED, Activity.IDLE_ANONYMOUS, Activity.IDLE)
# How many of the oldest are looked at. If a request has arrived on each of them, they are handled first.
_MOST_LOOKS = 8


class Closable(Protocol):
    """A connection, as far as this module needs it."""

    @property
    def address(self) -> str:
        """The client's address."""

    @property
    def has_unread(self) -> bool:
        """Whether the client has sent something that was not handled yet."""

    def abort(self) -> None:
        """Close it at once."""


class Connections:
    """The open connections; on the event loop only.

    Args:
        capacity: the bounds.
        clock: seconds that never go back.
    """

    def __init__(self, capacity: Capacity, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._activities: dict[Closable, Activity] = {}
        # Since when each of them is doing this; the longest time first.
        self._since: dict[Activity, dict[Closable, float]] = {activity: {} for activity in Activity}
        self._waiting_of: dict[str, dict[Closable, float]] = {}
        # Addresses with so many waiting connections that these give way first; there can be few of them.
        self._heavy: dict[str, None] = {}
        #: Called once when there may be room again.
        self.when_room: Callable[[], object] | None = None
        self._evicted = RepeatedLine(
            logger,
            f"A connection without a call was closed to make room: there may be {capacity.connections} connections, "
            f"{capacity.waiting} of them without a request.",
            clock,
        )

    def __len__(self) -> int:
        return len(self._activities)

    def count(self, activity: Activity) -> int:
        """Return the number of connections that are doing something."""
        return len(self._since[activity])

    @property
    def is_crowded(self) -> bool:
        """Whether connections should end with their answer, rather than wait for another call."""
        return len(self) >= self._capacity.connections * 3 // 4

    @property
    def is_busy(self) -> bool:
        """Whether so many calls are being answered that those of users are refused: new clients should wait."""
        return self.count(Activity.CALL) >= self._capacity.user_calls

    def make_room(self) -> bool:
        """Return whether another connection can be added; one that answers no call may have to give way to it."""
        if self.count(Activity.WAITING) >= self._capacity.waiting:
            return self._evict_waiting()
        if len(self) < self._capacity.connections:
            return True
        return (
            any(self._evict_from(self._since[activity]) for activity in _GIVING_WAY) or self._evict_waiting()
        )

    def add(self, connection: Closable) -> None:
        """Add a new connection, which waits for its first request; there must be room."""
        self._enter(connection, Activity.WAITING)

    def move(self, connection: Closable, activity: Activity) -> None:
        """Record what a connection is doing from now on; nothing for one that was removed."""
        if connection in self._activities:
            self._leave(connection)
            self._enter(connection, activity)
            self._signal_room()

    def remove(self, connection: Closable) -> None:
        """Forget a connection that was closed; nothing for one that was removed."""
        if connection in self._activities:
            self._leave(connection)
            self._signal_room()

    def activity(self, connection: Closable) -> Activity | None:
        """Return what a connection is doing; None for one that was removed."""
        return self._activities.get(connection)

    def close_overdue(self) -> None:
        """Close the connections that have been doing the same for too long; about once a second."""
        now_s = self._clock()
        for activity, longest_s in _LONGEST_S.items():
            kind = self._since[activity]
            while kind:
                connection, since_s = next(iter(kind.items()))
                if now_s - since_s < longest_s:
                    break
                self.remove(connection)
                connection.abort()

    def _evict_waiting(self) -> bool:
        kinds = [*(self._waiting_of[address] for address in self._heavy), self._since[Activity.WAITING]]
        return any(self._evict_from(kind) for kind in kinds)

    def _evict_from(self, kind: Mapping[Closable, float]) -> bool:
        """Close the oldest connection of a kind that may give way; return whether there was one."""
        latest_s = self._clock() - _LEAST_S
        for connection, since_s in itertools.islice(kind.items(), _MOST_LOOKS):
            if since_s > latest_s:
                break
            if not connection.has_unread:
                self._leave(connection)
                connection.abort()
                self._evicted.log()
                return True
        return False

    def _enter(self, connection: Closable, activity: Activity) -> None:
        now_s = self._clock()
        self._activities[connection] = activity
        self._since[activity][connection] = now_s
        if activity is Activity.WAITING:
            own = self._waiting_of.setdefault(connection.address, {})
            own[connection] = now_s
            if len(own) >= self._capacity.waiting_per_address:
                self._heavy[connection.address] = None

    def _leave(self, connection: Closable) -> None:
        activity = self._activities.pop(connection)
        del self._since[activity][connection]
        if activity is Activity.WAITING:
            own = self._waiting_of[connection.address]
            del own[connection]
            if len(own) < self._capacity.waiting_per_address:
                self._heavy.pop(connection.address, None)
            if not own:
                del self._waiting_of[connection.address]

    def _signal_room(self) -> None:
        signal, self.when_room = self.when_room, None
        if signal is not None:
            signal()
