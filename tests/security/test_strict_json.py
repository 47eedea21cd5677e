"""Numbers that JSON does not have: in configs, hyperparameters and metrics."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from master.fakes import FakePool

SEARCH = """
name: numbers
entrypoint: python3 train.py
hyperparameters:
  rate: {type: double, minval: 0.1, maxval: 1.0}
  kind: {type: categorical, vals: [1.0, "Infinity", "NaN"]}
  fixed: -1e308
  huge: {type: categorical, vals: [%d, 1, 1e308, -1e308]}
searcher: {name: random, metric: loss, max_trials: 12, max_concurrent_trials: 12}
""" % (10**400)  # noqa: UP031 - braces
VALUES: list[Any] = ["NaN", "Infinity", "-Infinity", 1e308, -1e308, 0.5]
ADDRESSES = [
    "/api/v1/experiments",
    "/api/v1/experiments/1",
    "/api/v1/experiments/1/trials",
    "/api/v1/experiments/1/searcher",
    "/api/v1/experiments/1/searcher/rungs",
    "/api/v1/trials/1",
    "/api/v1/trials/1/workloads",
    "/api/v1/trials/metrics/trial_metrics?trialIds=1&group=training",
    "/api/v1/trials/time-series?trialIds=1&metricNames=loss&metricType=METRIC_TYPE_VALIDATION",
    "/experiments",
    "/experiments/1",
    "/experiments/1/config",
    "/experiments/1/report",
    "/experiments/1/search",
    "/compare?trial=1&trial=2",
    "/trials/1",
    "/tables/experiments",
    "/api/v1/trials?experiments=1",
    "/figures/search?experiment=1",
    "/figures/wall?trial=1&trial=2",
    "/figures/lines?trial=1&metric=validation.loss&x=epochs",
    "/figures/lines?trial=1&trial=2&metric=training.loss&smoothing=0.5",
    "/figures/system?trial=1",
]


def reject(name: str) -> None:
    raise AssertionError(f"{name} is not JSON.")


@pytest.fixture
def search(make_world):
    """A master with a search of which most metrics are not finite, and other numbers as large as they may be."""
    world = make_world(FakePool(12))
    number = world.client.create(SEARCH)
    for place, trial in enumerate(world.client.trials(number)):
        world.wait_for_launch(trial)
        for step in (1, 2, 3):
            value = VALUES[(place + step) % len(VALUES)]
            metrics = {"loss": value, "epochs": value, "many": [value], "deep": {"loss": value}}
            for group in ("training", "validation"):
                world.client.report(trial["id"], group, step, metrics)
    return world


@pytest.mark.parametrize("address", ADDRESSES)
def test_numbers_that_are_not_finite_are_strict_json_everywhere(search, address):
    headers = {"Authorization": f"Bearer {search.client.token}"}
    if not address.startswith("/api"):
        headers["Accept"] = "text/html, */*"
    answer = search.http.get(address, headers=headers)
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("text/html"):
        texts = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', answer.text, re.DOTALL)
    else:
        texts = answer.text.splitlines()
    for text in texts:
        json.loads(text, parse_constant=reject)
