"""Plots as plain dictionaries for plotly, without the colours of the light or dark theme.

Pages and reports use the same figures. A script in the page adds the colours of text and grid, which depend on the
user's theme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.display import number_text

Figure = dict[str, Any]

# Okabe and Ito, "Color Universal Design" (2008), without the yellow, which is invisible on white, and the black, which
# is invisible in the dark theme, and with a lighter blue.
_COLORS = ("#2489cf", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7bd1", "#7a8b2a")
# The first integer that may be too large for a float.
_LARGEST_INTEGER = 1 << 1023
_MARGIN = {"l": 64, "r": 16, "t": 16, "b": 48}
_PLOT_PX = 320
_ROW_PX = 240
_LONGEST_LABEL = 40
_DIRECTIONS = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        label: text in the legend.
        x: batches, epochs or hours, as on the axis.
        y: values; None for a gap.
        trial_id: number of the trial, which decides the colour.
        dash: ``solid``, ``dash`` or ``dot``.
    """

    label: str
    x: Sequence[float | None]
    y: Sequence[float | None]
    trial_id: int
    dash: str


@dataclass(frozen=True)
class Point:
    """One trial of a search.

    Attributes:
        trial_id: number of the trial.
        hparams: hyperparameters by flat names.
        metric: its value of the searcher's metric: the best one, or that at a rung.
        rung: text about the rung at which the search stopped it; empty for a trial that was not stopped.
    """

    trial_id: int
    hparams: Mapping[str, Any]
    metric: float
    rung: str = ""


@dataclass(frozen=True)
class Rung:
    """One rung of a bracket.

    Attributes:
        bracket: counted from 0.
        length: the length at which trials are compared.
        results: (trial id, metric) of the trials that reached it, best first.
    """

    bracket: int
    length: int
    results: Sequence[tuple[int, float]]


def curves(lines: Sequence[Line], *, x_title: str, y_title: str) -> Figure:
    """Return curves over one axis.

    Args:
        lines: the curves.
        x_title: title of the x axis.
        y_title: title of the y axis.
    """
    data = [
        {
            "type": "scatter",
            **_marks(line.y),
            "name": _short(line.label),
            "x": list(line.x),
            "y": [None if value is None or not math.isfinite(value) else value for value in line.y],
            "line": {"color": run_color(line.trial_id), "dash": line.dash, "width": 2},
            "hovertemplate": "%{y:.5g}<extra>%{fullData.name}</extra>",
        }
        for line in lines
    ]
    layout = {
        "xaxis": {"title": {"text": _short(x_title)}},
        "yaxis": {"title": {"text": _short(y_title)}},
        "hovermode": "x unified" if len(lines) <= len(_COLORS) else "closest",
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "maxheight": 0.25},
        "margin": _MARGIN,
    }
    return {"data": data, "layout": layout}


def scatter(
    points: Sequence[Point],
    names: Sequence[str],
    *,
    metric: str,
    scales: Mapping[str, str],
    log_y: bool = False,
    width_px: int = 960,
) -> Figure:
    """Return the metric against each hyperparameter, in one plot per hyperparameter.

    Args:
        points: the trials.
        names: the hyperparameters.
        metric: name of the metric.
        scales: ``log``, ``linear`` or ``category`` by name, from the space. An axis without one follows its values.
        log_y: whether the y axes are logarithmic.
        width_px: available width in pixels; decides how many plots are in a row.
    """
    columns = min(max(width_px // _PLOT_PX, 1), max(len(names), 1))
    rows = math.ceil(len(names) / columns) if names else 1
    layout: Figure = {
        "grid": {"rows": rows, "columns": columns, "pattern": "independent"},
        "height": rows * _ROW_PX + 60,
        "showlegend": False,
        "margin": _MARGIN,
        "hovermode": "closest",
        "uirevision": f"{names} {log_y}",
    }
    data = []
    for index, name in enumerate(names):
        end = "" if index == 0 else str(index + 1)
        shown = [point for point in points if name in point.hparams]
        values = [_axis_value(point.hparams[name]) for point in shown]
        kind = scales.get(name) or _axis_type(values)
        layout[f"xaxis{end}"] = {"title": {"text": _short(name)}, "type": kind}
        if kind == "category":
            kinds = list(dict.fromkeys(values))
            # Categories are distinguished by the whole text, but labelled with a shortened text. They stay if pages
            # leave out trials.
            labels = {"tickvals": kinds, "ticktext": [_short(str(kind)) for kind in kinds]}
            layout[f"xaxis{end}"].update(labels, categoryorder="array", categoryarray=kinds)
        layout[f"yaxis{end}"] = {
            "title": {"text": _short(metric) if index % columns == 0 else ""},
            "type": "log" if log_y else "linear",
        }
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": values,
                "y": [point.metric for point in shown],
                "xaxis": f"x{end}",
                "yaxis": f"y{end}",
                "text": [f"Trial {point.trial_id} {point.rung}".strip() for point in shown],
                "customdata": [f"/trials/{point.trial_id}" for point in shown],
                "marker": {
                    "size": 8,
                    "opacity": 0.8,
                    "color": _COLORS[0],
                    "symbol": ["circle-open" if point.rung else "circle" for point in shown],
                },
                "hovertemplate": "%{text}<br>%{x}<br>%{y:.5g}<extra></extra>",
            }
        )
    return {"data": data, "layout": layout}


