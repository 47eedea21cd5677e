"""Reports arrive in order, whatever the master does, and never stop training."""

from __future__ import annotations

import logging
import threading

from det_keras.core.backend.outbox import Outbox
from det_keras.errors import MasterError, MasterUnavailableError


def test_reports_keep_their_order_while_the_master_is_away():
    outbox, sent, away = Outbox("t", retry_s=0.01), [], [5]

    def send(number):
        if away[0]:
            away[0] -= 1
            raise MasterUnavailableError("away")
        sent.append(number)

    for number in range(10):
        outbox.put(f"report {number}", lambda number=number: send(number))
    outbox.close()
    assert sent == list(range(10))


def test_refused_report_is_logged_and_the_next_goes_on(caplog):
    outbox, sent = Outbox("t"), []

    def refuse():
        raise MasterError(400, "no such run")

    outbox.put("first", refuse)
    outbox.put("second", lambda: sent.append(2))
    with caplog.at_level(logging.ERROR):
        outbox.close()
    assert sent == [2]
    assert "refused first: no such run" in caplog.text


def test_server_error_is_tried_again():
    outbox, tries = Outbox("t", retry_s=0.01), []

    def send():
        tries.append(1)
        if len(tries) < 3:
            raise MasterError(500, "oops")

    outbox.put("x", send)
    outbox.close()
    assert len(tries) == 3


def test_fault_of_our_own_does_not_end_the_thread(caplog):
    outbox, sent = Outbox("t"), []
    outbox.put("broken", lambda: 1 / 0)
    outbox.put("next", lambda: sent.append(1))
    outbox.close()
    assert sent == [1]
    assert "ZeroDivisionError" in caplog.text


def test_newer_progress_replaces_waiting_progress_only():
    outbox, sent, gate = Outbox("t"), [], threading.Event()
    outbox.put("metrics", gate.wait)
    for number in range(5):
        outbox.put("progress", lambda number=number: sent.append(number), replaces=True)
        outbox.put("metrics", lambda number=number: sent.append(f"m{number}"))
    gate.set()
    outbox.close()
    assert [item for item in sent if isinstance(item, str)] == [f"m{number}" for number in range(5)]
    assert [item for item in sent if isinstance(item, int)] == [4]


def test_flush_gives_up_on_a_master_that_stays_away(caplog):
    outbox = Outbox("t", farewell_s=0.2, retry_s=0.02)

    def send():
        raise MasterUnavailableError("gone")

    outbox.put("metrics", send)
    outbox.flush()
    assert "Gave up sending metrics" in caplog.text
