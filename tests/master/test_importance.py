"""Importance of hyperparameters, beside Optuna and SciPy."""

from __future__ import annotations

import itertools
import random
import sys

import optuna
import pytest
import scipy.stats

from det_keras.master.web.plotting.importance import importances
from det_keras.master.web.plotting.points import Point
from det_keras.master.web.plotting.space import scales

SCALES = {"lr": "log", "width": "linear", "optimizer": "category"}


@pytest.fixture
def points():
    draw = random.Random(5)
    found = []
    for number in range(40):
        hparams = {
            "lr": 10 ** draw.uniform(-4, -1),
            "width": draw.randint(1, 100),
            "optimizer": draw.choice(["adam", "sgd"]),
        }
        metric = 5 * (hparams["lr"] - 0.01) ** 2 * 1e3 + hparams["width"] / 1000
        found.append(Point(number, hparams, metric))
    return found


def test_importance_is_that_of_optuna(points):
    method, found = importances(points, SCALES)
    study = optuna.create_study()
    lr = [point.hparams["lr"] for point in points]
    distributions = {
        "lr": optuna.distributions.FloatDistribution(min(lr), max(lr), log=True),
        "width": optuna.distributions.FloatDistribution(
            *(pick(point.hparams["width"] for point in points) for pick in (min, max))
        ),
        "optimizer": optuna.distributions.CategoricalDistribution(["'adam'", "'sgd'"]),
    }
    for point in points:
        params = {
            **point.hparams,
            "width": float(point.hparams["width"]),
            "optimizer": repr(point.hparams["optimizer"]),
        }
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=distributions, value=point.metric)
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    theirs = evaluator.evaluate(study, params=list(SCALES))
    assert method == "fANOVA"
    assert {one.name: one.value for one in found} == pytest.approx(theirs)
    assert found[0].name == "lr"


def test_without_optuna_it_is_the_rank_correlation(points, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    method, found = importances(points, SCALES)
    assert method == "correlation"
    values = {one.name: one.value for one in found}
    metric = [point.metric for point in points]
    for name in ("lr", "width"):
        theirs = scipy.stats.spearmanr([point.hparams[name] for point in points], metric).statistic
        assert values[name] == pytest.approx(abs(theirs))
    kinds = [
        [point.metric for point in points if point.hparams["optimizer"] == kind] for kind in ("adam", "sgd")
    ]
    total = scipy.stats.tvar(metric) * (len(metric) - 1)
    within = sum(scipy.stats.tvar(kind) * (len(kind) - 1) for kind in kinds)
    assert values["optimizer"] == pytest.approx((1 - within / total) ** 0.5)


@pytest.mark.parametrize("is_known", [True, False], ids=["fANOVA", "correlation"])
def test_choices_of_numbers_and_of_truth_values_have_an_importance(monkeypatch, is_known):
    if not is_known:
        monkeypatch.setitem(sys.modules, "optuna", None)
    grid = itertools.product([16, 32], [True, False], [1e-3, 1e-2], ["adam"])
    points = [
        Point(number, {"batch": batch, "bias": bias, "lr": lr, "optimizer": optimizer}, float(bias))
        for number, (batch, bias, lr, optimizer) in enumerate(grid)
    ]
    space = {
        name: {"type": "categorical", "vals": sorted({point.hparams[name] for point in points})}
        for name in points[0].hparams
    }
    _, found = importances(points, scales(space))
    assert {one.name for one in found} == {"batch", "bias", "lr"}
    assert found[0].name == "bias"
    # Runs that were started outside have no space.
    assert importances(points, {})[1] == found


def test_few_trials_have_no_importance(points):
    assert importances(points[:3], SCALES) == ("", [])
    same = [Point(point.trial_id, point.hparams, 1.0) for point in points]
    assert importances(same, SCALES) == ("", [])