def parallel(
    points: Sequence[Point],
    names: Sequence[str],
    *,
    metric: str,
    scales: Mapping[str, str],
    smaller_is_better: bool,
) -> Figure:
    """Return one line per trial through all of its hyperparameters to its metric.

    Drawn as lines, because plotly's own parallel coordinates compile code at run time, which the pages' policy forbids.

    Args:
        points: the trials.
        names: the hyperparameters.
        metric: name of the metric.
        scales: as for `scatter`.
        smaller_is_better: how the metric compares.
    """
    axes = [
        *(_Axis.of(name, [point.hparams.get(name) for point in points], scales.get(name)) for name in names)
    ]
    axes.append(_Axis.of(metric, [point.metric for point in points], "linear"))
    shades = _shades([point.metric for point in points], smaller_is_better=smaller_is_better)
    # The best trials are drawn last, on top of the others.
    order = sorted(range(len(points)), key=lambda index: shades[index])
    data: list[Figure] = []
    for index in order:
        point = points[index]
        values = [*(point.hparams.get(name) for name in names), point.metric]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(range(len(axes))),
                "y": [axis.height(value) for axis, value in zip(axes, values, strict=True)],
                "name": f"Trial {point.trial_id}",
                "text": [
                    f"{_short(axis.name)}: {_short(_text(value))}"
                    for axis, value in zip(axes, values, strict=True)
                ],
                "customdata": [f"/trials/{point.trial_id}"] * len(axes),
                "line": {"color": _viridis(shades[index]), "width": 1 + 2 * shades[index]},
                "marker": {"size": 5},
                "opacity": 0.35 + 0.65 * shades[index],
                "hovertemplate": "%{text}<extra>%{fullData.name}</extra>",
            }
        )
    layout = {
        "xaxis": {
            "tickvals": list(range(len(axes))),
            "ticktext": [_short(axis.name) for axis in axes],
            "range": [-0.15, len(axes) - 0.4],
            "showgrid": True,
            "zeroline": False,
        },
        "yaxis": {"visible": False, "range": [-0.08, 1.08]},
        "annotations": [label for place, axis in enumerate(axes) for label in axis.labels(place)],
        "showlegend": False,
        "hovermode": "closest",
        "margin": {**_MARGIN, "l": 16},
        "uirevision": f"{names}",
    }
    return {"data": data, "layout": layout}


def rungs(entries: Sequence[Rung], *, metric: str, unit: str) -> Figure:
    """Return the metrics of the trials that reached each rung.

    Args:
        entries: the rungs of all brackets.
        metric: name of the metric.
        unit: unit of the rungs' lengths.
    """
    many = len({rung.bracket for rung in entries}) > 1
    data = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": f"bracket {bracket + 1}" if many else "trials",
            "x": [rung.length for rung in entries if rung.bracket == bracket for _ in rung.results],
            "y": [value for rung in entries if rung.bracket == bracket for _, value in rung.results],
            "text": [
                f"Trial {trial}" for rung in entries if rung.bracket == bracket for trial, _ in rung.results
            ],
            "customdata": [
                f"/trials/{trial}" for rung in entries if rung.bracket == bracket for trial, _ in rung.results
            ],
            "marker": {"size": 9, "symbol": bracket, "color": _color(bracket), "opacity": 0.8},
            "hovertemplate": "%{text}<br>%{y:.5g}<extra>%{x} " + _plain(unit) + "</extra>",
        }
        for bracket in sorted({rung.bracket for rung in entries})
    ]
    layout = {
        "xaxis": {"title": {"text": f"rung ({_plain(unit)})"}, "type": "log"},
        "yaxis": {"title": {"text": _short(metric)}},
        "hovermode": "closest",
        "showlegend": many,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
        "margin": _MARGIN,
        "uirevision": "rungs",
    }
    lengths = sorted({rung.length for rung in entries})
    layout["xaxis"].update(tickvals=lengths, ticktext=[str(length) for length in lengths])  # type: ignore[attr-defined]
    return {"data": data, "layout": layout}


