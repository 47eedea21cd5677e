"""The rendezvous of one job's processes: a store of small values over HTTP, on loopback only.

Horovod's processes publish their addresses with ``PUT /scope/rank``, poll for those of the others with ``GET``
until they are there, and ``DELETE`` their own once all are connected. Horovod's own server for this listens on
every interface of the machine, without authentication. Ours listens on 127.0.0.1 and needs neither Horovod nor
TensorFlow in the launcher.

Source: ``horovod/common/gloo/http_store.cc`` and ``gloo_context.cc`` of Horovod 0.28.1.
"""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

__all__ = ["LOOPBACK", "Rendezvous"]

LOOPBACK = "127.0.0.1"

# A silent client blocks one thread, not the job.
_REQUEST_TIMEOUT_S = 10
# An address is some hundred bytes long for each peer.
_LARGEST_VALUE_BYTES = 1 << 20


class Rendezvous:
    """A store that listens from the start and answers from `serve` on.

    A process must not have threads yet when it forks, so the serving thread starts only after the last fork. Until
    `serve`, requests wait in the socket's queue.

    Attributes:
        port: the port on which it listens.
    """

    def __init__(self) -> None:
        self._server = _Server((LOOPBACK, 0), _Handler)
        self._thread: threading.Thread | None = None
        self.port: int = self._server.server_address[1]

    def serve(self) -> None:
        """Answer requests on a separate thread."""
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        # Each request, on its own thread, makes a single dict operation, which needs no lock.
        self.values: dict[str, bytes] = {}

    def server_bind(self) -> None:
        # HTTPServer's method would resolve the machine's name, which may block.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = LOOPBACK, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Log nothing: a rank that is killed during a request is reported elsewhere."""


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
        self.server.values[self.path] = self.rfile.read(length)
        self._answer(HTTPStatus.OK)

    def do_DELETE(self) -> None:
        self.server.values.pop(self.path, None)
        self._answer(HTTPStatus.OK)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Log nothing: ranks poll every 10 ms."""

    def _answer(self, status: HTTPStatus, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)
