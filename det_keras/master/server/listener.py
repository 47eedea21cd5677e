"""Accepts connections while there is room for them.

asyncio's own server accepts as many connections in a row as its queue is long, before it handles the first of them, and
so exceeds any bound; when no file can be opened, it logs a traceback each time; and during the handshake of TLS nobody
else can close its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import socket
import ssl
from collections.abc import Callable

from det_keras.master.repeated_line import RepeatedLine
from det_keras.master.server.connections import Connections
from det_keras.master.server.protocol import Connection

logger = logging.getLogger(__name__)

#: How many connections the kernel keeps for the master until they are accepted.
BACKLOG = 1024
# Connections in a row: few enough that the files of those that gave way to them are closed soon.
_MOST_AT_ONCE = 8
_NO_FILES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
# When no file can be opened, and when all connections are new.
_PAUSE_WITHOUT_FILES_S = 1.0
_PAUSE_WITHOUT_ROOM_S = 0.05
# After each connection, while calls of users would be refused. Clients who wait for a moment are better served than
# those who are asked to come again.
_PAUSE_WHILE_BUSY_S = 0.02


class Listener:
    """Accepts the connections of one socket, on the event loop that creates it.

    Args:
        sock: the bound socket.
        connections: all connections.
        make: returns the protocol of a connection from an address.
        tls: None for connections without TLS.
    """

    def __init__(
        self,
        sock: socket.socket,
        connections: Connections,
        make: Callable[[str], Connection],
        tls: ssl.SSLContext | None,
    ) -> None:
        self._socket = sock
        self._connections = connections
        self._make = make
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._openings: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._out_of_files = RepeatedLine(
            logger, "No connection can be accepted: %s. The next attempt is in a second."
        )

    def start(self) -> None:
        """Begin to accept connections."""
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._loop.add_reader(self._socket, self._accept)

    def close(self) -> None:
        """Accept no more connections, and close those whose handshake is not finished."""
        self._loop.remove_reader(self._socket)
        if self._pause is not None:
            self._pause.cancel()
        self._connections.when_room = None
        for opening in list(self._openings):
            opening.cancel()

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if not self._connections.make_room():
                self._wait(_PAUSE_WITHOUT_ROOM_S)
                self._connections.when_room = self._resume
                return
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_FILES:
                    raise
                self._out_of_files.log(error.strerror)
                self._wait(_PAUSE_WITHOUT_FILES_S)
                return
            connection = self._make(address[0])
            self._connections.add(connection)
            connection.opening = self._loop.create_task(self._open(connection, sock))
            self._openings.add(connection.opening)
            connection.opening.add_done_callback(functools.partial(self._opened, connection, sock))
            if self._connections.is_busy:
                # Not for long: it may be the connection of a task, for which there is room.
                self._wait(_PAUSE_WHILE_BUSY_S)
                return

    async def _open(self, connection: Connection, sock: socket.socket) -> None:
        # An error means that the client left, or does not speak TLS.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(lambda: connection, sock, ssl=self._tls)

    def _opened(self, connection: Connection, sock: socket.socket, opening: asyncio.Task[None]) -> None:
        # A callback: a task that is cancelled before its first step runs no `finally`.
        self._openings.discard(opening)
        if connection.transport is None:
            self._connections.remove(connection)
            sock.close()

    def _wait(self, delay_s: float) -> None:
        """Accept nothing for a while; clients wait in the queue of the kernel."""
        self._loop.remove_reader(self._socket)
        self._pause = self._loop.call_later(delay_s, self._resume)

    def _resume(self) -> None:
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
            self._loop.add_reader(self._socket, self._accept)
