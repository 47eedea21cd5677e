"""Masters with few files, and clients that occupy what they can: the others are served all the same."""

from __future__ import annotations

import collections
import contextlib
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator

import httpx
import psutil
import pytest

from det_keras.home import Home
from det_keras.launch.importable import importable
from det_keras.launch.network import free_port
from det_keras.master import process
from det_keras.protocol.values import hash_password
from master.certificates import make_certificate
from master.fakes import Client, eventually

pytestmark = pytest.mark.process

FILES = 64


class SmallMaster:
    """A master that may have as many files open as `ulimit` says."""

    def __init__(self, home: Home, *options: str, soft: int = FILES, hard: int = FILES) -> None:
        self.home = home
        self.port = free_port("127.0.0.1")
        limits = f"ulimit -Sn {soft}; ulimit -Hn {hard}; exec "
        command = f'{limits}"{sys.executable}" -m det_keras.master --home "{home.root}" --port {self.port} --slots 1'
        with home.master_log.open("ab") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", " ".join([command, *options])],
                env=importable(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(lambda: process.find(home) or self._process.poll() is not None)
        self.url = process.find(home).url
        verify = ssl.create_default_context()
        if "--tls-cert" in options:
            verify.load_verify_locations(options[options.index("--tls-cert") + 1])
        self.http = httpx.Client(base_url=self.url, timeout=60.0, trust_env=False, verify=verify)
        self.client = Client(self.http, home.token_file.read_text())

    def connect(self, text: bytes = b"") -> socket.socket:
        """Open a connection of somebody who then says nothing more."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        connection.sendall(text)
        return connection

    def close(self) -> None:
        self.http.close()
        process.stop(self.home, kill_tasks=True)
        self._process.wait()


@pytest.fixture
def start(used_home) -> Iterator:
    """Return a function that starts a master, which is stopped in the end."""
    with contextlib.ExitStack() as stack:

        def start_master(*options: str, **limits: int) -> SmallMaster:
            master = SmallMaster(used_home, *options, **limits)
            stack.callback(master.close)
            return master

        yield start_master


def log_bytes(master: SmallMaster) -> int:
    return master.home.master_log.stat().st_size


@pytest.mark.parametrize(
    "text", [b"", b"GET /info HTTP/1.1\r\nHost: x\r\nX-A: "], ids=["silent", "half a head"]
)
def test_connections_without_a_request_keep_nobody_out(start, text):
    master = start()
    before = log_bytes(master)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(master.connect(text)) for _ in range(3 * FILES)]
        for _ in range(20):
            # A new connection for each call.
            headers = {"Authorization": f"Bearer {master.client.token}"}
            assert httpx.get(
                f"{master.url}/api/v1/me", headers=headers, timeout=60, trust_env=False
            ).is_success
        assert psutil.Process(process.find(master.home).pid).num_fds() < FILES
        # Those that did not give way are closed when their time is over.
        for stranger in strangers:
            with contextlib.suppress(ConnectionResetError):
                assert stranger.recv(100) == b""
    assert log_bytes(master) - before < 2000


def test_many_ordinary_clients_of_a_small_master_are_served_or_asked_to_come_again(start):
    master = start()
    before = log_bytes(master)
    answers: collections.Counter[tuple[int, str | None]] = collections.Counter()
    headers = {"Authorization": f"Bearer {master.client.token}"}

    def work() -> None:
        for path in ("/info", "/api/v1/me", "/api/v1/experiments") * 4:
            # A connection that was idle may have been closed: each call has its own.
            connection = http.client.HTTPConnection("127.0.0.1", master.port, timeout=60)
            with contextlib.closing(connection):
                connection.request("GET", path, headers=headers)
                answer = connection.getresponse()
                answers[answer.status, answer.getheader("Retry-After")] += 1

    threads = [threading.Thread(target=work) for _ in range(2 * FILES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(answers) <= {(200, None), (503, "1")}
    assert answers[200, None] > answers[503, "1"]
    assert log_bytes(master) - before < 2000
    assert master.client.get("/api/v1/me")


def test_tasks_keep_the_limit_that_the_master_was_started_with(start):
    master = start(soft=256, hard=2048)
    running = psutil.Process(process.find(master.home).pid)
    assert running.rlimit(psutil.RLIMIT_NOFILE) == (2048, 2048)
    config = (
        "entrypoint: sh -c 'echo limit $(ulimit -Sn) $(ulimit -Hn)'\nsearcher: {name: single, metric: x}\n"
    )
    experiment_id = master.client.create(config=config)
    trial = master.client.trials(experiment_id)[0]

    def printed() -> bool:
        answer = master.http.get(
            f"/api/v1/trials/{trial['id']}/logs", headers={"Authorization": f"Bearer {master.client.token}"}
        )
        return "limit 256 2048" in answer.text

    eventually(printed)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_unfinished_handshakes_keep_nobody_out(start, tmp_path):
    names = ("IP:127.0.0.1", f"DNS:{socket.gethostname()}")
    cert, key = make_certificate(tmp_path, "front", *names)
    master = start("--tls-cert", str(cert), "--tls-key", str(key))
    with contextlib.ExitStack() as stack:
        for _ in range(2 * FILES):
            stack.enter_context(master.connect())
        assert master.client.get("/api/v1/me")


def test_idle_client_finds_its_connection_again(shared):
    connection = http.client.HTTPConnection(httpx.URL(shared.running.url).netloc.decode(), timeout=60)
    with contextlib.closing(connection):
        for _ in range(3):
            connection.request("GET", "/info")
            answer = connection.getresponse()
            answer.read()
            assert not answer.will_close
            own = connection.sock.getsockname()
    assert own


def test_upload_that_breaks_off_and_bytes_that_are_no_request_leave_nothing_in_the_log(shared):
    before = shared.home.master_log.read_text()
    token = shared.client.token
    for head in (
        "POST /api/v1/auth/login HTTP/1.1\r\nHost: x\r\n",
        f"POST /api/v1/experiments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n",
        "no request\r\n",
    ):
        with socket.create_connection(tuple(_address(shared.running.url)), timeout=60) as connection:
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n{{".encode())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1000)
    for _ in range(3):
        shared.client.get("/api/v1/me")
    assert shared.home.master_log.read_text() == before


def _address(url: str) -> tuple[str, int]:
    parsed = httpx.URL(url)
    assert parsed.port is not None
    return parsed.host, parsed.port


def test_wrong_passwords_hold_up_no_other_call_and_end_in_a_wait(shared):
    def log_in(password: str) -> httpx.Response:
        body = {"username": "determined", "password": hash_password(password), "isHashed": True}
        return shared.http.post("/api/v1/auth/login", json=body)

    answers: list[httpx.Response] = []
    threads = [
        threading.Thread(target=lambda number=number: answers.append(log_in(f"wrong {number}")))
        for number in range(30)
    ]
    memory = psutil.Process(shared.running.pid).memory_info().rss
    for thread in threads:
        thread.start()
    for _ in range(10):
        assert shared.client.get("/api/v1/me")
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {401, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(int(answer.headers["Retry-After"]) >= 1 for answer in refused)
    assert psutil.Process(shared.running.pid).memory_info().rss - memory < 400 << 20
    assert any("Try again in" in answer.json()["error"]["error"] for answer in refused)
    eventually(lambda: log_in(shared.home.password_file.read_text()).status_code == 200)
