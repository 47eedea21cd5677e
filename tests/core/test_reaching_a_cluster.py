"""Sessions with masters elsewhere: behind a proxy, and with a certificate of another name."""

from __future__ import annotations

import http.server
import json
import shutil
import ssl
import threading
from collections.abc import Iterator

import pytest
from master.test_tls import make_certificate

from det_keras.client import Session
from det_keras.errors import MasterUnavailableError

NAME = "cluster.example"


class Answering(http.server.BaseHTTPRequestHandler):
    """Answers each request with its own target, as a proxy and as a master."""

    def do_GET(self):
        body = json.dumps({"target": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    yield server, thread
    server.shutdown()
    server.server_close()


def url_of(server, scheme="http"):
    return f"{scheme}://127.0.0.1:{server.server_address[1]}"


@pytest.mark.parametrize(("name", "is_trusted"), [(NAME, True), ("other.example", False), (None, False)])
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make certificates")
def test_the_certificate_may_have_another_name_if_it_is_given(server, tmp_path, name, is_trusted):
    listening, thread = server
    cert, key = make_certificate(tmp_path, "cluster", f"DNS:{NAME}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    thread.start()

    with Session(url_of(listening, "https"), cert_file=cert, cert_name=name, patience_s=0.0) as session:
        if is_trusted:
            assert session.get("/info") == {"target": "/info"}
        else:
            with pytest.raises(MasterUnavailableError, match="certificate verify failed"):
                session.get("/info")


def test_the_proxy_of_the_environment_leads_to_a_cluster(server, monkeypatch):
    listening, thread = server
    thread.start()
    for variable in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(variable, url_of(listening))
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)

    with Session(f"http://{NAME}:8080", patience_s=0.0) as session:
        assert session.get("/info") == {"target": f"http://{NAME}:8080/info"}


def test_no_proxy_leads_to_a_master_of_this_machine(server, monkeypatch):
    listening, thread = server
    thread.start()
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")

    with Session(url_of(listening), patience_s=0.0) as session:
        assert session.get("/info") == {"target": "/info"}