@dataclass(frozen=True)
class _Axis:
    """One vertical axis of the parallel coordinates."""

    name: str
    low: float
    high: float
    is_log: bool
    kinds: Sequence[str]

    @classmethod
    def of(cls, name: str, values: Sequence[Any], scale: str | None) -> _Axis:
        numbers = [float(value) for value in values if is_number(value)]
        if len(numbers) < sum(value is not None for value in values) or not numbers:
            kinds = sorted({_text(value) for value in values if value is not None})
            return cls(name, 0.0, 1.0, is_log=False, kinds=kinds)
        is_log = _is_log(numbers) if scale is None else scale == "log" and min(numbers) > 0
        low, high = min(numbers), max(numbers)
        return cls(name, low, high, is_log=is_log, kinds=())

    def height(self, value: Any) -> float | None:
        """Return the position of a value, 0 at the bottom and 1 at the top."""
        if value is None:
            return None
        if self.kinds:
            return self.kinds.index(_text(value)) / max(len(self.kinds) - 1, 1)
        if self.low == self.high:
            return 0.5
        if self.is_log:
            span = math.log(self.high) - math.log(self.low)
            return (math.log(float(value)) - math.log(self.low)) / span
        return (float(value) - self.low) / (self.high - self.low)

    def labels(self, place: int) -> list[Figure]:
        """Return the labels of the axis."""
        ends = [(0.0, _text(self.low)), (1.0, _text(self.high))]
        if self.low == self.high:
            ends = [(0.5, _text(self.low))]
        if self.kinds:
            ends = [(self.height(kind) or 0.0, kind) for kind in self.kinds]
        return [
            {
                "x": place,
                "y": height,
                "text": _short(text),
                "showarrow": False,
                "xanchor": "left",
                "xshift": 6,
                "yshift": 8 if height else -8,
                "font": {"size": 11},
            }
            for height, text in ends
        ]


def _shades(values: Sequence[float], *, smaller_is_better: bool) -> list[float]:
    """Return the rank of each value as a fraction: 1 for the best, 0 for the worst."""
    order = sorted(range(len(values)), key=lambda index: values[index], reverse=smaller_is_better)
    shades = [1.0] * len(values)
    for place, index in enumerate(order):
        shades[index] = place / max(len(values) - 1, 1)
    return shades


# Stops of matplotlib's viridis, from worst to best; the last is darker, to be seen on a white page.
_VIRIDIS = ((68, 1, 84), (49, 104, 142), (53, 183, 121), (200, 200, 30))


def _viridis(shade: float) -> str:
    place = shade * (len(_VIRIDIS) - 1)
    index = min(int(place), len(_VIRIDIS) - 2)
    part = place - index
    low, high = _VIRIDIS[index], _VIRIDIS[index + 1]
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return f"rgb({red},{green},{blue})"


def _marks(values: Sequence[float | None]) -> Figure:
    """Return the markers of single points between two gaps, which have no line."""
    known = [value is not None and math.isfinite(value) for value in values]
    around = [False, *known, False]
    is_single = [is_known and not around[i] and not around[i + 2] for i, is_known in enumerate(known)]
    if not any(is_single):
        return {"mode": "lines"}
    return {"mode": "lines+markers", "marker": {"size": [6 if single else 0 for single in is_single]}}


def _color(style: int) -> str:
    return _COLORS[style % len(_COLORS)]


def _axis_value(value: Any) -> Any:
    return value if is_number(value) else _plain(_text(value))


def _axis_type(values: Sequence[Any]) -> str:
    numbers = [float(value) for value in values if is_number(value)]
    if len(numbers) < len(values) or not numbers:
        return "category"
    return "log" if _is_log(numbers) else "linear"


def _is_log(numbers: Sequence[float]) -> bool:
    """Return whether values span so wide a range that they need a logarithmic axis."""
    return min(numbers) > 0 and max(numbers) / min(numbers) >= 50


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a plot can place; an integer may be too large for that."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < _LARGEST_INTEGER


def _text(value: Any) -> str:
    return number_text(value)


def _short(text: str) -> str:
    return _plain(text if len(text) <= _LONGEST_LABEL else f"{text[: _LONGEST_LABEL - 1]}…")


def _plain(text: str) -> str:
    """Return text escaped for plotly, which interprets some tags, and dollars as formulas."""
    # Characters that change the direction of the following text would also change the next label.
    text = text.translate(_DIRECTIONS)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


# The golden angle keeps neighbouring numbers far apart, and no two of many runs have the same colour.
_ANGLE, _FIRST_HUE = 137.508, 210.0
_LIGHTNESS, _STEPS, _CHROMA = 0.62, (0.0, 0.07, -0.06), 0.14


def run_color(trial_id: int) -> str:
    """Return the colour of a trial as ``#rrggbb``."""
    hue = math.radians((trial_id * _ANGLE + _FIRST_HUE) % 360)
    return _hex(_LIGHTNESS + _STEPS[trial_id % 3], _CHROMA * math.cos(hue), _CHROMA * math.sin(hue))


def _hex(lightness: float, a: float, b: float) -> str:
    """Return a colour of OKLab in sRGB.

    Source: Ottosson, "A perceptual color space for image processing", 2020.
    """
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(value, 0.0), 1.0))):02x}" for value in linear)


def _gamma(value: float) -> float:
    return 12.92 * value if value <= 0.0031308 else 1.055 * value ** (1 / 2.4) - 0.055
