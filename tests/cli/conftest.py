"""A `det` to run, and a master of its own to run it against."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
import threading
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import forked_masters
import pytest

from det_keras.home import Home
from det_keras.launch.network import free_port
from det_keras.master import process

ROOT = Path(__file__).parents[2]
_NOT_OURS = ("DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_TASK_TYPE", "DET_KERAS_SLOTS")


@dataclass(frozen=True)
class Det:
    """Runs `det` with a data root and a working directory."""

    home: Path
    directory: Path
    variables: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
        return {**inherited, "PYTHONPATH": str(ROOT), "DET_KERAS_HOME": str(self.home), **self.variables}

    def start(self, *args: str, **options) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "det_keras.cli", *args],
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            **options,
        )

    def __call__(self, *args: str, input: str = "") -> subprocess.CompletedProcess[str]:  # noqa: A002
        return subprocess.run(
            [sys.executable, "-m", "det_keras.cli", *args],
            cwd=self.directory,
            env=self.environment(),
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def out(self, *args: str) -> str:
        """Return what a command prints; it has to succeed."""
        done = self(*args)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *args: str):
        return json.loads(self.out(*args, "--json"))

    def rest(self, path: str):
        """Ask the embedded master, without a process: for tests that ask again and again."""
        master = json.loads((self.home / "master.json").read_text())
        token = (self.home / "token").read_text().strip()
        request = urllib.request.Request(master["url"] + path, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def with_variables(self, **variables: str) -> Det:
        return Det(self.home, self.directory, {**self.variables, **variables})

    def write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path


@pytest.fixture
def det(own_home, tmp_path) -> Det:
    """`det` with a data root in which nothing was started."""
    return Det(own_home / "root", tmp_path)


class Stub:
    """A master that gives canned answers and remembers who asked for what."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {
            "/api/v1/me": {"user": {"username": "somebody"}},
            "/info": {"version": "0.38.1", "cluster_id": "c", "det_keras_version": "0"},
        }
        self.calls: list[tuple[str, str, str]] = []
        self.bodies: list[bytes] = []
        # What a proxy answers to every call in the place of the master; None for no proxy.
        self.status: int | None = None
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                stub.answer(self)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.bodies.append(request.rfile.read(int(request.headers.get("Content-Length") or 0)))
        path = request.path.partition("?")[0]
        self.calls.append((request.command, path, request.headers.get("Authorization", "")))
        found = self.answers.get(path)
        if callable(found):
            found = found()
        status = 200 if found is not None else 404
        if isinstance(found, tuple):
            status, found = found
        content = found if isinstance(found, bytes) else json.dumps(found or _NOT_FOUND).encode()
        request.send_response(self.status or status)
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            # As masters and proxies do.
            content = gzip.compress(content)
            request.send_header("Content-Encoding", "gzip")
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


_NOT_FOUND = {"error": {"code": 5, "reason": "NotFound", "error": "no such thing"}}


@pytest.fixture
def stub():
    stub = Stub()
    yield stub
    stub.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """`det` with a running master; tests of one module share it."""
    det = Det(tmp_path_factory.mktemp("cluster"), tmp_path_factory.mktemp("work"))
    home = Home(det.home)
    forked_masters.start(home, port=free_port("127.0.0.1"), slots=4)
    yield det
    process.stop(home, kill_tasks=True)
