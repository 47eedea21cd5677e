"""What another account of this machine can do to a job: nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable

import pytest

from det_keras.workers.heartbeat import Heartbeats, format_beat, socket_address
from det_keras.workers.rendezvous import Rendezvous

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account")

NOBODY = 65534


def as_nobody(act: Callable[[], bytes]) -> bytes:
    """Return what `act` returns in a process of another account.

    It is forked: that account may not be allowed to read the files of this one.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(writing, act())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading, "rb") as found:
        return found.read()


def test_rendezvous_answers_its_own_account_alone():
    with Rendezvous() as rendezvous:
        rendezvous.serve()

        def ask(address: str = "127.0.0.1", port: int = 0) -> bytes:
            with socket.socket() as client:
                client.settimeout(10)
                client.bind((address, port))
                client.connect(("127.0.0.1", rendezvous.port))
                client.sendall(b"PUT /global/0 HTTP/1.0\r\nContent-Length: 3\r\n\r\nbad")
                return b"answer: " + client.recv(100)

        assert ask().startswith(b"answer: HTTP/1.0 200")
        assert as_nobody(ask) == b"answer: "
        with socket.create_connection(("127.0.0.1", rendezvous.port)) as own:
            # The same port of another address of this machine.
            assert as_nobody(lambda: ask("127.0.0.2", own.getsockname()[1])) == b"answer: "


def test_heartbeats_of_another_account_do_not_keep_a_stopped_rank_alive():
    heartbeats = Heartbeats(patience_s=0.001)
    where = socket_address(heartbeats.address)
    with subprocess.Popen(["sleep", "600"]) as rank:
        rank.send_signal(signal.SIGSTOP)

        def beat() -> bytes:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.sendto(format_beat(0, rank.pid), where)
            return b"sent"

        def check() -> int | None:
            time.sleep(heartbeats.due_in_s)
            return heartbeats.hanging({0: rank.pid})

        own = [beat() and check() for _ in range(10)]
        of_another = [as_nobody(beat) and check() for _ in range(10)]
        rank.kill()
    heartbeats.close()
    assert own == [None] * 10
    assert 0 in of_another
