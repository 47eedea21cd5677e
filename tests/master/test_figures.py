"""Figures as plain data: axes, lines and colours."""

from __future__ import annotations

import plotly.colors
import pytest
from coloraide import Color

from det_keras.master.web.plotting.figures import _VIRIDIS, Line, Point, curves, parallel, run_color, scatter
from det_keras.master.web.plotting.space import scales


def curve(*values, trial_id=0):
    line = Line("loss", list(range(len(values))), values, trial_id, "solid")
    return curves([line], x_title="batches", y_title="loss")["data"][0]


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
    points = [Point(number, {"lr": value}, 0.5) for number, value in enumerate(values)]
    assert scatter(points, ["lr"], metric="loss", scales={})["layout"]["xaxis"]["type"] == kind


def test_scale_of_the_space_counts_before_that_of_the_values():
    points = [Point(number, {"dropout": value}, 0.5) for number, value in enumerate((0.001, 0.49))]
    space = {"dropout": {"type": "double", "minval": 0, "maxval": 0.5}, "net": {"lr": {"type": "log"}}}
    assert scales(space) == {"dropout": "linear", "net.lr": "log"}
    assert (
        scatter(points, ["dropout"], metric="loss", scales=scales(space))["layout"]["xaxis"]["type"]
        == "linear"
    )


def test_single_points_between_gaps_have_markers():
    assert curve(1.0, 2.0, 3.0)["mode"] == "lines"
    assert curve(1.0, None, 2.0, float("nan"), 3.0, 4.0)["marker"]["size"] == [6, 0, 6, 0, 0, 0]


def test_no_two_of_many_runs_have_the_same_colour():
    assert len({curve(1.0, trial_id=number)["line"]["color"] for number in range(1, 201)}) == 200


def test_colours_are_those_of_the_colour_space():
    # coloraide has OKLCH from its definition in CSS Color 4.
    for number in range(1, 40):
        hue = (number * 137.508 + 210) % 360
        lightness = 0.62 + (0.0, 0.07, -0.06)[number % 3]
        theirs = Color("oklch", [lightness, 0.14, hue]).convert("srgb").clip()
        ours = Color(run_color(number))
        assert ours.coords() == pytest.approx(theirs.coords(), abs=1 / 250)


def test_best_and_worst_trials_have_the_ends_of_the_colour_scale():
    points = [Point(number, {"lr": 0.1}, float(number)) for number in range(3)]
    figure = parallel(points, ["lr"], metric="loss", scales={}, smaller_is_better=True)
    colors = [line["line"]["color"] for line in figure["data"] if "color" in line.get("line", {})]
    assert {"rgb(68,1,84)", "rgb(200,200,30)"} <= set(colors)


def test_shades_are_those_of_viridis():
    stops = plotly.colors.sample_colorscale("Viridis", [0, 1 / 3, 2 / 3], colortype="tuple")
    for ours, theirs in zip(_VIRIDIS, stops, strict=False):
        assert ours == tuple(round(255 * part) for part in theirs)
