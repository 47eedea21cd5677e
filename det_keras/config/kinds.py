"""The kinds of values of fields: how each is checked, parsed and converted back.

Written by hand and not with a validation library, because of the messages: each states what was received and what is
valid, in the words of the config, and all problems are reported together.
"""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from det_keras.config.problems import Problems, did_you_mean
from det_keras.config.searching.lengths import INT64_MAX, Length
from det_keras.config.searching.space import Space
from det_keras.config.yaml_text import to_plain
from det_keras.errors import ConfigError, ConfigProblem

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """The position of a value in the config, and how strictly it is parsed.

    Attributes:
        path: dotted from the root; empty for the root.
        strict: whether unknown keys and wrong values are errors. The complete config that a trial gets is parsed
            leniently: it may come from a newer release.
    """

    path: str = ""
    strict: bool = True

    def below(self, name: object) -> Place:
        """Return the place of the key `name`."""
        return Place(f"{self.path}.{name}" if self.path else str(name), self.strict)

    def item(self, index: int) -> Place:
        """Return the place of a list's item."""
        return Place(f"{self.path}[{index}]", self.strict)

    def problem(self, message: str) -> ConfigProblem:
        """Return the problem `message` at this place."""
        return ConfigProblem(self.path, message)

    def error(self, message: str) -> ConfigError:
        """Return an error with the problem `message` at this place."""
        return ConfigError([self.problem(message)])


class Kind(ABC, Generic[T]):
    """The kind of a field's values."""

    @abstractmethod
    def parse(self, raw: Any, place: Place) -> T:
        """Return the value of `raw`, which is not None.

        Raises:
            ConfigError: `raw` is invalid; the error has all problems.
        """

    def dump(self, value: T) -> Any:
        """Return `value` as plain JSON values, which `parse` reads."""
        return value


