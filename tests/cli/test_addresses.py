"""Addresses that lead to no master: one sentence says what answers there, and nobody is asked to log in."""

from __future__ import annotations

import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from master.certificates import make_certificate

from det_keras.client import Session
from det_keras.connection.masters import find_url
from det_keras.connection.settings import Settings
from det_keras.errors import DetError, MasterUnavailableError
from det_keras.home import Home
from det_keras.launch.network import free_port

PAGE = b"<html><head><title>\nWelcome to   nginx!</title></head><body>hello</body></html>"


@pytest.fixture
def serve():
    """Start servers that give one answer, and return their address."""
    servers = []

    def start(status=200, kind="text/html", content=PAGE, certificate=None):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def said(det, address):
    done = det.with_variables(DET_MASTER=address)("experiment", "list")
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "Unauthenticated" not in done.stderr
    assert "<" not in done.stderr
    return done.stderr


@pytest.mark.process
def test_what_answers_at_a_wrong_address_is_said(det, serve, tmp_path):
    port = free_port("127.0.0.1")
    assert f"nothing listens on port {port} of '127.0.0.1'" in said(det, f"127.0.0.1:{port}")
    assert "is not a master: it says 200 OK with the page 'Welcome to nginx!'" in said(det, serve())
    assert "it says 404 Not Found with the page" in said(det, serve(404))
    assert "it says 403 Forbidden with the page" in said(det, serve(403))
    assert "a proxy says 502 Bad Gateway" in said(det, serve(502))
    assert "is not a master of det_keras or Determined" in said(
        det, serve(200, "application/json", b'{"a": 1}')
    )
    assert "a page of type 'text/plain'" in said(det, serve(200, "text/plain", b"hello"))
    assert "it does not speak https there" in said(det, f"https://{serve()}")
    certificate = make_certificate(tmp_path, "localhost", "IP:127.0.0.1")
    assert "as a server does that speaks only https" in said(det, f"http://{serve(certificate=certificate)}")
    assert "its certificate is not trusted" in said(det, f"https://{serve(certificate=certificate)}")


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (httpx.ConnectError("[Errno -2] Name or service not known"), "there is no host 'nowhere.invalid'"),
        (httpx.ConnectError("[Errno -3] Temporary failure in name resolution"), "there is no host"),
        (httpx.ReadTimeout("timed out"), "it did not answer in time"),
        (httpx.ReadError(""), "ReadError"),
    ],
)
def test_errors_of_a_connection_are_told_in_words(error, meaning):
    def fail(request):
        raise error

    session = Session("http://nowhere.invalid", transport=httpx.MockTransport(fail), patience_s=0)
    with pytest.raises(MasterUnavailableError, match=meaning):
        session.get("/info")


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (" http://gpu-box:80/ ", "http://gpu-box:80"),
        ("http://gpu-box//", "http://gpu-box"),
        ("HTTP://GPU-Box:8080", "HTTP://GPU-Box:8080"),
        ("https://host/det", "https://host/det"),
        ("gpu-box", "http://gpu-box:8080"),
        ("[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses_that_lead_to_a_master(given, address, tmp_path):
    assert find_url(Settings(Home(tmp_path), master=given)) == address


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("ftp://host", "no master behind ftp://"),
        ("http://host:99999", "Port out of range"),
        ("http://host:port", "Port could not be cast"),
        ("http://", "names no host"),
        ("my master", "names no host"),
        ("http://ann:secret@host", "contains a user"),
    ],
)
def test_what_is_no_address_is_refused(given, reason, tmp_path):
    with pytest.raises(DetError, match=reason) as caught:
        find_url(Settings(Home(tmp_path), master=given))
    assert "secret" not in str(caught.value)


@pytest.mark.process
def test_waiting_survives_a_proxy_without_a_master(det, stub):
    path = "/api/v1/experiments/1"
    stub.answers[path] = {"experiment": {"id": 1, "state": "STATE_RUNNING", "config": {"a": 1}}}
    det = det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="x")
    waiting = det.start("experiment", "wait", "1")
    until = time.monotonic() + 60
    while not any(call[1] == path for call in stub.calls):
        assert time.monotonic() < until
        time.sleep(0.05)
    stub.status = 502
    seen = len(stub.calls)
    # Longer than one call is repeated.
    while len(stub.calls) < seen + 8:
        assert waiting.poll() is None, waiting.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    stub.answers[path] = {"experiment": {"id": 1, "state": "STATE_COMPLETED", "config": {"a": 1}}}
    stub.status = None
    assert waiting.communicate(timeout=60) == ("Experiment 1 is COMPLETED\n", "")


def test_last_try_is_at_the_end_of_the_patience():
    answers = []

    def answer(request):
        answers.append(time.monotonic())
        return httpx.Response(200, json={}) if time.monotonic() - answers[0] > 0.95 else httpx.Response(503)

    assert Session("http://m", transport=httpx.MockTransport(answer), patience_s=1.0).get("/x") == {}
