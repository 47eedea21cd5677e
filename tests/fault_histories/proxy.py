"""An HTTP proxy between the master and everything that calls it, which loses and doubles requests.

- ``request lost``: the connection is closed before the master gets the request.
- ``answer lost``: the master handles the request, and the connection is closed without an answer.
- ``bad gateway``: the master handles the request, and the answer is a 502 in place of the master's.
- ``request doubled``: the master gets the request twice, one after the other; the second answer is passed on.
- ``request doubled at once``: the same, both at the same time.

A request is doubled only if `det_keras.client` may send it twice too: not those that create something new each time.
Requests that only read are not doubled.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Proxy"]

# Calls that create something new each time: the client sends them once.
_ONCE = re.compile(r"/api/v1/(experiments|experiments/continue|commands|trials)/?")
# A new number of a run each time. The client takes the answer of its last call; two at once have no last one.
_IN_ORDER = re.compile(r"/api/v1/trials/\d+/start")
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
# Longer than a long poll.
_ANSWER_S = 100.0


@dataclass(frozen=True)
class _Request:
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def _place(self) -> str:
        return self.path.partition("?")[0]

    @property
    def is_repeatable(self) -> bool:
        return self.method != "GET" and not (self.method == "POST" and _ONCE.fullmatch(self._place))

    @property
    def needs_order(self) -> bool:
        return _IN_ORDER.fullmatch(self._place) is not None


@dataclass(frozen=True)
class _Answer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Proxy:
    """The proxy; it listens from its creation until `close`.

    Args:
        faults: what happens to requests, by their number.
    """

    def __init__(self, faults: Mapping[int, str]) -> None:
        self._faults = faults
        self._is_failing = True
        self._changed = threading.Condition()
        #: Port of the master; None while there is none.
        self.target: int | None = None
        #: How many requests arrived.
        self.requests = 0
        #: The faults that happened.
        self.counts: Counter[str] = Counter()
        #: Answers with a status of 500 and more, other than 503.
        self.errors: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        """The address for clients and trials."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wait_for_requests(self, count: int, give_up: Callable[[], bool]) -> bool:
        """Wait until `count` more requests arrived; return False if `give_up` says so before."""
        with self._changed:
            goal = self.requests + count
            while self.requests < goal:
                if give_up():
                    return False
                self._changed.wait(0.1)
        return True

    def heal(self) -> None:
        """Lose and double nothing any more."""
        self._is_failing = False

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def _next_fault(self) -> str | None:
        with self._changed:
            number = self.requests
            self.requests += 1
            self._changed.notify_all()
        return self._faults.get(number) if self._is_failing else None

    def answer(self, request: _Request) -> _Answer | None:
        """Pass a request on; return the answer, None to close the connection."""
        fault = self._next_fault()
        if fault in ("request doubled", "request doubled at once") and not request.is_repeatable:
            fault = None
        if fault is not None:
            self.counts[fault] += 1
        if fault == "request lost":
            return None
        try:
            if fault == "request doubled at once" and not request.needs_order:
                with ThreadPoolExecutor(2) as pool:
                    answers = [*pool.map(self._forward, [request, request])]
                return answers[1]
            answer = self._forward(request)
            if fault is not None and fault.startswith("request doubled"):
                answer = self._forward(request)
        except (OSError, http.client.HTTPException):
            return None
        if fault == "answer lost":
            return None
        return _Answer(502, [], b"") if fault == "bad gateway" else answer

    def _forward(self, request: _Request) -> _Answer:
        if self.target is None:
            raise ConnectionRefusedError
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=_ANSWER_S)
        try:
            connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers:
                if name.lower() not in _HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(request.body)))
            connection.endheaders(request.body)
            response = connection.getresponse()
            answer = _Answer(response.status, response.getheaders(), response.read())
        finally:
            connection.close()
        if answer.status >= 500 and answer.status != 503:
            self.errors.append(f"{request.method} {request.path}: {answer.status} {answer.body[:300]!r}")
        return answer

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # Otherwise the answer waits 40 ms for the acknowledgement of its headers.
            wbufsize = -1
            disable_nagle_algorithm = True

            def _pass_on(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length)
                answer = proxy.answer(_Request(self.command, self.path, self.headers.items(), body))
                if answer is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response_only(answer.status)
                for name, value in answer.headers:
                    if name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815 - names of the base class

            def handle(self) -> None:
                # The caller may be killed, or close the connection.
                with contextlib.suppress(OSError):
                    super().handle()

            def finish(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    super().finish()

            def log_message(self, *_: Any) -> None:
                return

        return Handler
