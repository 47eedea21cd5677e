"""The rendezvous of one job's processes: a store of small values over HTTP, on loopback only.

On several nodes there is one on each, for the ranks of that node. The values are those of the chief's node: the
other launchers pass each call on to it, over a connection on which both ends know the job's key. So the
rendezvous, which Horovod uses without authentication, cannot be reached from other machines.

Horovod's processes publish their addresses with ``PUT /scope/rank``, poll for those of the others with ``GET``
until they are there, and ``DELETE`` their own once all are connected. Horovod's own server for this listens on
every interface of the machine, without authentication. Ours listens on 127.0.0.1, answers this account alone, and
needs neither Horovod nor TensorFlow in the launcher.

Source: ``horovod/common/gloo/http_store.cc`` and ``gloo_context.cc`` of Horovod 0.28.1.
"""

from __future__ import annotations

import base64
import os
import socket
import sys
import threading
from collections.abc import Iterable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from det_keras.workers.channel import Channel

LOOPBACK = "127.0.0.1"

# A silent client blocks one thread, not the job.
_REQUEST_TIMEOUT_S = 10
# An address is some hundred bytes long for each peer.
_LARGEST_VALUE_BYTES = 1 << 20


class Rendezvous:
    """A store that listens from the start and answers from `serve` on.

    A process must not have threads yet when it forks, so the serving thread starts only after the last fork. Until
    `serve`, requests wait in the socket's queue.

    Args:
        chief: connection to the launcher that has the values; None if they are here.
        guests: connections to launchers that use the values of this one.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(self, *, chief: Channel | None = None, guests: Iterable[Channel] = ()) -> None:
        self._values: _Values | _RemoteValues = _Values() if chief is None else _RemoteValues(chief)
        self._server = _Server((LOOPBACK, 0), _Handler, self._values)
        self._guests = list(guests)
        self._thread: threading.Thread | None = None
        self.port: int = self._server.server_address[1]

    def serve(self) -> None:
        """Answer requests on separate threads."""
        for guest in self._guests:
            threading.Thread(
                target=_answer_calls, args=(guest, self._values), name="rendezvous-guest", daemon=True
            ).start()
        self._thread = threading.Thread(target=self._server.serve_forever, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server."""
        if self._thread is not None:
            self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Values:
    """Values by path. Each request, on its own thread, makes a single dict operation, which needs no lock."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}

    def get(self, path: str) -> bytes | None:
        return self._values.get(path)

    def put(self, path: str, value: bytes) -> None:
        self._values[path] = value

    def delete(self, path: str) -> None:
        self._values.pop(path, None)


class _RemoteValues:
    """The values of the chief's launcher.

    Args:
        link: the connection to it; used for nothing else.
    """

    def __init__(self, link: Channel) -> None:
        self._link = link
        self._lock = threading.Lock()

    def get(self, path: str) -> bytes | None:
        value = self._call({"get": path}).get("value")
        return None if value is None else base64.b64decode(value)

    def put(self, path: str, value: bytes) -> None:
        self._call({"put": path, "value": base64.b64encode(value).decode()})

    def delete(self, path: str) -> None:
        self._call({"delete": path})

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self._link.send(message)
            return self._link.receive(None)


def _answer_calls(link: Channel, values: _Values | _RemoteValues) -> None:
    """Answer the calls of another launcher until its connection ends, which `launch/nodes.py` notices too."""
    try:
        while True:
            message = link.receive(None)
            answer: dict[str, Any] = {}
            if "get" in message:
                value = values.get(message["get"])
                answer["value"] = None if value is None else base64.b64encode(value).decode()
            elif "put" in message:
                values.put(message["put"], base64.b64decode(message["value"]))
            else:
                values.delete(message["delete"])
            link.send(answer)
    except OSError:
        return


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        values: _Values | _RemoteValues,
    ) -> None:
        super().__init__(address, handler)
        self.values = values

    def server_bind(self) -> None:
        # HTTPServer's method would resolve the machine's name, which may block.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def verify_request(self, request: object, client_address: Any) -> bool:
        """Return whether the client is a process of this account; other accounts of the machine get no answer."""
        return os.getuid() in _accounts(client_address, self.socket.getsockname())

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: a rank that is killed during a request is reported elsewhere."""


def _accounts(client: tuple[str, int], server: tuple[str, int]) -> list[int]:
    """Return whose connection leads from one IPv4 address and port to another, as the kernel says."""
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    ends = [_kernels_text(*client), _kernels_text(*server)]
    return [int(fields[7]) for line in lines if (fields := line.split())[1:3] == ends]


def _kernels_text(address: str, port: int) -> str:
    # The four bytes of an address are one number of this machine's byte order.
    return f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        value = self.server.values.get(self.path)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        if not 0 <= length <= _LARGEST_VALUE_BYTES:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        self.server.values.put(self.path, self.rfile.read(length))
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        self.server.values.delete(self.path)
        self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Log nothing: ranks poll every 10 ms."""

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)
