"""Searches on the command line: previewed, followed, described, listed by their metric."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.process

TRAIN = """\
    import det_keras as det

    with det.core.init() as core:
        rate = core.info.trial.hparams["optimizer"]["rate"]
        for epoch in range(1, 5):
            core.train.report_validation_metrics(epoch * 10, {"score": rate, "epochs": epoch})
            if core.preempt.should_preempt():
                break
    """
CONFIG = """\
    name: search
    entrypoint: python3 train.py
    hyperparameters:
      optimizer: {rate: {type: double, minval: 0, maxval: 1}}
    searcher:
      name: adaptive_asha
      metric: score
      smaller_is_better: false
      max_trials: 6
      time_metric: epochs
      max_time: 4
      divisor: 2
    max_restarts: 0
    reproducibility: {experiment_seed: 7}
    """


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("search/train.py", TRAIN)
    cluster.write("search.yaml", CONFIG)
    return cluster


@pytest.fixture(scope="module")
def finished(det):
    """The number of a search that completed, and what was printed meanwhile."""
    done = det("experiment", "create", "search.yaml", "search", "--follow")
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout.split("Created experiment ")[1].split()[0], done.stdout


def test_follow_tells_how_every_trial_ended_and_what_was_best(det, finished):
    number, printed = finished
    trials = det.json("experiment", "list-trials", number)
    ends = re.findall(r"^Trial (\d+) COMPLETED after epoch \d, score 0\.\d+$", printed, re.MULTILINE)
    assert sorted(map(int, ends)) == sorted(trial["id"] for trial in trials)
    best = trials[0]
    assert f"Best score: {best['searcherMetricValue']:.4g} (trial {best['id']}," in printed
    assert f"Its hyperparameters: optimizer.rate={best['hparams']['optimizer']['rate']:.4g}" in printed


def test_trials_are_listed_by_their_metric(det, finished):
    trials = det.json("experiment", "list-trials", finished[0])
    values = [trial["searcherMetricValue"] for trial in trials]
    assert len(values) == 6
    assert values == sorted(values, reverse=True)
    by_id = det.json("experiment", "list-trials", finished[0], "--sort-by", "id")
    assert [trial["id"] for trial in by_id] == sorted(trial["id"] for trial in trials)
    assert "optimizer.rate=0." in det.out("experiment", "list-trials", finished[0])


def test_description_names_the_best_trial_and_its_hyperparameters(det, finished):
    best = det.json("experiment", "list-trials", finished[0])[0]
    described = det.out("experiment", "describe", finished[0])
    assert re.search(
        rf"Best trial: +{best['id']}, score {best['searcherMetricValue']:.4g} at batch", described
    )
    assert re.search(rf"Hyperparameters: +optimizer.rate={best['searcherMetricValue']:.4g}\n", described)
    assert described.count("Trial ") == described.count(f"Trial {best['id']}") + 1


def test_preview_shows_the_plan_and_a_simulated_run(det):
    previewed = det.out("preview-search", "search.yaml")
    lines = [line.split() for line in previewed.splitlines()]
    assert ["3", "1", "epochs"] not in lines
    assert re.search(r"^ *\d+ +\d epochs$", previewed, re.MULTILINE)
    assert "Simulated with made-up metrics: 6 trials train" in previewed


def test_bad_searches_are_refused_with_every_reason(det):
    det.write("bad.yaml", CONFIG.replace("adaptive_asha", "adaptive_ahsa").replace("maxval: 1", "maxval: -1"))
    done = det("experiment", "create", "bad.yaml", "search")
    assert done.returncode == 1
    assert "Did you mean `adaptive_asha`?" in done.stderr
    assert "`minval` must be below `maxval`" in done.stderr
