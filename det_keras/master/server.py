"""The master's HTTP server: one address on loopback, and a file that says where it is."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterable
from types import FrameType
from typing import Any

import uvicorn

from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master.events import Notifier

__all__ = ["HOST", "bind", "serve"]

#: Nobody outside of the machine is served.
HOST = "127.0.0.1"

# Answers that wait are cut off after this; long polls and followed logs end by themselves before.
_GRACE_S = 3
# Clients keep connections for long; one that is closed under a call looks like a fault of the network.
_KEEP_ALIVE_S = 120


def bind(port: int | None, preferred: Iterable[int]) -> socket.socket:
    """Return a socket on `port`, else on the first preferred port that is free, else on any.

    Raises:
        DetError: `port` is taken.
    """
    if port is not None:
        bound = _try(port)
        if bound is None:
            raise DetError(
                f"Port {port} of {HOST} is taken. Use another --port, or none to have a free one chosen."
            )
        return bound
    for candidate in (*preferred, 0):
        bound = _try(candidate)
        if bound is not None:
            return bound
    raise DetError(f"No port of {HOST} is free.")


def serve(app: Any, sock: socket.socket, home: Home, notifier: Notifier) -> bool:
    """Serve until a signal ends it; tell whether it came up.

    Args:
        app: the web application.
        sock: bound to the address.
        home: its `master_file` says where the master is, from when it is ready until it stops.
        notifier: told as soon as it is to stop, so that long polls end.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config, home, notifier)
    try:
        asyncio.run(server.serve(sockets=[sock]))
    finally:
        home.master_file.unlink(missing_ok=True)
    return bool(server.started)


class _Server(uvicorn.Server):  # type: ignore[misc]  # uvicorn is not followed by mypy here
    def __init__(self, config: uvicorn.Config, home: Home, notifier: Notifier) -> None:
        super().__init__(config)
        self._home = home
        self._notifier = notifier

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and sockets:
            _announce(self._home, sockets[0])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._notifier.close()
        super().handle_exit(sig, frame)


def url_of(sock: socket.socket) -> str:
    """Return the address of a bound socket."""
    return f"http://{HOST}:{sock.getsockname()[1]}"


def _announce(home: Home, sock: socket.socket) -> None:
    draft = home.master_file.with_name(f".{home.master_file.name}")
    draft.write_text(json.dumps({"url": url_of(sock), "pid": os.getpid()}), encoding="utf-8")
    draft.replace(home.master_file)


def _try(port: int) -> socket.socket | None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A master that starts again takes up its port although old connections linger.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port))
        sock.listen(128)
    except OSError:
        sock.close()
        return None
    return sock
