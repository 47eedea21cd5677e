"""The curves of an experiment as a PNG picture, which Kaleido makes in a browser on the master.

Kaleido draws figures of Plotly, so this is one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from det_keras.master.errors import UnimplementedError

_OPTIONS = {"format": "png", "width": 1200, "height": 640, "scale": 2}
_LONGEST_S = 60
_NEEDS = (
    "Plots as pictures need Kaleido and Chrome or Chromium on the master: "
    "`pip install 'det_keras[png]'`, and for example `apt-get install chromium`."
)
_AXIS = {"gridcolor": "#e4e7ec", "linecolor": "#d9dde3"}
_LONGEST_NAME = 40


def picture(lines: Mapping[str, Any], name: str, plotly: Path) -> bytes:
    """Return curves as a PNG picture.

    Args:
        lines: the curves, as `card_lines` returns them.
        name: name of the metric.
        plotly: the script of Plotly.

    Raises:
        UnimplementedError: Kaleido or a browser is missing.
    """
    try:
        # Imported here: it is an optional dependency.
        import kaleido
    except ImportError:
        raise UnimplementedError(_NEEDS) from None
    # By default Kaleido loads MathJax from the network, and Plotly too if it does not find a local file.
    options = {"mathjax": False, "plotlyjs": plotly, "timeout": _LONGEST_S}
    try:
        content = kaleido.calc_fig_sync(_figure(lines, name), opts=_OPTIONS, kopts=options)
    except Exception as error:
        # Its errors and those of the browser that it starts have no common base class.
        raise UnimplementedError(f"{_NEEDS} Kaleido reports: {_first_line(error)}") from error
    assert isinstance(content, bytes)
    return content


def _figure(lines: Mapping[str, Any], name: str) -> dict[str, Any]:
    data = []
    for line in lines["lines"]:
        points = [(x, y) for x, y in zip(lines["x"], line["y"], strict=True) if y is not None]
        data.append(
            {
                "type": "scatter",
                # Few points may have no line between them.
                "mode": "lines" if len(points) > 2 else "lines+markers",
                "name": f"Trial {line['trial']}",
                "x": [x for x, _ in points],
                "y": [None if y == "NaN" else y for _, y in points],
                "line": {"color": run_color(line["trial"]), "width": 2},
            }
        )
    layout = {
        "xaxis": {"title": {"text": "batches"}, **_AXIS},
        "yaxis": {"title": {"text": _plain(name)}, **_AXIS},
        "showlegend": True,
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "maxheight": 0.25},
        "margin": {"l": 64, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
    }
    return {"data": data, "layout": layout}


def _plain(text: str) -> str:
    """Return text escaped for Plotly, which interprets some tags, and dollars as formulas."""
    text = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300]


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
