"""Reports arrive in order, whatever the master does, and never stop training."""

from __future__ import annotations

import logging
import threading

import pytest

from det_keras.core.backend.report_queue import ReportQueue
from det_keras.errors import MasterError, MasterUnavailableError


def test_reports_keep_their_order_while_the_master_is_away():
    report_queue, sent, away = ReportQueue("t", retry_s=0.01), [], [5]

    def send(number):
        if away[0]:
            away[0] -= 1
            raise MasterUnavailableError("away")
        sent.append(number)

    for number in range(10):
        report_queue.put(f"report {number}", lambda number=number: send(number))
    report_queue.close()
    assert sent == list(range(10))


def test_refused_report_is_logged_and_the_next_goes_on(caplog):
    report_queue, sent = ReportQueue("t"), []

    def refuse():
        raise MasterError(400, "no such run")

    report_queue.put("first", refuse)
    report_queue.put("second", lambda: sent.append(2))
    with caplog.at_level(logging.WARNING):
        report_queue.close()
    assert sent == [2]
    assert "refused first, which is dropped: no such run" in caplog.text


def test_server_error_is_tried_again():
    report_queue, tries = ReportQueue("t", retry_s=0.01), []

    def send():
        tries.append(1)
        if len(tries) < 3:
            raise MasterError(500, "oops")

    report_queue.put("x", send)
    report_queue.close()
    assert len(tries) == 3


def test_what_a_determined_master_refuses_with_500_is_dropped_at_once():
    report_queue, tries, sent = ReportQueue("t", retry_s=100.0), [], []

    def send():
        tries.append(1)
        raise MasterError(500, "overwriting existing metric keys is not supported, conflicting key: loss")

    report_queue.put("first", send)
    report_queue.put("second", lambda: sent.append(2))
    report_queue.close()
    assert (len(tries), sent) == (1, [2])


@pytest.mark.parametrize(("status", "most"), [(500, 6), (501, 1)])
def test_report_that_a_master_always_fails_at_holds_nothing_back_for_long(status, most, caplog):
    report_queue, tries, sent = ReportQueue("t", retry_s=0.001), [], []

    def send():
        tries.append(1)
        # Reports that are put meanwhile do not shorten the pauses.
        report_queue.put("another", lambda: sent.append(len(tries)))
        raise MasterError(status, "the database is busy")

    report_queue.put("training metrics at batch 10", send)
    report_queue.close()
    assert len(tries) == most
    assert sent == [most] * most
    assert caplog.text.count("refused training metrics at batch 10, which is dropped: the database") == 1


def test_master_that_is_away_is_no_failure_of_the_report():
    report_queue, tries = ReportQueue("t", retry_s=0.001), []

    def send():
        tries.append(1)
        if len(tries) < 20:
            raise MasterUnavailableError("no upstream")

    report_queue.put("x", send)
    report_queue.close()
    assert len(tries) == 20


def test_fault_of_our_own_does_not_end_the_thread(caplog):
    report_queue, sent = ReportQueue("t"), []
    report_queue.put("broken", lambda: 1 / 0)
    report_queue.put("next", lambda: sent.append(1))
    with pytest.raises(MasterUnavailableError, match="1 report did not reach the master: broken"):
        report_queue.close()
    assert sent == [1]
    assert "ZeroDivisionError" in caplog.text


def test_newer_progress_replaces_waiting_progress_only():
    report_queue, sent, gate = ReportQueue("t"), [], threading.Event()
    report_queue.put("metrics", gate.wait)
    for number in range(5):
        report_queue.put("progress", lambda number=number: sent.append(number), replaces=True)
        report_queue.put("metrics", lambda number=number: sent.append(f"m{number}"))
    gate.set()
    report_queue.close()
    assert [item for item in sent if isinstance(item, str)] == [f"m{number}" for number in range(5)]
    assert [item for item in sent if isinstance(item, int)] == [4]


def put_metrics(report_queue, sent, count, *, values=1):
    for number in range(count):
        label = f"training metrics at batch {number}"
        report_queue.put(
            label, lambda number=number: sent.append([number]), body={"number": number}, values=values
        )


class Taker:
    """A master that takes reports together, and refuses some."""

    def __init__(self, sent, refuses=()):
        self.sent, self.refuses = sent, refuses

    def __call__(self, bodies):
        numbers = [body["number"] for body in bodies]
        self.sent.append(numbers)
        return {index: MasterError(400, "no") for index, one in enumerate(numbers) if one in self.refuses}


