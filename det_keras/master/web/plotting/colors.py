"""The colours of runs in reports; the same as on the pages (`static/colors.js`)."""

from __future__ import annotations

import math

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
