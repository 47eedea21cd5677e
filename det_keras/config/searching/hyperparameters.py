"""The kinds of hyperparameters: how each is written, sampled and divided for a grid."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeGuard

from det_keras.config.problems import did_you_mean
from det_keras.config.searching.lengths import INT64_MAX
from det_keras.config.searching.random_stream import RandomStream
from det_keras.config.yaml_text import to_plain
from det_keras.errors import ConfigError, ConfigProblem

_INT64_MIN = -(2**63)


class Hyperparameter(ABC):
    """One leaf of a space.

    Attributes:
        type_name: the `type` in a config.
        keys: the valid keys in addition to `type`, and whether each is required.
    """

    type_name: ClassVar[str]
    keys: ClassVar[Mapping[str, bool]]

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the normal form, with its `type`."""

    @abstractmethod
    def sample(self, stream: RandomStream) -> Any:
        """Return one value, drawn from `stream`."""

    @abstractmethod
    def contains(self, value: Any) -> bool:
        """Return whether a value is one of those that can be drawn."""

    @abstractmethod
    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        """Return this leaf with fewer values.

        Args:
            wanted: the lowest and the highest value of a range, or the values of a list.
            path: its path in the config, for errors.

        Raises:
            ConfigError: `wanted` is invalid, or leaves nothing.
        """

    @abstractmethod
    def point_count(self) -> int | None:
        """Return the number of grid points; None if a `count` is missing."""

    @abstractmethod
    def points(self) -> list[Any]:
        """Return the grid points in order.

        Raises:
            ValueError: a `count` is missing.
        """


@dataclass(frozen=True)
class Const(Hyperparameter):
    """One fixed value."""

    type_name: ClassVar[str] = "const"
    keys: ClassVar[Mapping[str, bool]] = {"val": True}
    val: Any

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type_name, "val": copy.deepcopy(self.val)}

    def sample(self, stream: RandomStream) -> Any:
        return copy.deepcopy(self.val)

    def contains(self, value: Any) -> bool:
        return _is_same(value, self.val)

    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        raise ConfigError.at(path, f"has one value only, {self.val!r}.")

    def point_count(self) -> int:
        return 1

    def points(self) -> list[Any]:
        return [copy.deepcopy(self.val)]


@dataclass(frozen=True)
class Categorical(Hyperparameter):
    """One of the listed values."""

    type_name: ClassVar[str] = "categorical"
    keys: ClassVar[Mapping[str, bool]] = {"vals": True}
    vals: tuple[Any, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"type": self.type_name, "vals": self.points()}

    def sample(self, stream: RandomStream) -> Any:
        return copy.deepcopy(self.vals[stream.randbelow(len(self.vals))])

    def contains(self, value: Any) -> bool:
        return any(_is_same(value, known) for known in self.vals)

    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        unknown = [value for value in wanted if not self.contains(value)]
        if unknown or not wanted:
            known = ", ".join(repr(value) for value in self.vals)
            raise ConfigError.at(path, f"must be some of {known}, received {list(wanted)!r}.")
        return _one_or_more([value for value in self.vals if any(_is_same(value, one) for one in wanted)])

    def point_count(self) -> int:
        return len(self.vals)

    def points(self) -> list[Any]:
        return [copy.deepcopy(value) for value in self.vals]


@dataclass(frozen=True)
class IntRange(Hyperparameter):
    """An integer from a range, both ends included."""

    type_name: ClassVar[str] = "int"
    keys: ClassVar[Mapping[str, bool]] = {"minval": True, "maxval": True, "count": False}
    minval: int
    maxval: int
    count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return _range_dict(self, minval=self.minval, maxval=self.maxval)

    def sample(self, stream: RandomStream) -> int:
        return self.minval + stream.randbelow(self.maxval - self.minval + 1)

    def contains(self, value: Any) -> bool:
        return _is_int(value, self.minval, self.maxval)

    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        low, high = _overlap(wanted, self.minval, self.maxval, path)
        first, last = math.ceil(low), math.floor(high)
        if first > last:
            raise ConfigError.at(path, f"has no whole number from {low!r} to {high!r}.")
        return Const(first) if first == last else IntRange(first, last, self.count)

    def point_count(self) -> int | None:
        return None if self.count is None else min(self.count, self.maxval - self.minval + 1)

    def points(self) -> list[Any]:
        count = _counted(self)
        if count == 1:
            return [_round_half_away(self.minval + self.maxval, 2)]
        width, gaps = self.maxval - self.minval, count - 1
        return [_round_half_away(self.minval * gaps + index * width, gaps) for index in range(count)]