@pytest.mark.parametrize(("values", "longest"), [(1, 500), (1000, 20), (30_000, 1)])
def test_metrics_that_wait_are_sent_together_in_their_order(values, longest):
    sent, gate = [], threading.Event()
    report_queue = ReportQueue("t", send_together=Taker(sent))
    report_queue.put("first", gate.wait)
    put_metrics(report_queue, sent, 1200, values=values)
    report_queue.put("checkpoint", lambda: sent.append(["checkpoint"]))
    put_metrics(report_queue, sent, 3, values=values)
    gate.set()
    report_queue.close()
    assert [one for numbers in sent for one in numbers] == [*range(1200), "checkpoint", *range(3)]
    assert max(len(numbers) for numbers in sent) == longest
    assert len(sent) == -(-1200 // longest) + 1 + (1 if longest > 1 else 3)


def test_questions_between_metrics_that_were_asked_again_later_part_nothing():
    sent, gate = [], threading.Event()
    report_queue = ReportQueue("t", send_together=Taker(sent))
    report_queue.put("first", gate.wait)
    for number in range(10):
        report_queue.put("metrics", lambda: sent.append("alone"), body={"number": number})
        report_queue.put("question", lambda: sent.append("question"), replaces=True)
    gate.set()
    report_queue.close()
    assert sent == [[*range(10)], "question"]


def test_report_that_is_refused_among_others_is_named(caplog):
    sent, gate = [], threading.Event()
    report_queue = ReportQueue("t", send_together=Taker(sent, refuses={7}))
    report_queue.put("first", gate.wait)
    put_metrics(report_queue, sent, 10)
    gate.set()
    report_queue.close()
    assert sent == [[*range(10)]]
    assert caplog.text.count("The master refused training metrics at batch 7, which is dropped: no") == 1


def test_reports_that_were_not_stored_are_sent_again():
    """The master stored the others, of which some may not be sent twice."""
    sent, gate = [], threading.Event()

    def take(bodies):
        sent.append([body["number"] for body in bodies])
        return {2: MasterUnavailableError("busy"), 4: MasterError(500, "oops")}

    report_queue = ReportQueue("t", send_together=take)
    report_queue.put("first", gate.wait)
    put_metrics(report_queue, sent, 6)
    gate.set()
    report_queue.close()
    assert sent == [[0, 1, 2, 3, 4, 5], [2], [4]]


def test_call_that_takes_too_long_is_made_with_fewer_reports():
    sent, gate = [], threading.Event()

    def take(bodies):
        if len(bodies) > 100:
            raise MasterUnavailableError("no answer in time")
        sent.append([body["number"] for body in bodies])
        return {}

    report_queue = ReportQueue("t", send_together=take)
    report_queue.put("first", gate.wait)
    put_metrics(report_queue, sent, 500)
    gate.set()
    report_queue.close()
    assert [one for numbers in sent for one in numbers] == [*range(500)]
    assert {len(numbers) for numbers in sent} == {62, 63}


@pytest.mark.parametrize(
    ("error", "calls"), [(MasterError(501, "no"), 1), (MasterError(400, "no"), 3), (KeyError("failed"), 3)]
)
def test_master_that_does_not_take_them_together_gets_each_in_a_call(error, calls):
    sent, gate, asked = [], threading.Event(), []

    def refuse(bodies):
        asked.append(len(bodies))
        raise error

    report_queue = ReportQueue("t", send_together=refuse)
    report_queue.put("first", gate.wait)
    put_metrics(report_queue, sent, 1200)
    gate.set()
    report_queue.close()
    assert sent == [[number] for number in range(1200)]
    assert len(asked) == calls


def test_metrics_that_are_lost_together_are_each_named():
    def fail(bodies=None):
        raise MasterUnavailableError("gone")

    report_queue, gate = (
        ReportQueue("t", close_timeout_s=0.1, retry_s=0.02, send_together=fail),
        threading.Event(),
    )
    report_queue.put("first", gate.wait)
    for number in range(3):
        report_queue.put(f"metrics {number}", fail, body={"number": number})
    gate.set()
    with pytest.raises(MasterUnavailableError, match=r"3 reports .* metrics 0, metrics 1, metrics 2"):
        report_queue.close()


def test_many_reports_that_replace_each_other_cost_nothing_each():
    report_queue, sent, gate = ReportQueue("t"), [], threading.Event()
    report_queue.put("first", gate.wait)
    for number in range(50_000):
        report_queue.put("progress", lambda number=number: sent.append(number), replaces=True)
    # Nor do they pile up while the master is away.
    assert len(report_queue._waiting) < 2000
    gate.set()
    report_queue.close()
    assert sent == [49_999]


def test_flush_gives_up_on_a_master_that_stays_away(caplog):
    report_queue = ReportQueue("t", close_timeout_s=0.2, retry_s=0.02)

    def send():
        raise MasterUnavailableError("gone")

    report_queue.put("metrics", send)
    report_queue.flush()
    assert "Gave up sending metrics" in caplog.text


def test_what_was_not_delivered_is_named_once_at_the_end():
    report_queue = ReportQueue("t", close_timeout_s=0.1, retry_s=0.02)

    def send():
        raise MasterUnavailableError("gone")

    for label in ("checkpoint a", "metrics"):
        report_queue.put(label, send)
    with pytest.raises(
        MasterUnavailableError, match="2 reports did not reach the master: checkpoint a, metrics"
    ):
        report_queue.close()
    report_queue.close()


def test_refused_report_is_no_undelivered_one():
    report_queue = ReportQueue("t")

    def send():
        raise MasterError(400, "no")

    report_queue.put("metrics", send)
    report_queue.close()
