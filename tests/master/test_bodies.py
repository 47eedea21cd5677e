"""Bodies: as long as a call may have them, no slower than a bad line sends them, and with few values."""

from __future__ import annotations

import asyncio
import json

import pytest

from det_keras.errors import DetError
from det_keras.master import wire
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.server import bodies
from det_keras.master.server.bodies import BrokenOffError, TooLargeError, TooSlowError, read_body
from det_keras.master.wire import Message, decode_json, parse_message


class Sender:
    """What a server receives: pieces of a body, each after a pause, and the end of the connection."""

    def __init__(self, *pieces: bytes, pause_s: float = 0.0, is_whole: bool = True) -> None:
        self.left = list(pieces)
        self._pause_s = pause_s
        self._is_whole = is_whole

    async def __call__(self):
        await asyncio.sleep(self._pause_s)
        if not self.left:
            return {"type": "http.disconnect"}
        piece = self.left.pop(0)
        return {"type": "http.request", "body": piece, "more_body": bool(self.left) or not self._is_whole}


def read(sender: Sender, most_bytes: int = 100, length: int | None = None) -> bytes:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    return asyncio.run(read_body({"type": "http", "headers": headers}, sender, most_bytes))


def test_body_arrives_in_pieces():
    assert read(Sender(b"ab", b"", b"cd")) == b"abcd"


def test_body_that_is_too_long_is_refused_before_it_is_read():
    sender = Sender(b"x")
    with pytest.raises(TooLargeError, match=r"may have 64 KiB here, received 65537 bytes"):
        read(sender, 64 << 10, length=65537)
    assert sender.left


def test_body_of_unknown_length_is_read_no_further_than_it_may_be_long():
    sender = Sender(*[b"x" * 60] * 9)
    with pytest.raises(TooLargeError):
        read(sender)
    assert len(sender.left) == 7


def test_body_that_breaks_off_is_a_refusal_and_no_fault():
    with pytest.raises(BrokenOffError):
        read(Sender(b"x", is_whole=False))


@pytest.fixture
def hurried(monkeypatch):
    """Bodies have a tenth of a second, and one more for each KiB."""
    monkeypatch.setattr(bodies, "_FIRST_S", 0.1)
    monkeypatch.setattr(bodies, "_BYTES_PER_S", 1 << 10)


def test_body_that_trickles_is_refused(hurried):
    with pytest.raises(TooSlowError, match="arrived too slowly"):
        read(Sender(*[b"x"] * 1000, pause_s=0.01), 10_000)


def test_long_body_may_take_longer(hurried):
    body = [b"x" * 512] * 10
    assert read(Sender(*body, pause_s=0.05), 10_000) == b"".join(body)


def test_client_that_stops_is_refused_however_fast_it_was(hurried, monkeypatch):
    monkeypatch.setattr(bodies, "_LONGEST_GAP_S", 0.2)
    with pytest.raises(TooSlowError):
        read(Sender(b"x" * 100_000, b"x", pause_s=0.5), 200_000)


MANY = wire._MOST_VALUES + 1


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(dict.fromkeys(map(str, range(MANY)), 0)),
        "[" + "0," * MANY + "0]",
        "[" + "{}," * (MANY // 2 + 1) + "{}]",
        '["' + '","' * (3 * MANY) + '"]',
    ],
    ids=["keys", "numbers", "objects", "texts"],
)
def test_body_with_too_many_values_is_refused_before_it_is_parsed(text, monkeypatch):
    monkeypatch.setattr(wire, "from_json", lambda _: pytest.fail("It was parsed."))
    with pytest.raises(InvalidArgumentError, match=r"may have 500,000 values"):
        decode_json(text.encode())


@pytest.mark.parametrize("text", [",[{" * MANY, '\\",{' * MANY, "\\\\" * MANY])
def test_commas_and_brackets_in_texts_are_no_values(text):
    assert decode_json(json.dumps({"a": text, "b": [1, 2]}).encode()) == {"a": text, "b": [1, 2]}


def test_body_with_many_problems_names_the_first_of_them():
    class Numbers(Message):
        numbers: list[int]

    with pytest.raises(DetError) as caught:
        parse_message(Numbers, b'{"numbers": [' + b'"x",' * 9_000 + b"1]}")
    assert len(str(caught.value)) < 5000
    assert "and 8980 more problems" in str(caught.value)


def test_body_without_a_login_may_have_64_kib(world):
    body = {"username": "x" * (64 << 10), "password": ""}
    answer = world.http.post("/api/v1/auth/login", json=body)
    assert answer.status_code == 413
    assert "64 KiB" in answer.json()["error"]["error"]


def test_ordinary_call_may_have_4_mib(world):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.patch("/api/v1/users/2", headers=headers, json={"displayName": "x" * (4 << 20)})
    assert answer.status_code == 413
    assert "4 MiB" in answer.json()["error"]["error"]