def shown(value: Any) -> str:
    """Return `value` for a message, shortened to a readable length."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _received(value: Any) -> str:
    hint = " Remove the quotes." if isinstance(value, str) and re.fullmatch(r"\s*-?[\d.]+\s*", value) else ""
    return f"received {shown(value)}.{hint}"


#: Most seconds of a time limit, a hundred years: an end outside of the calendar could not be computed.
MOST_SECONDS = 100 * 366 * 24 * 60 * 60


@dataclass(frozen=True)
class Integer(Kind[int]):
    """An integer; a float without a fraction is accepted, a boolean is not."""

    minimum: int | None = None
    maximum: int | None = None

    def parse(self, raw: Any, place: Place) -> int:
        value = int(raw) if isinstance(raw, float) and raw.is_integer() else raw
        wrong = isinstance(value, bool) or not isinstance(value, int)
        too_small = not wrong and self.minimum is not None and value < self.minimum
        too_large = not wrong and value > (INT64_MAX if self.maximum is None else self.maximum)
        if wrong or too_small or too_large:
            raise place.error(f"must be a whole number{self._range()}, {_received(raw)}")
        return int(value)

    def _range(self) -> str:
        if self.minimum is not None and self.maximum is not None:
            return f" from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f", at least {self.minimum}"
        return "" if self.maximum is None else f", at most {self.maximum}"


@dataclass(frozen=True)
class PowerOfTwo(Kind[int]):
    """An integer that is a power of two: 1, 2, 4 ..."""

    def parse(self, raw: Any, place: Place) -> int:
        value = Integer(minimum=1).parse(raw, place)
        if value & (value - 1):
            raise place.error(
                f"must be a power of two, such as {1 << value.bit_length() - 1}, {_received(raw)}"
            )
        return value


@dataclass(frozen=True)
class Number(Kind[float]):
    """A finite number above `above`."""

    above: float

    def parse(self, raw: Any, place: Place) -> float:
        wrong = isinstance(raw, bool) or not isinstance(raw, (int, float))
        if wrong or not self.above < raw <= sys.float_info.max:
            raise place.error(f"must be a number above {self.above:g}, {_received(raw)}")
        return raw  # type: ignore[no-any-return]  # checked above


class Boolean(Kind[bool]):
    """True or false."""

    def parse(self, raw: Any, place: Place) -> bool:
        if not isinstance(raw, bool):
            raise place.error(f"must be true or false, received {shown(raw)}.")
        return raw


@dataclass(frozen=True)
class Text(Kind[str]):
    """Text.

    Attributes:
        secret: whether messages must not repeat the value.
        starts_with: required prefix.
        empty: whether it may be empty.
    """

    secret: bool = False
    starts_with: str = ""
    empty: bool = True

    def parse(self, raw: Any, place: Place) -> str:
        value = "a value of another type" if self.secret else shown(raw)
        if not isinstance(raw, str):
            hint = " Put it in quotes." if isinstance(raw, (bool, int, float)) else ""
            raise place.error(f"must be text, received {value}.{hint}")
        if not raw.startswith(self.starts_with):
            raise place.error(f"must start with `{self.starts_with}`, received {value}.")
        if not raw and not self.empty:
            raise place.error("must not be empty.")
        return raw


@dataclass(frozen=True)
class Choice(Kind[str]):
    """One of a few names.

    Attributes:
        names: the valid names.
        hint: a sentence for the error message.
        open: whether lenient parsing accepts any name, since the other fields depend on it.
    """

    names: Sequence[str]
    hint: str = ""
    open: bool = False

    def parse(self, raw: Any, place: Place) -> str:
        known = isinstance(raw, str) and (raw in self.names or (self.open and not place.strict))
        if not known:
            names = ", ".join(f"`{name}`" for name in self.names)
            advice = f" {self.hint}" if self.hint else did_you_mean(raw, self.names)
            raise place.error(f"must be one of {names}, received {shown(raw)}.{advice}")
        return str(raw)


@dataclass(frozen=True)
class ListOf(Kind[tuple[T, ...]]):
    """A list whose items are all of one kind."""

    kind: Kind[T]

    def parse(self, raw: Any, place: Place) -> tuple[T, ...]:
        if not isinstance(raw, (list, tuple)):
            raise place.error(f"must be a list, received {shown(raw)}.")
        items: list[T] = []
        problems = Problems()
        for index, item in enumerate(raw):
            with problems.collected():
                items.append(self.kind.parse(item, place.item(index)))
        problems.raise_if_any()
        return tuple(items)

    def dump(self, value: Iterable[T]) -> list[Any]:
        return [self.kind.dump(item) for item in value]


@dataclass(frozen=True)
class MapOf(Kind[dict[str, T]]):
    """A mapping whose values are all of one kind.

    Attributes:
        kind: the kind of the values.
        names: the valid keys; None for any.
    """

    kind: Kind[T]
    names: Sequence[str] | None = None

    def parse(self, raw: Any, place: Place) -> dict[str, T]:
        if not isinstance(raw, Mapping):
            raise place.error(f"must be a mapping, received {shown(raw)}.")
        values: dict[str, T] = {}
        problems = Problems()
        for name, value in raw.items():
            below = place.below(name)
            if self.names is not None and name not in self.names and place.strict:
                known = ", ".join(f"`{key}`" for key in self.names)
                problems.append(
                    below.problem(f"unknown key; known are {known}.{did_you_mean(name, self.names)}")
                )
                continue
            with problems.collected():
                values[str(name)] = self.kind.parse(value, below)
        problems.raise_if_any()
        return values

    def dump(self, value: Mapping[str, T]) -> dict[str, Any]:
        return {name: self.kind.dump(item) for name, item in value.items()}


class Anything(Kind[Any]):
    """Any plain value; inner nulls stay null."""

    def parse(self, raw: Any, place: Place) -> Any:
        return to_plain(raw, place.path)

    def dump(self, value: Any) -> Any:
        return to_plain(value, "")


class PlainMapping(Kind[dict[str, Any]]):
    """A mapping with any plain values."""

    def parse(self, raw: Any, place: Place) -> dict[str, Any]:
        if not isinstance(raw, Mapping):
            raise place.error(f"must be a mapping, received {shown(raw)}.")
        value: dict[str, Any] = to_plain(raw, place.path)
        return value

    def dump(self, value: dict[str, Any]) -> Any:
        return to_plain(value, "")


@dataclass(frozen=True)
class LengthKind(Kind[Length]):
    """An amount of training with its unit."""

    minimum: int = 0

    def parse(self, raw: Any, place: Place) -> Length:
        return Length.parse(raw, path=place.path, minimum=self.minimum)

    def dump(self, value: Length) -> dict[str, int]:
        return value.to_dict()


class SpaceKind(Kind[Space]):
    """A space of hyperparameters."""

    def parse(self, raw: Any, place: Place) -> Space:
        return Space.parse(raw, path=place.path)

    def dump(self, value: Space) -> dict[str, Any]:
        return value.to_dict()
