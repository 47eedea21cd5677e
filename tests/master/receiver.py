"""A receiver of webhooks, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from master.fakes import eventually


class Receiver:
    """Remembers what it receives, and answers as the test says."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        #: What it answers: a status, or a function of the handler.
        self.answer: int | Callable[[BaseHTTPRequestHandler], None] = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.requests.append((self.path, dict(self.headers), body))
                if callable(receiver.answer):
                    receiver.answer(self)
                    return
                self.send_response(receiver.answer)
                self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
                self.wfile.write(b"heard")

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(body) for _, _, body in self.requests]

    def wait(self, count: int) -> list[Any]:
        """Return the bodies once there are so many."""
        eventually(lambda: len(self.requests) >= count)
        return self.bodies

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
