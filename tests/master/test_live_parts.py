"""What changed of the parts of a live page."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.master.web.live_parts import MOST_PARTS, changes
from master.fakes import SINGLE

PIECES = st.lists(st.sampled_from(["a,", "b,", "<p>", "0.25,", "x", "äö,", "]", "null,", "\n"]), max_size=60)


def joined(before: str, made: list[str | list[int]]) -> str:
    return "".join(one if isinstance(one, str) else before[slice(*one)] for one in made)


def ask(world, *parts: dict[str, str]) -> list[dict]:
    return world.client.post("/live/parts", {"parts": list(parts)})["parts"]


@given(before=PIECES, after=PIECES, place=st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_changes_make_the_new_text_of_the_old_one(before, after, place):
    old = "".join(before)
    for new in ("".join(after), "".join([*before[:place], *after[:3], *before[place:]]), old):
        made = changes(old, new)
        assert made is None or joined(old, made) == new


def test_changes_of_a_curve_that_grows_are_short():
    def curve(points: int) -> str:
        x = list(range(points))
        lines = [{"trial": trial, "y": [round(trial / (1 + step), 6) for step in x]} for trial in range(5)]
        return json.dumps({"x": x, "lines": lines})

    made = changes(curve(500), curve(503))
    assert joined(curve(500), made) == curve(503)
    assert len(json.dumps(made)) < len(curve(503)) / 20


def test_text_with_characters_that_browsers_count_twice_is_sent_whole():
    before = "a,b,c,d,\U0001f600,e,f,g,h,"
    assert changes(before, before + "i,") is None


def test_parts_are_whole_then_the_same_then_what_changed(world):
    world.client.create(SINGLE, activate=False)
    addresses = ["/experiments/1", "/tables/experiments", "/api/v1/trials?experiments=1"]
    first = ask(world, *({"address": address} for address in addresses))
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "text/html"}
    for address, part in zip(addresses[1:], first[1:], strict=True):
        assert part["text"] == world.http.get(address, headers=headers).text
    assert "<h1" in first[0]["text"]
    again = ask(world, {"address": addresses[2], "have": first[2]["mark"]})
    assert again == [{"status": 200, "mark": first[2]["mark"], "same": True}]
    world.client.call("PATCH", "/api/v1/experiments/1", {"name": "another name"})
    (changed,) = ask(world, {"address": addresses[0], "have": first[0]["mark"]})
    assert "text" not in changed
    assert "another name" in joined(first[0]["text"], changed["changes"])
    assert len(json.dumps(changed["changes"])) < len(first[0]["text"]) / 4


def test_first_answer_has_the_mark_with_which_changes_are_asked_for(world):
    headers = {"Authorization": f"Bearer {world.client.token}", "X-Mark": "1"}
    answer = world.http.get("/tables/experiments", headers=headers)
    (part,) = ask(world, {"address": "/tables/experiments", "have": answer.headers["X-Mark"]})
    assert part["same"]
    assert "X-Mark" not in world.http.get("/trials/99", headers=headers).headers


def test_only_what_pages_show_is_a_part(world):
    for address in (
        "/api/v1/users",
        "/api/v1/master/logs",
        "//elsewhere/experiments",
        "/experimentsX",
        "/static/table.js",
    ):
        assert ask(world, {"address": address})[0]["status"] == 404, address
    (missing,) = ask(world, {"address": "/trials/99"})
    assert missing["status"] == 404
    headers = {"Authorization": f"Bearer {world.client.token}"}
    body = {"parts": [{"address": "/experiments"}] * (MOST_PARTS + 1)}
    answer = world.http.post("/live/parts", json=body, headers=headers)
    assert answer.status_code == 400
    assert str(MOST_PARTS) in answer.text


def test_stranger_gets_no_part(world):
    answer = world.http.post("/live/parts", json={"parts": [{"address": "/experiments"}]})
    assert answer.status_code == 401
