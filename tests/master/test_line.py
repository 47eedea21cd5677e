"""Few calls are worked on at a time, in the order in which they came; those of running trials do not wait."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Iterator

import pytest

from det_keras.master.accounts.auth import Caller
from det_keras.master.server.admission import Admission, Place
from det_keras.master.server.capacity import Capacity
from det_keras.master.server.line import Line

USER = Caller(1, "bob", False, "bob")
TASK = Caller(1, "bob", True, "hash", "1.1")
LIST = {"method": "GET", "path": "/api/v1/experiments"}
REPORT = {"method": "POST", "path": "/api/v1/trials/1/metrics"}


async def settled() -> None:
    """Let everything run that can run."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_calls_are_worked_on_in_their_order():
    async def run() -> list[int]:
        line, begun = Line(2, longest_s=60.0), []

        async def work(number: int, end: asyncio.Event) -> None:
            turn = line.turn()
            await turn.take()
            begun.append(number)
            await end.wait()
            turn.leave()

        ends = [asyncio.Event() for _ in range(5)]
        tasks = [asyncio.create_task(work(number, end)) for number, end in enumerate(ends)]
        await settled()
        assert begun == [0, 1]
        ends[1].set()
        await settled()
        assert begun == [0, 1, 2]
        for end in ends:
            end.set()
        await asyncio.gather(*tasks)
        return begun

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_long_call_lets_the_next_begin():
    async def run() -> None:
        line = Line(1, longest_s=0.01)
        first, second = line.turn(), line.turn()
        await first.take()
        await asyncio.wait_for(second.take(), 10)
        # It has no place any more, so its end frees none.
        first.leave()
        third = asyncio.create_task(Line.turn(line).take())
        await asyncio.wait_for(third, 10)

    asyncio.run(run())


def test_turn_is_taken_and_left_once():
    async def run() -> None:
        line = Line(1, longest_s=60.0)
        turn, other = line.turn(), line.turn()
        await turn.take()
        await turn.take()
        turn.leave()
        turn.leave()
        await other.take()
        waiting = asyncio.create_task(turn.take())
        await settled()
        assert not waiting.done()
        other.leave()
        await waiting

    asyncio.run(run())


def test_call_that_is_cancelled_in_line_keeps_no_place():
    async def run() -> None:
        line = Line(1, longest_s=60.0)
        turn = line.turn()
        await turn.take()
        waiting = asyncio.create_task(line.turn().take())
        await settled()
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        turn.leave()
        await asyncio.wait_for(line.turn().take(), 10)

    asyncio.run(run())


@contextlib.contextmanager
def occupied(admission: Admission, caller: Caller | None) -> Iterator[asyncio.Task[None]]:
    """Let calls of a caller wait in line; yield the one that waits longest."""
    tasks = [asyncio.ensure_future(admission.line_up(Place(caller, ""), LIST)) for _ in range(20)]
    try:
        yield tasks[-1]
    finally:
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize(
    ("others", "caller", "call"),
    [
        (USER, TASK, LIST),
        (USER, TASK, REPORT),
        (USER, USER, REPORT),
        (USER, USER, {**REPORT, "path": REPORT["path"] + "/together"}),
        (None, USER, LIST),
    ],
)
def test_nobody_waits_behind_the_calls_of_others(others, caller, call):
    async def run() -> None:
        admission = Admission(Capacity.of(1024))
        with occupied(admission, others) as last:
            await settled()
            assert not last.done()
            await asyncio.wait_for(admission.line_up(Place(caller, ""), call), 0.1)
            assert not last.done()

    asyncio.run(run())


@pytest.mark.parametrize("leave", [Admission.open_stream, lambda _, place: place.leave()])
def test_stream_and_answered_call_let_the_next_begin(leave):
    async def run() -> None:
        admission = Admission(Capacity.of(1024))
        places = [Place(USER, "") for _ in range(3)]
        await admission.line_up(places[0], LIST)
        await admission.line_up(places[1], LIST)
        third = asyncio.ensure_future(admission.line_up(places[2], LIST))
        await settled()
        assert not third.done()
        leave(admission, places[0])
        await settled()
        assert third.done()

    asyncio.run(run())


def test_upload_lets_others_begin_until_its_body_has_arrived():
    async def run() -> None:
        admission = Admission(dataclasses.replace(Capacity.of(1024)))
        arriving: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        places = [Place(USER, "") for _ in range(3)]
        receive = admission.count_upload(places[0], arriving.get)
        for place in places[:2]:
            await admission.line_up(place, LIST)
        body = asyncio.ensure_future(receive())
        await settled()
        # The place of the upload.
        await asyncio.wait_for(admission.line_up(places[2], LIST), 0.1)
        arriving.put_nowait({"type": "http.request", "body": b"{}", "more_body": False})
        await settled()
        assert not body.done()
        places[1].leave()
        await asyncio.wait_for(body, 10)

    asyncio.run(run())
