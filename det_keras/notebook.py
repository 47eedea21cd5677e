"""HTML for objects in a notebook: a small table and a curve.

The output is plain HTML and SVG without external files, so that a saved notebook shows it too. Lines and text use the
colour of the surrounding text, so that they are readable on light and dark pages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from det_keras.display import metric_text, number_text

_MAX_LENGTH = 200
_MAX_POINTS = 240
_MAX_LINES = 4
_MAX_PLOTS = 12
_WIDTH, _HEIGHT = 480, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 20, 18
# Readable on white and on black, and distinguishable without seeing red and green, also by their dashes.
_LINES = (("#3b82c4", ""), ("#d97a1e", "6 3"), ("#2a9d76", "2 2"), ("#a45fc0", "8 2 2 2"))
_SMALL = "display:inline-block;width:300px;max-width:100%;margin:.3em .8em 0 0"
_STYLE = "border-collapse:collapse;margin:.3em 0;font-variant-numeric:tabular-nums"
_CELL = "text-align:left;padding:.1em .9em .1em 0;overflow-wrap:anywhere;max-width:32em"
_NUMBER = "text-align:right;padding:.1em .9em .1em 0;white-space:nowrap"


def card(title: str, *parts: str) -> str:
    """Return the HTML of an object: its title in bold, followed by `parts` from `facts`, `table` and `curves`."""
    head = f"<div><strong><bdi>{_text(title)}</bdi></strong></div>"
    return f'<div style="line-height:1.4;max-width:64em">{head}{"".join(parts)}</div>'


def facts(values: Mapping[str, Any]) -> str:
    """Return a table of names and values."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};font-weight:normal;opacity:.75">{_text(name)}</th>'
        f'<td style="{_CELL}"><bdi>{_text(number_text(value))}</bdi></td></tr>'
        for name, value in values.items()
    )
    return f'<table style="{_STYLE}">{rows}</table>' if rows else ""


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table; numbers are aligned right and shown with four significant digits."""
    head = "".join(f'<th scope="col" style="{_CELL}">{_text(name)}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<table style="{_STYLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def curves(title: str, lines: Mapping[str, tuple[Sequence[Any], Sequence[Any]]]) -> str:
    """Return a plot of up to four lines.

    Args:
        title: describes the plot, also for screen readers.
        lines: name -> (x, y); values that are not finite numbers are gaps.

    Returns:
        An SVG element; "" if there is nothing to draw.
    """
    shown = {name: _points(*line) for name, line in list(lines.items())[:_MAX_LINES]}
    drawn = [point for points in shown.values() for point in points if point is not None]
    if len(drawn) < 2:
        return ""
    x_low, x_high = _range([x for x, _ in drawn])
    y_low, y_high = _range([y for _, y in drawn])
    paths, names = [], []
    for (name, points), (colour, dashes) in zip(shown.items(), _LINES, strict=False):
        path = _path(points, (x_low, x_high), (y_low, y_high))
        stroke = f'stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dashes}"'
        paths.append(f'<path d="{path}" fill="none" {stroke} stroke-linejoin="round"/>')
        names.append(f'<tspan fill="{colour}" style="unicode-bidi:isolate">{_text(name, 40)}</tspan>')
    label = _text(f"{title}, from {metric_text(y_low)} to {metric_text(y_high)}")
    frame = f"M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'style="max-width:100%;font:11px system-ui,sans-serif" fill="currentColor">'
        f'<text x="{_LEFT}" y="12">{" · ".join(names)}</text>'
        f'<path d="{frame}" fill="none" stroke="currentColor" opacity=".4"/>'
        f'<text x="{_LEFT - 5}" y="{_TOP + 8}" text-anchor="end">{_text(metric_text(y_high))}</text>'
        f'<text x="{_LEFT - 5}" y="{_HEIGHT - _BOTTOM}" text-anchor="end">{_text(metric_text(y_low))}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 4}">{_text(number_text(x_low))}</text>'
        f'<text x="{_WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end">{_text(number_text(x_high))}</text>'
        f"{''.join(paths)}</svg>"
    )


def history_card(
    title: str, epochs: Sequence[Any], history: Mapping[str, Sequence[Any]], *before: str
) -> str:
    """Return the HTML of a training's history: each metric's first, last, lowest and highest value, and the losses.

    Args:
        title: title of the card.
        epochs: epoch indices from 0; they are shown from 1.
        history: name -> one value for each epoch; validation metrics may have fewer.
        before: HTML shown above.
    """
    rows = []
    for name, values in history.items():
        numbers = [value for value in map(_finite, values) if value is not None]
        if numbers:
            ends = (_finite(values[0]), _finite(values[-1]), min(numbers), max(numbers))
            rows.append((name, *ends))
    losses = [name for name in ("loss", "val_loss") if name in history] or [row[0] for row in rows[:1]]
    lines = {name: (_places(epochs, len(history[name])), history[name]) for name in losses}
    parts = list(before)
    if rows:
        parts.append(table(("metric", "first", "last", "lowest", "highest"), rows))
    parts.append(curves(f"{' and '.join(losses)} by epoch", lines))
    return card(title, *parts)


def live_card(
    title: str,
    columns: Mapping[str, Mapping[int, Any]],
    running: Mapping[str, Any],
    place: float | None,
) -> str:
    """Return the HTML of a training that runs: the last value of each metric, and a small curve of each.

    A metric and its validation (``val_``) share a curve.

    Args:
        title: title of the card.
        columns: name -> epoch from 0 -> value.
        running: the metrics of the current epoch so far.
        place: the current position in epochs, for the last point of the curves; None if it is unknown.
    """
    names = list(dict.fromkeys([*columns, *running]))
    lines: dict[str, dict[str, tuple[list[float], list[Any]]]] = {}
    rows = []
    for name in names:
        values = columns.get(name, {})
        xs, ys = [float(epoch) + 1 for epoch in values], list(values.values())
        rows.append((name, _finite(running.get(name, ys[-1] if ys else None))))
        if place is not None and name in running:
            xs, ys = [*xs, place], [*ys, running[name]]
        lines.setdefault(name.removeprefix("val_"), {})[name] = (xs, ys)
    drawn = [curves(f"{' and '.join(group)} by epoch", group) for group in list(lines.values())[:_MAX_PLOTS]]
    small = "".join(f'<div style="{_SMALL}">{drawing}</div>' for drawing in drawn if drawing)
    return card(title, table(("metric", "last"), rows) if rows else "", small)


def _places(epochs: Sequence[Any], count: int) -> list[float]:
    """Return the epochs of `count` values; the last value belongs to the last epoch."""
    if count == len(epochs):
        return [float(epoch) + 1 for epoch in epochs]
    last = float(epochs[-1]) + 1 if len(epochs) else float(count)
    return [last * (i + 1) / count for i in range(count)]


def _finite(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        # Values of NumPy and Keras are numbers too; text such as "NaN" is a number in JSON reports.
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return result if math.isfinite(result) else None


def _points(xs: Sequence[Any], ys: Sequence[Any]) -> list[tuple[float, float] | None]:
    """Return the points to draw, None for a gap; of many points, the lowest and highest of each bin."""
    pairs = [(_finite(x), _finite(y)) for x, y in zip(xs, ys, strict=False)]
    points = [None if x is None or y is None else (x, y) for x, y in pairs]
    if len(points) <= _MAX_POINTS:
        return points
    width = -(-2 * len(points) // _MAX_POINTS)
    kept: list[tuple[float, float] | None] = []
    for start in range(0, len(points), width):
        inside = [point for point in points[start : start + width] if point is not None]
        extremes = (
            {min(inside, key=lambda point: point[1]), max(inside, key=lambda point: point[1])}
            if inside
            else ()
        )
        kept += sorted(extremes) or [None]
    return kept


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _path(
    points: Sequence[tuple[float, float] | None], x_range: tuple[float, float], y_range: tuple[float, float]
) -> str:
    parts = []
    is_pen_down = False
    for point in points:
        if point is not None:
            x = _LEFT + _share(point[0], *x_range) * (_WIDTH - _RIGHT - _LEFT)
            y = _TOP + (1 - _share(point[1], *y_range)) * (_HEIGHT - _BOTTOM - _TOP)
            # A single point between two gaps is a move without a line, so nothing is drawn.
            parts.append(f"{'L' if is_pen_down else 'M'}{x:.1f} {y:.1f}")
        is_pen_down = point is not None
    return "".join(parts)


def _share(value: float, low: float, high: float) -> float:
    # Halves: the difference of two large numbers may overflow.
    distance = high / 2 - low / 2
    # Around a large number, or between two tiny numbers, the difference may be 0.
    return (value / 2 - low / 2) / distance if distance else 0.5


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td style="{_NUMBER}">{_text(metric_text(value))}</td>'
    return f'<td style="{_CELL}"><bdi>{_text(number_text(value))}</bdi></td>'


def _text(text: str, max_length: int = _MAX_LENGTH) -> str:
    """Return text escaped for HTML and cut to `max_length` characters."""
    return escape(text if len(text) <= max_length else f"{text[: max_length - 1]}…")
