"""uvicorn's connection, which also records what it is doing.

uvicorn has no time limit for the first request, and with `limit_concurrency` it refuses calls, but keeps idle
connections open. So its protocol is extended here rather than configured.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Mapping
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from det_keras.master.server.connections import Activity, Connections

_EXTENSION = "det_keras.connection"
_IDLE = (Activity.IDLE, Activity.IDLE_ANONYMOUS)


class Connection(HttpToolsProtocol):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    """One connection of a client.

    Args:
        connections: all connections.
        address: the client's address.
        options: arguments of uvicorn's protocol.
    """

    def __init__(self, connections: Connections, address: str, **options: Any) -> None:
        super().__init__(**options)
        self.address = address
        #: Opens it: with TLS, this takes some messages. Set by the listener.
        self.opening: asyncio.Task[None] | None = None
        self._all = connections
        self._has_login = False

    @property
    def has_unread(self) -> bool:
        """Whether the client has sent something that was not handled yet."""
        if self.transport is None:
            return False
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def abort(self) -> None:
        """Close it at once."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()

    @property
    def is_receiving(self) -> bool:
        """Whether the body of the last request has not arrived."""
        return bool(self.cycle.more_body)

    @property
    def is_left(self) -> bool:
        """Whether the client has closed it before the answer to the last request."""
        return bool(self.cycle.disconnected)

    def begin_call(self, *, has_login: bool) -> None:
        """Record that a call is being answered; until then, the request counts as incomplete."""
        self._has_login = has_login
        self._all.move(self, Activity.CALL)

    async def drain(self) -> None:
        """Wait until the client has read most of the answer, or the connection is closed."""
        await self.flow.drain()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._all.remove(self)

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the client; the first ones of a request begin its time limit."""
        if self._all.activity(self) in _IDLE:
            self._all.move(self, Activity.WAITING)
        super().data_received(data)

    def on_message_begin(self) -> None:
        """Let the application find this connection."""
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: self}

    def on_headers_complete(self) -> None:
        """Start a call; the time limit of its body begins."""
        super().on_headers_complete()
        if self._all.activity(self) is Activity.WAITING:
            self._all.move(self, Activity.WAITING)

    def on_message_complete(self) -> None:
        """Record the end of a request."""
        super().on_message_complete()
        if self.cycle.response_complete:
            # The rest of the body of a call that was refused before it was read.
            self._settle()
        elif self._all.is_crowded:
            # Only now: closing a connection whose body still arrives would destroy the answer on its way.
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        """Record the end of an answer."""
        super().on_response_complete()
        self._settle()

    def pause_writing(self) -> None:
        """Record that the client does not read."""
        super().pause_writing()
        if self._all.activity(self) is Activity.CALL and not self._has_login:
            self._all.move(self, Activity.STALLED)

    def resume_writing(self) -> None:
        """Record that the client reads."""
        super().resume_writing()
        if self._all.activity(self) is Activity.STALLED:
            self._all.move(self, Activity.CALL)
        self._settle()

    def _settle(self) -> None:
        """Record that the connection is idle, if all of the last answer is sent."""
        if self.cycle is not None and self.cycle.response_complete and not self.flow.write_paused:
            self._all.move(self, Activity.IDLE if self._has_login else Activity.IDLE_ANONYMOUS)


def connection_of(scope: Mapping[str, Any]) -> Connection | None:
    """Return the connection of a call; None for a call from inside of this process."""
    connection: Connection | None = scope.get("extensions", {}).get(_EXTENSION)
    return connection
