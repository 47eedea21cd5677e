"""Plots as plain data: the axes of hyperparameters, and the colours of runs."""

from __future__ import annotations

import pytest
from coloraide import Color

from det_keras.master.web.plotting.picture import run_color
from det_keras.master.web.plotting.searched import search_plots
from det_keras.master.web.plotting.space import scales


def axes(hparams, space=None):
    """Return the axes of trials with some hyperparameters."""
    config = {"hyperparameters": space or {}, "searcher": {"smaller_is_better": True}}
    trials = [
        {"id": number, "state": "STATE_COMPLETED", "hparams": values, "searcherMetricValue": 0.5}
        for number, values in enumerate(hparams)
    ]
    return search_plots({"config": config, "searcherMetric": "loss"}, trials)["axes"]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([0.001, 1.0], "log"),
        ([1.0, 50.0], "log"),
        ([1.0, 49.9], "linear"),
        ([0.0, 100.0], "linear"),
        ([-1.0, 100.0], "linear"),
        ([1.0, "adam"], "category"),
    ],
    ids=str,
)
def test_values_of_a_wide_range_have_a_logarithmic_axis(values, kind):
    assert axes([{"lr": value} for value in values]) == [{"name": "lr", "scale": kind}]


def test_scale_of_the_space_counts_before_that_of_the_values():
    space = {"dropout": {"type": "double", "minval": 0, "maxval": 0.5}, "net": {"lr": {"type": "log"}}}
    assert scales(space) == {"dropout": "linear", "net.lr": "log"}
    found = axes([{"dropout": value, "net": {"lr": 1}} for value in (0.001, 0.49)], space)
    assert found == [{"name": "dropout", "scale": "linear"}]


def test_hyperparameters_that_are_the_same_in_all_trials_have_axes_if_no_other_has():
    assert [axis["name"] for axis in axes([{"lr": 1, "width": 2}] * 2)] == ["lr", "width"]
    # What only some trials have differs.
    assert [axis["name"] for axis in axes([{"lr": 1, "width": 2}, {"lr": 1}])] == ["width"]


def test_no_two_of_many_runs_have_the_same_colour():
    assert len({run_color(number) for number in range(1, 201)}) == 200


def test_colours_are_those_of_the_colour_space():
    # coloraide has OKLCH from its definition in CSS Color 4.
    for number in range(1, 40):
        hue = (number * 137.508 + 210) % 360
        lightness = 0.62 + (0.0, 0.07, -0.06)[number % 3]
        theirs = Color("oklch", [lightness, 0.14, hue]).convert("srgb").clip()
        ours = Color(run_color(number))
        assert ours.coords() == pytest.approx(theirs.coords(), abs=1 / 250)