@dataclass(frozen=True)
class DoubleRange(Hyperparameter):
    """A float from a range."""

    type_name: ClassVar[str] = "double"
    keys: ClassVar[Mapping[str, bool]] = {"minval": True, "maxval": True, "count": False}
    minval: float
    maxval: float
    count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return _range_dict(self, minval=self.minval, maxval=self.maxval)

    def sample(self, stream: RandomStream) -> float:
        return self.minval + (self.maxval - self.minval) * stream.random_sample()

    def contains(self, value: Any) -> bool:
        return _is_number(value) and _is_within(value, self.minval, self.maxval)

    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        low, high = _overlap(wanted, self.minval, self.maxval, path)
        return Const(low) if low == high else DoubleRange(low, high, self.count)

    def point_count(self) -> int | None:
        return self.count

    def points(self) -> list[Any]:
        return _even_floats(self.minval, self.maxval, _counted(self))


@dataclass(frozen=True)
class LogRange(Hyperparameter):
    """`base` to a power between two exponents."""

    type_name: ClassVar[str] = "log"
    keys: ClassVar[Mapping[str, bool]] = {"base": True, "minval": True, "maxval": True, "count": False}
    base: float
    minval: float
    maxval: float
    count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return _range_dict(self, base=self.base, minval=self.minval, maxval=self.maxval)

    def sample(self, stream: RandomStream) -> float:
        return self._power(self.minval + (self.maxval - self.minval) * stream.random_sample())

    def contains(self, value: Any) -> bool:
        low, high = sorted((self._power(self.minval), self._power(self.maxval)))
        return _is_number(value) and _is_within(value, low, high)

    def narrowed(self, wanted: Sequence[Any], path: str) -> Hyperparameter:
        lowest, highest = sorted((self._power(self.minval), self._power(self.maxval)))
        low, high = _overlap(wanted, lowest, highest, path)
        if low == high:
            return Const(low)
        # Rounding of power and logarithm may give a result slightly outside of the range.
        exponents = [math.log(value) / math.log(self.base) for value in (low, high)]
        first, last = (min(max(one, self.minval), self.maxval) for one in sorted(exponents))
        return LogRange(self.base, first, last, self.count) if first < last else Const(low)

    def point_count(self) -> int | None:
        return self.count

    def points(self) -> list[Any]:
        return [self._power(exponent) for exponent in _even_floats(self.minval, self.maxval, _counted(self))]

    def _power(self, exponent: float) -> float:
        return float(math.pow(self.base, exponent))


_KINDS: dict[str, type[Hyperparameter]] = {
    kind.type_name: kind for kind in (IntRange, DoubleRange, LogRange, Const, Categorical)
}


def parse_hyperparameter(raw: Any, path: str) -> Hyperparameter:
    """Parse a leaf: a mapping with a `type`, or a plain value for a const.

    Raises:
        ConfigError: `raw` is invalid; the error has all problems.
    """
    if not isinstance(raw, Mapping):
        return Const(to_plain(raw, path))
    type_name = raw["type"]
    kind = _KINDS.get(type_name) if isinstance(type_name, str) else None
    if kind is None:
        names = ", ".join(_KINDS)
        hint = did_you_mean(type_name, _KINDS)
        raise ConfigError.at(f"{path}.type", f"must be one of {names}, received {type_name!r}.{hint}")
    problems = list(_key_problems(raw, kind, path))
    checked = {"int": _check_int, "double": _check_double, "log": _check_log}.get(kind.type_name)
    if checked is not None:
        problems += checked(raw, path)
    if kind is Categorical:
        problems += _check_vals(raw, path)
    if problems:
        raise ConfigError(problems)
    return _build(kind, raw, path)


def _is_same(value: Any, known: Any) -> bool:
    # True equals 1 and 1.0, but is a different value.
    return bool(value == known) and isinstance(value, bool) == isinstance(known, bool)


def _is_within(value: float, low: float, high: float) -> bool:
    # The points of a grid are calculated, and may lie beyond an end by a rounding.
    slack = 1e-9 * (high - low)
    return low - slack <= value <= high + slack


def _one_or_more(values: list[Any]) -> Hyperparameter:
    return Const(values[0]) if len(values) == 1 else Categorical(tuple(values))


def _overlap(wanted: Sequence[Any], low: float, high: float, path: str) -> tuple[float, float]:
    """Return the part of a range that a narrower one leaves."""
    if len(wanted) != 2 or not all(map(_is_number, wanted)) or wanted[0] > wanted[1]:
        raise ConfigError.at(path, f"must be a lowest and a highest number, received {list(wanted)!r}.")
    first, last = max(low, wanted[0]), min(high, wanted[1])
    if first > last:
        raise ConfigError.at(
            path, f"is from {low!r} to {high!r}; {wanted[0]!r} to {wanted[1]!r} leaves nothing."
        )
    return first, last


def _build(kind: type[Hyperparameter], raw: Mapping[str, Any], path: str) -> Hyperparameter:
    if kind is Const:
        return Const(to_plain(raw["val"], f"{path}.val"))
    if kind is Categorical:
        return Categorical(tuple(to_plain(raw["vals"], f"{path}.vals")))
    count = None if raw.get("count") is None else int(raw["count"])
    if kind is IntRange:
        return IntRange(int(raw["minval"]), int(raw["maxval"]), count)
    if kind is DoubleRange:
        return DoubleRange(raw["minval"], raw["maxval"], count)
    return LogRange(raw["base"], raw["minval"], raw["maxval"], count)


