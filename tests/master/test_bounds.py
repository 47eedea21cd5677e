"""Each number and list has a bound: ten times of it is refused at once, and costs nothing."""

from __future__ import annotations

import dataclasses
import json
import resource
from collections.abc import Iterator
from typing import Any

import pytest

from det_keras.config import ExperimentConfig, dump_yaml
from det_keras.config.kinds import INT64_MAX, Integer
from det_keras.config.searching.searcher import MOST_OF_A_SEARCH, MOST_RUNGS, MOST_TRIALS, Searcher
from det_keras.config.section import SectionKind
from det_keras.master.wire import LONGEST_TEXT, MOST_ITEMS
from master.fakes import SINGLE, file_entry

# What a method needs besides, so that a config with one of its fields is whole.
METHODS = {
    "random": {"max_trials": 4},
    "tpe": {"max_trials": 4},
    "async_halving": {"max_trials": 4, "num_rungs": 2, "max_time": 4, "time_metric": "epochs"},
    "adaptive_asha": {"max_trials": 4, "max_time": 4, "time_metric": "epochs"},
}


def integers(section: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the integers of a section and of those below, each with its largest value."""
    for field in dataclasses.fields(section):
        kind = field.metadata["declaration"].kind if "declaration" in field.metadata else None
        if isinstance(kind, Integer):
            largest = INT64_MAX if kind.maximum is None else kind.maximum
            yield (*path, field.name), MOST_OF_A_SEARCH.get(field.name, largest)
        elif isinstance(kind, SectionKind):
            yield from integers(kind.section, (*path, field.name))


INTEGERS = dict(integers(ExperimentConfig))


def config_with(path: tuple[str, ...], value: int) -> str:
    """Return a config that is whole but for the value at a path."""
    config: dict[str, Any] = {
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "loss"},
    }
    if path[0] == "searcher":
        owners = next(field for field in dataclasses.fields(Searcher) if field.name == path[1])
        only = owners.metadata["declaration"].only
        method = only[-1] if only and only[-1] in METHODS else "random"
        config["searcher"] = {"name": method, "metric": "loss", **METHODS[method]}
    inner = config
    for name in path[:-1]:
        inner = inner.setdefault(name, {})
    inner[path[-1]] = value
    return dump_yaml(config)


def post(world, path: str, body: Any, method: str = "POST"):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    return world.http.request(method, path, headers=headers, content=json.dumps(body))


def grown_mib(before: int) -> float:
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def test_every_integer_of_a_config_is_refused_at_ten_times_its_bound(world):
    assert len(INTEGERS) > 25
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for path, largest in INTEGERS.items():
        answer = post(world, "/api/v1/experiments", {"config": config_with(path, 10 * largest)})
        assert answer.status_code == 400, (path, answer.text)
        assert path[-1] in answer.text, (path, answer.text)
    assert not world.client.get("/api/v1/experiments")["experiments"]
    assert grown_mib(before) < 200


def test_every_integer_of_a_config_may_be_its_bound(world):
    for path, largest in INTEGERS.items():
        answer = post(world, "/api/v1/experiments", {"config": config_with(path, largest)})
        # There are no such slots and no such trial.
        is_of_this_master = path[-1] in ("slots_per_trial", "source_trial_id")
        assert answer.status_code == (400 if is_of_this_master else 200), (path, answer.text)
        if answer.status_code == 200:
            experiment_id = answer.json()["experiment"]["id"]
            world.client.move(experiment_id, "pause")
            world.client.move(experiment_id, "activate")
            world.client.move(experiment_id, "kill")
            world.client.wait_for_state(experiment_id, "CANCELED")


@pytest.mark.parametrize(
    ("method", "path", "body", "bound"),
    [
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": ["x"] * (10 * MOST_ITEMS)}, MOST_ITEMS),
        ("POST", "/api/v1/job-queues", {"updates": [{}] * (10 * MOST_ITEMS)}, MOST_ITEMS),
        ("PATCH", "/api/v1/experiments/1", {"labels": ["x"] * 10_000}, 1000),
        ("PATCH", "/api/v1/experiments/1", {"labels": ["x" * 2550]}, 255),
        ("PATCH", "/api/v1/experiments/1", {"name": "x" * 10_000}, 1000),
        ("PATCH", "/api/v1/experiments/1", {"notes": "x" * (2 * LONGEST_TEXT)}, LONGEST_TEXT),
        ("PATCH", "/api/v1/experiments/1", {"description": "x" * (2 * LONGEST_TEXT)}, LONGEST_TEXT),
        (
            "POST",
            "/api/v1/experiments",
            {"config": SINGLE, "modelDefinition": [file_entry("a")] * 60_000},
            50_000,
        ),
        (
            "POST",
            "/api/v1/experiments",
            {"config": config_with(("searcher", "max_trials"), 10 * MOST_TRIALS)},
            MOST_TRIALS,
        ),
    ],
)
def test_long_list_or_text_is_refused_with_its_bound(world, method, path, body, bound):
    world.client.create()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = post(world, path, body, method)
    assert answer.status_code == 400, answer.text[:1000]
    assert str(bound) in answer.text
    # Of a body the text is kept, and once more as values.
    assert grown_mib(before) < 1000


def test_many_brackets_and_rungs_are_refused(world):
    for field, value in (("max_rungs", 10 * MOST_RUNGS), ("bracket_rungs", [1] * (10 * MOST_RUNGS))):
        answer = post(world, "/api/v1/experiments", {"config": config_with(("searcher", field), value)})
        assert (answer.status_code, str(MOST_RUNGS) in answer.text) == (400, True), answer.text
    # A divisor near 1 gives many rungs by itself.
    config = config_with(("searcher", "max_rungs"), MOST_RUNGS) + "\n"
    config = config.replace("max_rungs: 100", "max_rungs: 100\n  divisor: 1.0000001")
    assert post(world, "/api/v1/experiments", {"config": config}).status_code in (200, 400)
