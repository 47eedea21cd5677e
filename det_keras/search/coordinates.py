"""Points of a space as flat numbers, for statistical samplers.

A leaf that varies is one number: its value, the exponent for a `log` leaf, the index for a `categorical` leaf.
Leaves are named by their position in the space, since the names of hyperparameters may contain any characters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from det_keras.config import Space
from det_keras.config.searching.hyperparameters import Categorical, Const, Hyperparameter, LogRange


def varying_leaves(space: Space) -> dict[str, Hyperparameter]:
    """Return all leaves that are not const, by position."""
    return {str(place): leaf for place, (_, leaf) in enumerate(space.leaves()) if not isinstance(leaf, Const)}


def coordinates_of(space: Space, point: Mapping[str, Any]) -> dict[str, float]:
    """Return the coordinates of a point, nested as the space is."""
    values = _values(space, point)
    numbers = {}
    for place, (_, leaf) in enumerate(space.leaves()):
        value = next(values)
        if not isinstance(leaf, Const):
            numbers[str(place)] = _number(leaf, value)
    return numbers


def point_at(space: Space, coordinates: Mapping[str, float]) -> dict[str, Any]:
    """Return the point at coordinates, nested as the space is."""
    values = iter(
        [
            copy.deepcopy(leaf.val) if isinstance(leaf, Const) else _value(leaf, coordinates[str(place)])
            for place, (_, leaf) in enumerate(space.leaves())
        ]
    )
    return _nested(space, values)


def _values(space: Space, point: Mapping[str, Any]) -> Iterator[Any]:
    for name, entry in space.entries.items():
        if isinstance(entry, Space):
            yield from _values(entry, point[name])
        else:
            yield point[name]


def _nested(space: Space, values: Iterator[Any]) -> dict[str, Any]:
    return {
        name: _nested(entry, values) if isinstance(entry, Space) else next(values)
        for name, entry in space.entries.items()
    }


def _number(leaf: Hyperparameter, value: Any) -> float:
    if isinstance(leaf, Categorical):
        # True equals 1 and 1.0, but is a different value.
        return next(i for i, known in enumerate(leaf.vals) if known == value and type(known) is type(value))
    if isinstance(leaf, LogRange):
        # Rounding of power and logarithm may give a result slightly outside of the range.
        return min(max(math.log(value) / math.log(leaf.base), leaf.minval), leaf.maxval)
    number: float = value
    return number


def _value(leaf: Hyperparameter, number: float) -> Any:
    if isinstance(leaf, Categorical):
        return copy.deepcopy(leaf.vals[int(number)])
    if isinstance(leaf, LogRange):
        return float(math.pow(leaf.base, number))
    return number
