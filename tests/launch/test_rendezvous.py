"""Where ranks find each other: plain HTTP, as Horovod's processes speak it."""

from __future__ import annotations

import http.client
import socket

import psutil
import pytest

from det_keras.workers.rendezvous import Rendezvous


@pytest.fixture
def rendezvous():
    with Rendezvous() as one:
        one.serve()
        yield one


def ask(rendezvous: Rendezvous, method: str, path: str, value: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", rendezvous.port, timeout=10)
    try:
        connection.request(method, path, value)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_an_address_is_missing_until_it_is_put_and_after_it_is_deleted(rendezvous):
    assert ask(rendezvous, "GET", "/global/0")[0] == 404
    assert ask(rendezvous, "PUT", "/global/0", b"\x00address\xff") == (200, b"")
    assert ask(rendezvous, "GET", "/global/0") == (200, b"\x00address\xff")
    assert ask(rendezvous, "GET", "/global/1")[0] == 404
    assert ask(rendezvous, "DELETE", "/global/0")[0] == 200
    assert ask(rendezvous, "GET", "/global/0")[0] == 404


def test_scopes_are_apart(rendezvous):
    ask(rendezvous, "PUT", "/global/0", b"one")
    assert ask(rendezvous, "GET", "/local_localhost/0")[0] == 404


def test_deleting_what_is_not_there_is_no_error(rendezvous):
    assert ask(rendezvous, "DELETE", "/cross_0/0")[0] == 200


def test_a_value_that_is_no_address_is_refused(rendezvous):
    connection = http.client.HTTPConnection("127.0.0.1", rendezvous.port, timeout=10)
    # The length alone: the answer comes before the body is read, and sending that would be a race with the close.
    connection.putrequest("PUT", "/global/0")
    connection.putheader("Content-Length", str(2 << 20))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert ask(rendezvous, "GET", "/global/0")[0] == 404


def test_it_listens_on_loopback_only(rendezvous):
    ours = [one for one in psutil.Process().net_connections("inet") if one.laddr.port == rendezvous.port]
    assert {one.laddr.ip for one in ours} == {"127.0.0.1"}


def test_who_asks_early_is_answered_later():
    with Rendezvous() as rendezvous:
        early = socket.create_connection(("127.0.0.1", rendezvous.port), timeout=10)
        early.sendall(b"GET /global/0 HTTP/1.1\r\n\r\n")
        rendezvous.serve()
        assert early.recv(100).startswith(b"HTTP/1.0 404")
        early.close()


def test_a_silent_client_holds_up_nobody(rendezvous):
    with socket.create_connection(("127.0.0.1", rendezvous.port), timeout=10):
        assert ask(rendezvous, "GET", "/global/0")[0] == 404
