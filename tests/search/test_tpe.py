"""Search by an estimator: Optuna's sampler, our account."""

from __future__ import annotations

import importlib.util
import json
import math
import statistics

import pytest

from det_keras.config import Space
from det_keras.errors import ConfigError
from det_keras.search import ExitedReason, Searcher
from det_keras.search.coordinates import coordinates_of, point_at
from det_keras.search.simulate import SimulatedExit, simulate
from search.searches import created, searcher

pytest.importorskip("optuna")

SPACE = """hyperparameters:
  rate: {type: log, base: 10, minval: -4, maxval: -1}
  size: 32
  model: {layers: {type: int, minval: 1, maxval: 4}, kind: {type: categorical, vals: [a, [b], true, 1]}}
  dropout: {type: double, minval: 0, maxval: 0.5}
"""
PARABOLA = "hyperparameters: {x: {type: double, minval: -10, maxval: 10}, y: {type: double, minval: -10, maxval: 10}}\n"


def tpe(trials: int = 30, concurrent: int = 1, seed: int = 1, space: str = SPACE, more: str = "") -> Searcher:
    fields = f"name: tpe, max_trials: {trials}, max_concurrent_trials: {concurrent}{more}"
    return searcher(fields, space, seed)


def parabola(trial, _):
    return (trial.hparams["x"] - 3) ** 2 + (trial.hparams["y"] + 4) ** 2


def test_first_trials_are_those_of_random_search():
    points = [
        [trial.hparams for trial in simulate(one, lambda trial, _: trial.hparams["dropout"]).trials[:10]]
        for one in (tpe(), searcher("name: random, max_trials: 30, max_concurrent_trials: 1", SPACE, 1))
    ]
    assert points[0] == points[1]


def test_proposals_have_the_shape_of_the_space():
    for trial in simulate(tpe(), lambda trial, _: trial.hparams["dropout"]).trials:
        point = trial.hparams
        assert 1e-4 <= point["rate"] <= 0.1
        assert point["size"] == 32
        assert point["model"]["layers"] in (1, 2, 3, 4)
        assert isinstance(point["model"]["layers"], int)
        assert any(
            point["model"]["kind"] is one or point["model"]["kind"] == one for one in ("a", ["b"], True, 1)
        )
        assert 0 <= point["dropout"] <= 0.5
        json.dumps(point)


def test_finds_better_points_than_random_search():
    found = {
        name: statistics.median(simulate(one(seed), parabola).best() for seed in range(5))
        for name, one in {
            "tpe": lambda seed: tpe(40, seed=seed, space=PARABOLA),
            "random": lambda seed: searcher("name: random, max_trials: 40", PARABOLA, seed),
        }.items()
    }
    assert found["tpe"] < found["random"] / 2


@pytest.mark.parametrize(("more", "sign"), [("", -1), (", smaller_is_better: false", 1)])
def test_direction_of_the_metric_is_obeyed(more, sign):
    outcome = simulate(tpe(40, space=PARABOLA, more=more), lambda trial, _: trial.hparams["x"])
    proposed = [sign * trial.hparams["x"] for trial in outcome.trials[10:]]
    assert statistics.median(proposed) > 3


def eventful(trial, _):
    if trial.number % 7 == 3:
        raise SimulatedExit(list(ExitedReason)[trial.number % 5])
    return math.nan if trial.number % 5 == 4 else parabola(trial, _)


@pytest.mark.parametrize("concurrent", [1, 4])
@pytest.mark.parametrize("more", ["", ", max_length: {epochs: 3}"])
def test_search_restored_before_every_event_is_the_undisturbed_one(concurrent, more):
    def make() -> Searcher:
        return tpe(20, concurrent, space=PARABOLA, more=f", n_startup_trials: 4{more}")

    def restored(one: Searcher) -> Searcher:
        fresh = make()
        fresh.restore(json.loads(json.dumps(one.snapshot())))
        return fresh

    assert simulate(make(), eventful, on_event=restored) == simulate(make(), eventful)


def test_same_seed_gives_the_same_search_whatever_the_slots_if_one_runs_at_a_time():
    runs = [simulate(tpe(20, space=PARABOLA), parabola, slots=slots) for slots in (1, 4)]
    assert runs[0].trials == runs[1].trials


def test_trials_that_run_repel_the_next_ones():
    one = tpe(20, 8, space=PARABOLA, more=", n_startup_trials: 0")
    assert len(set(created(one.initial()))) == 8


@pytest.mark.parametrize("kind", ["a", ["b"], True, 1])
def test_point_comes_back_from_its_coordinates(kind):
    import yaml

    space = Space.parse(yaml.safe_load(SPACE)["hyperparameters"])
    point = {"rate": 0.01, "size": 32, "model": {"layers": 2, "kind": kind}, "dropout": 0.25}
    again = point_at(space, coordinates_of(space, point))
    assert again == {**point, "rate": pytest.approx(0.01, rel=1e-12)}
    assert type(again["model"]["kind"]) is type(kind)


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"det_keras\[search\]"):
        tpe()
