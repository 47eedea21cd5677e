"""Calls to a master that comes and goes."""

from __future__ import annotations

import httpx
import pytest

from det_keras.client import Session
from det_keras.errors import MasterError, MasterUnavailableError


def session(*answers, **options):
    """Return a session whose master gives `answers` one after another, and the requests it got."""
    left = list(answers)
    seen = []

    def handle(request):
        seen.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return Session("http://m", "tok", transport=httpx.MockTransport(handle), **options), seen


def nested(status, text):
    return httpx.Response(status, json={"error": {"code": 5, "reason": "x", "error": text}})


OK = httpx.Response(200, json={"fine": True})


def test_user_and_task_tokens_travel_in_their_own_headers():
    client, seen = session(OK)
    client.get("/x")
    assert seen[0].headers["Authorization"] == "Bearer tok"
    client, seen = session(OK, is_task=True)
    client.get("/x")
    assert seen[0].headers["Grpc-Metadata-x-allocation-token"] == "Bearer tok"


@pytest.mark.parametrize(
    "first", [httpx.ConnectError("no"), httpx.Response(503), httpx.Response(502)], ids=str
)
def test_master_that_is_away_is_asked_again(first):
    client, seen = session(first, OK)
    assert client.post("/x", {}) == {"fine": True}
    assert len(seen) == 2


@pytest.mark.parametrize("status", [400, 401, 404, 409, 500, 501])
def test_refusals_are_not_repeated(status):
    client, seen = session(nested(status, "why"))
    with pytest.raises(MasterError, match="why") as caught:
        client.get("/x")
    assert caught.value.status == status
    assert len(seen) == 1


def test_patience_ends():
    client, _ = session(httpx.ConnectError("refused"), patience_s=0.3)
    with pytest.raises(MasterUnavailableError, match=r"http://m.*refused"):
        client.get("/x")


def test_call_that_must_not_run_twice_is_not_repeated_after_a_lost_answer():
    client, seen = session(httpx.ReadError("lost"), OK)
    with pytest.raises(MasterUnavailableError):
        client.post("/x", {}, repeatable=False)
    assert len(seen) == 1


@pytest.mark.parametrize("status", [502, 504])
def test_call_that_must_not_run_twice_is_not_repeated_after_a_proxy_got_no_answer(status):
    client, seen = session(httpx.Response(status), OK)
    with pytest.raises(MasterUnavailableError):
        client.post("/x", {}, repeatable=False)
    assert len(seen) == 1
    client, seen = session(httpx.Response(503), OK)
    assert client.post("/x", {}, repeatable=False) == {"fine": True}


def test_stream_yields_results_and_raises_its_error_line():
    lines = b'{"result": {"a": 1}}\n{"error": {"httpCode": 500, "message": "boom"}}\n'
    client, _ = session(httpx.Response(200, content=lines))
    stream = client.stream("/x")
    assert next(stream) == {"a": 1}
    with pytest.raises(MasterError, match="boom"):
        next(stream)


def test_unset_parameters_are_left_out_and_booleans_are_words():
    client, seen = session(OK)
    client.get("/x", params={"a": None, "b": True, "c": [1, 2]})
    assert str(seen[0].url) == "http://m/x?b=true&c=1&c=2"
