"""The space of hyperparameters of a search: nested mappings of leaves.

A mapping with a `type` is a leaf, a mapping without a `type` is a nested level, and all other values are constants.
Names are visited in ascending byte order at every level, both in sampling and in grids, so that the same config and
seed give the same trials, whatever the order in the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from det_keras.config.folding import as_int
from det_keras.config.problems import Problems, did_you_mean
from det_keras.config.searching.hyperparameters import (
    Categorical,
    Const,
    DoubleRange,
    Hyperparameter,
    IntRange,
    LogRange,
    parse_hyperparameter,
)
from det_keras.config.searching.random_stream import RandomStream
from det_keras.errors import ConfigError, ConfigProblem

_BATCH_SIZE = "global_batch_size"

_EntryParser = Callable[[Any, str], "Hyperparameter | Space"]


@dataclass(frozen=True)
class Space:
    """A parsed `hyperparameters` section.

    Attributes:
        entries: leaves and nested spaces by name, in the order in which names are visited.
    """

    entries: Mapping[str, Hyperparameter | Space] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Any, *, path: str = "hyperparameters") -> Space:
        """Parse a `hyperparameters` section.

        Args:
            raw: names to values, as described in the module.
            path: its path in the config, for errors.

        Raises:
            ConfigError: `raw` is invalid; the error has all problems.
        """
        return _parse_level(raw, path, _parse_top_entry)

    def to_dict(self) -> dict[str, Any]:
        """Return the normal form, in which every leaf is a mapping with its `type`; `parse` reads it."""
        return {name: entry.to_dict() for name, entry in self.entries.items()}

    def sample(self, stream: RandomStream) -> dict[str, Any]:
        """Return one point, nested like the space; constants draw nothing from `stream`."""
        return {name: entry.sample(stream) for name, entry in self.entries.items()}

    def constants(self) -> dict[str, Any]:
        """Return the only point of a space of constants.

        Raises:
            ValueError: a leaf is not const.
        """
        if not self.is_constant:
            names = ", ".join(f"`{name}`" for name in self.variable_names())
            raise ValueError(f"The space has no single point: {names} vary.")
        return self.sample(RandomStream(0))

    def grid(self) -> list[Mapping[str, Any]]:
        """Return all grid points; the first name varies slowest. An empty space has one empty point.

        Raises:
            ConfigError: int, double or log leaves have no `count`; the message names all of them.
        """
        return list(self.grid_points())

    def grid_points(self) -> Sequence[Mapping[str, Any]]:
        """Return the points of `grid`; each is made when it is asked for, since a search has a few of many at a time.

        Raises:
            ConfigError: as `grid`.
        """
        missing = self.uncounted_names()
        if missing:
            names = ", ".join(f"`{name}`" for name in missing)
            raise ConfigError.at("hyperparameters", f"a grid search requires a `count` for {names}.")
        return _GridPoints(self)

    def grid_size(self) -> int:
        """Return the number of points of `grid` without creating them; leaves without `count` count once."""
        return math.prod(leaf.point_count() or 1 for _, leaf in self.leaves())

    @property
    def is_constant(self) -> bool:
        """Whether every leaf is a const."""
        return not self.variable_names()

    def leaves(self) -> Iterator[tuple[str, Hyperparameter]]:
        """Yield every leaf with its dotted name, in the order in which names are visited."""
        for name, entry in self.entries.items():
            if isinstance(entry, Space):
                yield from ((f"{name}.{below}", leaf) for below, leaf in entry.leaves())
            else:
                yield name, entry

    def variable_names(self) -> list[str]:
        """Return the dotted names of all leaves that are not const."""
        return self._names_where(lambda leaf: not isinstance(leaf, Const))

    def uncounted_names(self) -> list[str]:
        """Return the dotted names of all leaves without the `count` that a grid requires."""
        return self._names_where(lambda leaf: leaf.point_count() is None)

    def contains(self, point: Mapping[str, Any]) -> bool:
        """Return whether a point, nested like the space, is one of those that can be drawn."""
        return all(
            name in point
            and (
                isinstance(point[name], Mapping) and entry.contains(point[name])
                if isinstance(entry, Space)
                else entry.contains(point[name])
            )
            for name, entry in self.entries.items()
        )

    def narrowed(self, wanted: Mapping[str, Sequence[Any]], *, path: str = "hyperparameters") -> Space:
        """Return this space with fewer values.

        Args:
            wanted: by dotted name, the lowest and the highest value of a range, or the values of a list.
            path: its path in the config, for errors.

        Raises:
            ConfigError: a name or a value is unknown, or nothing is left; the error has all problems.
        """
        problems = Problems()
        rest = dict(wanted)
        entries: dict[str, Hyperparameter | Space] = {}
        for name, entry in self.entries.items():
            entries[name] = entry
            with problems.collected():
                if isinstance(entry, Space):
                    below = {key for key in rest if key.startswith(f"{name}.")}
                    inner = {key.removeprefix(f"{name}."): rest.pop(key) for key in below}
                    entries[name] = entry.narrowed(inner, path=f"{path}.{name}")
                elif name in rest:
                    entries[name] = entry.narrowed(rest.pop(name), f"{path}.{name}")
        known = self.variable_names()
        for name in rest:
            problems.append(ConfigProblem(f"{path}.{name}", f"is unknown.{did_you_mean(name, known)}"))
        problems.raise_if_any()
        return Space(entries)

    def completed(self, values: Mapping[str, Any], *, path: str = "hyperparameters") -> dict[str, Any]:
        """Return the point, nested like the space, with values of one's own, which may lie outside of the space.

        Args:
            values: by dotted name: all that vary; constants keep their values.
            path: its path in the config, for errors.

        Raises:
            ConfigError: a value is missing or of the wrong kind, or a name is unknown; the error has all problems.
        """
        problems = Problems()
        leaves = dict(self.leaves())
        for name in values.keys() - leaves.keys():
            problems.append(ConfigProblem(f"{path}.{name}", f"is unknown.{did_you_mean(name, leaves)}"))
        for name, leaf in leaves.items():
            if name in values:
                with problems.collected():
                    _refuse_other_kind(leaf, values[name], f"{path}.{name}")
            elif not isinstance(leaf, Const):
                problems.append(ConfigProblem(f"{path}.{name}", "is missing."))
        problems.raise_if_any()
        return _nested_point(self, values)

    def _names_where(self, wanted: Callable[[Hyperparameter], bool]) -> list[str]:
        return [name for name, leaf in self.leaves() if wanted(leaf)]


def _refuse_other_kind(leaf: Hyperparameter, value: Any, path: str) -> None:
    """Refuse what no script could expect: a text for a number, or a batch of no samples."""
    if path == f"hyperparameters.{_BATCH_SIZE}" and _positive_int(value) is None:
        raise ConfigError.at(path, f"must be a whole number of at least 1, received {value!r}.")
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if isinstance(leaf, IntRange) and not (is_number and as_int(value) is not None):
        raise ConfigError.at(path, f"must be a whole number, received {value!r}.")
    if isinstance(leaf, DoubleRange | LogRange) and not is_number:
        raise ConfigError.at(path, f"must be a number, received {value!r}.")


def _nested_point(space: Space, values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    point: dict[str, Any] = {}
    for name, entry in space.entries.items():
        if isinstance(entry, Space):
            point[name] = _nested_point(entry, values, f"{prefix}{name}.")
        elif f"{prefix}{name}" in values:
            value = values[f"{prefix}{name}"]
            point[name] = as_int(value) if isinstance(entry, IntRange) else _fresh(value)
        else:
            assert isinstance(entry, Const)
            point[name] = _fresh(entry.val)
    return point


class _GridPoints(Sequence[Mapping[str, Any]]):
    """The points of a grid over a space.

    Args:
        space: each of its leaves has a number of points.
    """

    def __init__(self, space: Space) -> None:
        # A nested space is one axis, whose points are the product over its leaves.
        self._axes: dict[str, Sequence[Any]] = {
            name: _GridPoints(entry) if isinstance(entry, Space) else entry.points()
            for name, entry in space.entries.items()
        }
        self._length = math.prod(len(axis) for axis in self._axes.values())

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._length))]
        rest = range(self._length)[index]
        places = {}
        for name, axis in reversed(self._axes.items()):
            rest, places[name] = divmod(rest, len(axis))
        return {name: _fresh(axis[places[name]]) for name, axis in self._axes.items()}


def _fresh(value: Any) -> Any:
    """Return a copy of the containers, so that two points never share them."""
    if isinstance(value, dict):
        return {key: _fresh(item) for key, item in value.items()}
    return [_fresh(item) for item in value] if isinstance(value, list) else value


def _parse_level(raw: Any, path: str, parse_entry: _EntryParser) -> Space:
    if not isinstance(raw, Mapping):
        raise ConfigError.at(path, f"must be a mapping of names to values, received {raw!r}.")
    entries: dict[str, Hyperparameter | Space] = {}
    problems = Problems()
    for name, value in raw.items():
        below = f"{path}.{name}"
        if not isinstance(name, str):
            problems.append(
                ConfigProblem(below, f"the name must be text, received {name!r}. Put it in quotes.")
            )
            continue
        with problems.collected():
            entries[name] = parse_entry(value, below)
    problems.raise_if_any()
    return Space(dict(sorted(entries.items(), key=lambda item: item[0].encode())))


def _parse_entry(value: Any, path: str) -> Hyperparameter | Space:
    if isinstance(value, Mapping) and "type" not in value:
        return _parse_level(value, path, _parse_entry)
    return parse_hyperparameter(value, path)


def _parse_top_entry(value: Any, path: str) -> Hyperparameter | Space:
    entry = _parse_entry(value, path)
    if not path.endswith(f".{_BATCH_SIZE}"):
        return entry
    batch_size = _as_batch_size(entry)
    if batch_size is None:
        raise ConfigError.at(
            path,
            "must be a whole number of at least 1, an `int` with `minval` of at least 1, or a `categorical` "
            f"of such numbers, received {value!r}.",
        )
    return batch_size


def _as_batch_size(entry: Hyperparameter | Space) -> Hyperparameter | None:
    # 32.0 becomes 32: scripts use the value in `range` and array shapes, which accept no floats.
    if isinstance(entry, IntRange):
        return entry if entry.minval >= 1 else None
    if isinstance(entry, Const):
        value = _positive_int(entry.val)
        return None if value is None else Const(value)
    if isinstance(entry, Categorical):
        values = [_positive_int(value) for value in entry.vals]
        return None if None in values else Categorical(tuple(values))
    return None


def _positive_int(value: Any) -> int | None:
    number = as_int(value)
    return number if number is not None and number >= 1 else None