def _key_problems(raw: Mapping[str, Any], kind: type[Hyperparameter], path: str) -> list[ConfigProblem]:
    problems = []
    for name in raw:
        if name != "type" and name not in kind.keys:
            known = ", ".join(f"`{key}`" for key in kind.keys)
            message = (
                f"is not a key of type `{kind.type_name}`, which has {known}.{did_you_mean(name, kind.keys)}"
            )
            problems.append(ConfigProblem(f"{path}.{name}", message))
    for name, required in kind.keys.items():
        # The value of a const may be null; every other key requires a value.
        missing = name not in raw if kind is Const else raw.get(name) is None
        if required and missing:
            problems.append(ConfigProblem(f"{path}.{name}", f"is required for type `{kind.type_name}`."))
    return problems


def _check_int(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    problems = [
        ConfigProblem(f"{path}.{name}", f"must be a whole number of 64 bits, received {raw[name]!r}.")
        for name in ("minval", "maxval")
        if raw.get(name) is not None and not _is_int(raw[name], _INT64_MIN, INT64_MAX)
    ]
    return problems + _check_order(raw, path) + _check_count(raw, path)


def _check_double(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    return _check_numbers(raw, path, ("minval", "maxval")) + _check_order(raw, path) + _check_count(raw, path)


def _check_log(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    problems = _check_numbers(raw, path, ("base", "minval", "maxval"))
    base = raw.get("base")
    if _is_number(base) and (base <= 0 or base == 1):
        problems.append(ConfigProblem(f"{path}.base", f"must be above 0 and not 1, received {base!r}."))
    problems += _check_order(raw, path) + _check_count(raw, path)
    if not problems and all(raw.get(name) is not None for name in ("base", "minval", "maxval")):
        problems += _check_powers(raw, path)
    return problems


def _check_powers(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    return [
        ConfigProblem(
            f"{path}.{name}",
            f"is an exponent, and {raw['base']!r} to the power {raw[name]!r} is too large for a number.",
        )
        for name in ("minval", "maxval")
        if not _is_representable(raw["base"], raw[name])
    ]


def _is_representable(base: float, exponent: float) -> bool:
    try:
        math.pow(base, exponent)
    except OverflowError:
        return False
    return True


def _check_numbers(raw: Mapping[str, Any], path: str, names: tuple[str, ...]) -> list[ConfigProblem]:
    return [
        ConfigProblem(f"{path}.{name}", f"must be a number, received {raw[name]!r}.")
        for name in names
        if raw.get(name) is not None and not _is_number(raw[name])
    ]


def _check_order(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    low, high = raw.get("minval"), raw.get("maxval")
    if not _is_number(low) or not _is_number(high) or low < high:
        return []
    hint = " For a single value write the value itself." if low == high else ""
    message = f"`minval` must be below `maxval`, received {low!r} and {high!r}.{hint}"
    return [ConfigProblem(path, message)]


def _check_count(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    count = raw.get("count")
    if count is None or _is_int(count, 1, INT64_MAX):
        return []
    return [ConfigProblem(f"{path}.count", f"must be a whole number, at least 1, received {count!r}.")]


def _check_vals(raw: Mapping[str, Any], path: str) -> list[ConfigProblem]:
    vals = raw.get("vals")
    if vals is None or (isinstance(vals, (list, tuple)) and vals):
        return []
    return [ConfigProblem(f"{path}.vals", f"must be a list of at least one value, received {vals!r}.")]


def _is_number(value: Any) -> TypeGuard[float]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the range of floats
        return False


def _is_int(value: Any, low: int, high: int) -> bool:
    return _is_number(value) and value == int(value) and low <= value <= high


def _range_dict(leaf: IntRange | DoubleRange | LogRange, **bounds: float) -> dict[str, Any]:
    form = {"type": leaf.type_name, **bounds}
    return form if leaf.count is None else form | {"count": leaf.count}


def _counted(leaf: IntRange | DoubleRange | LogRange) -> int:
    count = leaf.point_count()
    if count is None:
        raise ValueError(f"A grid requires a `count` for {leaf.to_dict()!r}.")
    return count


def _even_floats(low: float, high: float, count: int) -> list[float]:
    if count == 1:
        return [(low + high) / 2]
    # Multiplied before the division, to get the same last digits as Determined.
    return [low + index * (high - low) / (count - 1) for index in range(count)]


def _round_half_away(numerator: int, denominator: int) -> int:
    """Return the fraction rounded to an integer, halves away from zero; Python's `round` rounds halves to even."""
    quotient = (2 * abs(numerator) + denominator) // (2 * denominator)
    return quotient if numerator >= 0 else -quotient
