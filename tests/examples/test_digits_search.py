"""A real search on handwritten digits."""

from __future__ import annotations

import re

import pytest
from conftest import EXAMPLES

pytestmark = pytest.mark.process

DIGITS = EXAMPLES / "digits"
TRIALS = 8


def test_adaptive_search_on_digits_accounts_for_every_trial(cluster):
    # Half of the example's trials: each is a process that has to import TensorFlow.
    options = ["--config", "searcher.max_time=4", "--config", f"searcher.max_trials={TRIALS}"]
    experiment = cluster.create(DIGITS / "adaptive_asha.yaml", DIGITS, *options)
    trials = cluster.until(
        lambda: (
            cluster.get(f"/api/v1/experiments/{experiment}")["experiment"]["endTime"]
            and cluster.get(f"/api/v1/experiments/{experiment}/trials")["trials"]
        ),
        timeout_s=300,
    )
    assert cluster.get(f"/api/v1/experiments/{experiment}")["experiment"]["state"] == "STATE_COMPLETED"
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * TRIALS
    assert [trial["restarts"] for trial in trials] == [0] * TRIALS
    epochs = [trial["summaryMetrics"]["validation_metrics"]["epochs"]["last"] for trial in trials]
    # The script asks for 20 epochs; a trial goes on for a moment until it hears of its end.
    assert max(epochs) < 20
    assert min(epochs) < max(epochs)
    assert max(trial["searcherMetricValue"] for trial in trials) > 0.95
    described = cluster.det("experiment", "describe", experiment).stdout
    assert re.search(r"Best trial: +\d+, val_accuracy 0\.9\d+ at batch \d+", described)


def test_promoted_trials_go_on_from_their_checkpoints(cluster):
    changes = {
        "max_time": 4,
        "stop_once": "false",
        "divisor": 2,
        "mode": "aggressive",
        "max_trials": 5,
        "max_concurrent_trials": 2,
        # The worst first: so promotions go to those who wait, whose processes are gone.
        "smaller_is_better": "true",
    }
    options = [text for name, value in changes.items() for text in ("--config", f"searcher.{name}={value}")]
    experiment = cluster.create(DIGITS / "adaptive_asha.yaml", DIGITS, *options)
    trials = cluster.until(
        lambda: (
            cluster.get(f"/api/v1/experiments/{experiment}")["experiment"]["endTime"]
            and cluster.get(f"/api/v1/experiments/{experiment}/trials")["trials"]
        ),
        timeout_s=300,
    )
    assert [(trial["state"], trial["restarts"]) for trial in trials] == [("STATE_COMPLETED", 0)] * 5
    lengths = {trial["id"]: dict(cluster.metrics(trial, "validation")) for trial in trials}
    assert {len(metrics) for metrics in lengths.values()} <= {1, 2, 4}
    assert 4 in {len(metrics) for metrics in lengths.values()}
    for metrics in lengths.values():
        # Nothing is trained or validated twice: 45 batches an epoch, without a gap.
        assert list(metrics) == [45 * epoch for epoch in range(1, len(metrics) + 1)]
