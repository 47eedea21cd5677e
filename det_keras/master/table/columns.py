"""The columns of a table: which there are, and what a name means."""

from __future__ import annotations

import abc
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from det_keras.master.errors import InvalidArgumentError

#: What groups have of each column of numbers: the mean, and the standard deviation of the population.
GROUP_FORMS = ("mean", "sd")
_NEAREST = 3


class Numbered(Protocol):
    """A row: a trial or an experiment."""

    @property
    def id(self) -> int:
        """Its number."""


RowT = TypeVar("RowT", bound=Numbered)
#: From a row to its value in a column.
Value = Callable[[RowT], Any]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        key: its name, as filters and addresses have it.
        title: its heading.
        kind: ``id``, ``experiment``, ``name``, ``text``, ``state``, ``labels``, ``hparam``, ``metric``, ``number``,
            ``progress`` (from 0 to 1), ``size`` (in bytes), ``time`` or ``duration`` (in seconds).
        better: ``min`` or ``max``: which values are best; empty where none are.
    """

    key: str
    title: str
    kind: str
    better: str = ""


#: In the rows of groups.
COUNT = Column("trials", "Trials", "number")


class Names(abc.ABC, Generic[RowT]):
    """The names that the rows of a table have, and the value of each.

    Args:
        columns: all columns by their keys.
        is_empty: whether there are no rows: then nobody knows which names there could be.
    """

    #: What a row is, for errors.
    word: ClassVar[str]
    #: What a row is counted as in groups.
    counted: ClassVar[Column]
    #: How a filter may call columns, too.
    aliases: ClassVar[Mapping[str, str]] = {}

    def __init__(self, columns: Mapping[str, Column], *, is_empty: bool) -> None:
        self.all = dict(columns)
        self._is_empty = is_empty

    @abc.abstractmethod
    def value_of(self, name: str) -> Value[RowT]:
        """Return a function from a row to its value under a name; None for rows without one."""

    @abc.abstractmethod
    def fitting(self, rows: Sequence[RowT], asked: Iterable[str]) -> list[Column]:
        """Return the columns that say most about rows.

        Args:
            rows: the rows.
            asked: names that are shown in any case.
        """

    @abc.abstractmethod
    def searched(self, row: RowT) -> str:
        """Return the text in which words are searched."""

    @abc.abstractmethod
    def is_archived(self, row: RowT) -> bool:
        """Return whether a row is left out unless it is asked for."""

    def compared(self, name: str) -> Value[RowT]:
        """Return what a filter compares under a name."""
        return self.value_of(name)

    def check(self, name: str, *, is_grouped: bool) -> None:
        """Check that a name is known; groups have means and deviations, too.

        Raises:
            InvalidArgumentError: it is not.
        """
        form, _, rest = name.partition(".")
        bare = rest if is_grouped and form in GROUP_FORMS else name
        if self._is_empty or (is_grouped and name == self.counted.key) or self.candidates(bare):
            return
        known = {key.lower(): key for key in self.all}
        near = difflib.get_close_matches(name.lower(), known, _NEAREST, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'`{known[key]}`' for key in near)}?" if near else ""
        quoted = "" if near else " To search for a text with an operator in it, put it into quotes."
        raise InvalidArgumentError(f"No {self.word} has a value named `{name}`.{hint}{quoted}")

    def key_of(self, name: str) -> str:
        """Return the key of a name; itself if it is unknown."""
        return next(iter(self.candidates(name)), name)

    def column(self, name: str) -> Column:
        """Return the column of a name."""
        key = self.key_of(name)
        return self.all.get(key, Column(key, key, "text"))

    def candidates(self, name: str) -> list[str]:
        """Return the keys that a name may mean, the likeliest first: `lr` is also the end of `optimizer.lr`."""
        if not name:
            return []
        lowered = name.lower()
        lowered = self.aliases.get(lowered, lowered)
        exact = [key for key in self.all if key.lower() == lowered]
        ends = (key for key in self.all if key.lower().endswith(f".{lowered}"))
        return [*exact, *(key for key in ends if not key.startswith(("min.", "max.")))]
