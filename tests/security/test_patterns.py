"""Patterns that take an engine with backtracking longer than a life."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from master.fakes import eventually

from det_keras.master.app import create_app

# Each of the 2**34 ways to split the characters is tried by an engine that goes back.
PATTERN, TEXT = "(a+)+$", "a" * 34 + "!"
CONFIG = f"""
name: {TEXT}
description: {TEXT}
labels: [{TEXT}]
entrypoint: [{TEXT}]
hyperparameters: {{{TEXT}: {TEXT}}}
searcher: {{name: single, metric: {TEXT}}}
"""
# Answers of these wait on purpose, or for a subscriber.
WAITING = ("/live", "signals/preemption")


def readings(app: Any) -> list[tuple[str, list[str]]]:
    """Return all addresses that are read, pages included, with their parameters that take a text."""
    return [
        (route.path, list(_texts(route.dependant)))
        for route in _routes(app.routes)
        if "GET" in route.methods and not any(word in route.path for word in WAITING)
    ]


def _routes(routes: Any) -> Iterator[APIRoute]:
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif (router := getattr(route, "original_router", None)) is not None:
            yield from _routes(router.routes)


def _texts(dependant: Any) -> Iterator[str]:
    yield from (field.alias for field in dependant.query_params if "str" in str(field.field_info.annotation))
    for below in dependant.dependencies:
        yield from _texts(below)


@pytest.fixture
def known(world):
    """A master whose names are all long runs of one character."""
    _, trial, allocation_id = world.launch(CONFIG)
    world.pool.say(allocation_id, f"{TEXT}\n")
    eventually(lambda: world.client.log(trial["id"]))
    world.client.report(trial["id"], "validation", 1, {TEXT: 1.0})
    return world, trial


def test_pattern_with_backtracking_holds_up_no_call_and_no_page(known):
    world, trial = known
    headers = {"Cookie": f"auth={world.client.token}", "Accept": "text/html, */*"}
    names = {"task_id": trial["taskId"], "trial_id": trial["id"], "experiment_id": 1, "run_id": trial["id"]}
    asked = 0
    for path, parameters in readings(create_app(world.master)):
        for parameter in parameters:
            address = path.replace(":path}", "}").format_map(_Anything(names))
            params = {parameter: PATTERN, "enableRegex": "true", "trial": trial["id"]}
            answer = world.http.get(address, params=params, headers=headers, follow_redirects=False)
            assert answer.status_code < 500 or answer.status_code == 501, (address, parameter, answer.text)
            asked += 1
    assert asked > 50


class _Anything(dict):
    def __missing__(self, key: str) -> str:
        return PATTERN
