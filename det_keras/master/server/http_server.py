"""The master's HTTP server: one address, and a file that tells clients this address."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Any

import uvicorn

from det_keras.errors import DetError
from det_keras.files import write_file
from det_keras.home import Home
from det_keras.master.database.notifier import Notifier
from det_keras.master.server.address import Address
from det_keras.master.server.capacity import Capacity
from det_keras.master.server.connections import KEEP_ALIVE_S, Connections
from det_keras.master.server.listener import BACKLOG, Listener
from det_keras.master.server.protocol import Connection

# At a stop, responses that are still open are cut off after this time. Long polls and followed logs end before.
_GRACE_S = 3
_TICKS_PER_S = 10


def bind(host: str, port: int | None, preferred: Iterable[int]) -> socket.socket:
    """Return a listening socket.

    Args:
        host: the address to bind to.
        port: the only acceptable port; None for any.
        preferred: ports to try first if `port` is None; otherwise a free port is chosen.

    Raises:
        DetError: `port` is taken, or `host` is not an address of this machine.
    """
    if port is not None:
        bound = _try(host, port)
        if bound is None:
            raise DetError(
                f"Port {port} of {host} is taken. Use another --port, or omit it to get a free port."
            )
        return bound
    for candidate in (*preferred, 0):
        bound = _try(host, candidate)
        if bound is not None:
            return bound
    raise DetError(f"No port of {host} is free, or this machine has no such address.")


def serve(
    app: Any,
    sock: socket.socket,
    address: Address,
    home: Home,
    notifier: Notifier,
    capacity: Capacity | None = None,
) -> bool:
    """Serve until a signal arrives; return whether the server had started.

    Args:
        app: the web application.
        sock: the listening socket.
        address: the address, with its certificate if there is one.
        home: its `master_file` contains the address while the server is running.
        notifier: closed when the signal arrives, so that long polls end.
        capacity: how many connections are open at once; None for what this process can do.
    """
    config = uvicorn.Config(
        app,
        # Parsing a request takes half the time of the parser in Python: a third of the time of a report of metrics.
        http="httptools",
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        # The address of a client counts, and a header may name any.
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=address.cert,
        ssl_keyfile=address.key,
    )
    server = _Server(config, address, home, notifier, capacity or Capacity.of_process())
    try:
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        # The caller still holds the lock of the data root, so this cannot delete the file of a next master.
        home.master_file.unlink(missing_ok=True)
    return bool(server.started)


class _Server(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    def __init__(
        self, config: uvicorn.Config, address: Address, home: Home, notifier: Notifier, capacity: Capacity
    ) -> None:
        super().__init__(config)
        self._connections = Connections(capacity)
        self._listener: Listener | None = None
        self._address = address
        self._home = home
        self._notifier = notifier

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Without sockets: uvicorn would listen to them with asyncio's server.
        await super().startup(sockets=[])
        if self.started and sockets:
            self._listener = Listener(sockets[0], self._connections, self._make_connection, self.config.ssl)
            self._listener.start()
            # What exists now stays. Looking through all of it for garbage, as Python does now and then, would stop
            # every thread for a sixth of a second.
            gc.freeze()
            _announce(self._home, self._address, sockets[0])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is not None:
            self._listener.close()
        await super().shutdown(sockets=sockets)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS_PER_S == 0:
            self._connections.close_overdue()
        return bool(await super().on_tick(counter))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # A signal handler, which may interrupt the loop anywhere: `close` only schedules the wake-ups on the loop.
        self._notifier.close()
        super().handle_exit(sig, frame)

    def _make_connection(self, address: str) -> Connection:
        return Connection(
            self._connections,
            address,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )


def _announce(home: Home, address: Address, sock: socket.socket) -> None:
    content: dict[str, Any] = {"url": address.url(sock.getsockname()[1]), "pid": os.getpid()}
    if address.trusted is not None:
        content["cert_file"] = str(address.trusted)
    write_file(home.master_file, json.dumps(content), mode=0o600)


def _try(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # If the protocol is given, asyncio disables Nagle's algorithm. Otherwise every response would wait 40 ms for the
    # acknowledgement of its own headers.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    # A restarted master can bind its former port while old connections are in TIME_WAIT.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        # From now on, so that clients that know the address wait while the master starts.
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock
