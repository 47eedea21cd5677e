"""Questions about a table: which rows, in which order, which columns, grouped by what; and their answer, a `Table`."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from det_keras.master.table import filters
from det_keras.master.table.columns import GROUP_FORMS, Column, Names, RowT
from det_keras.master.table.filters import Group, Term

_ARCHIVED = "archived"
_NUMERIC = frozenset({"hparam", "metric", "number", "progress", "size", "duration"})
# A longer number is compared in parts.
_NUMBER = re.compile(r"([0-9]{1,18})")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Question:
    """What is asked.

    Attributes:
        filter: see `filters`.
        sort: a name, with ``-`` in front for the largest first; empty for the newest first.
        columns: names of columns; empty for those that fit the rows that are found.
        group: the name by whose values rows are grouped; empty for none.
        is_archived: whether to find what is archived, or what is not; None for both, as with a term on ``archived``.
        offset: how many rows are skipped.
        limit: how many rows are returned at most; None for all.

    Example:
        ```pycon
        >>> Question(filter="val_accuracy>.9", sort="-val_accuracy").sort
        '-val_accuracy'
        ```
    """

    filter: str = ""
    sort: str = ""
    columns: tuple[str, ...] = ()
    group: str = ""
    is_archived: bool | None = False
    offset: int = 0
    limit: int | None = 100

    @property
    def sorted_by(self) -> str:
        """The name by which rows are ordered."""
        return self.sort.removeprefix("-")

    @property
    def is_descending(self) -> bool:
        """Whether the largest is first."""
        return self.sort.startswith("-")

    def part(self, rows: Sequence[_T]) -> Sequence[_T]:
        """Return the rows between `offset` and `limit`."""
        return rows[self.offset : None if self.limit is None else self.offset + self.limit]


@dataclass(frozen=True)
class Table:
    """The answer.

    Attributes:
        columns: of the rows.
        rows: the cells of each.
        ids: the number of the trial or experiment of each row; empty for groups.
        found: how many rows there are without `offset` and `limit`.
        total: how many trials or experiments there are, without those that are left out because they are archived.
        names: all columns that can be chosen, by their names.
        states: the state of each of `ids`, as in a cell.
        best: those of `ids` that are the best of their experiments.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]
    ids: Sequence[int]
    found: int
    total: int
    names: dict[str, Column]
    states: Sequence[str] = ()
    best: Sequence[int] = ()


def answer(rows: Sequence[RowT], names: Names[RowT], question: Question) -> Table:
    """Answer a question.

    Args:
        rows: of the table.
        names: what the rows have.
        question: what is asked.

    Raises:
        InvalidArgumentError: a name is unknown; the error has the nearest ones that are known.
    """
    terms = filters.parse(question.filter)
    compared = filters.names_of(terms)
    for name in filter(None, (*compared, question.sorted_by, *question.columns, question.group)):
        names.check(name, is_grouped=bool(question.group))
    wanted = None if any(names.key_of(name) == _ARCHIVED for name in compared) else question.is_archived
    if wanted is not None:
        rows = [row for row in rows if names.is_archived(row) == wanted]
    found = _matching(rows, terms, names)
    asked = [name for name in (*compared, question.sorted_by) if name and name != _ARCHIVED]
    columns = [names.column(name) for name in question.columns] or names.fitting(found, asked)
    if question.group:
        columns, groups = _grouped(found, names.column(question.group), columns, names)
        place = _place_of_order(question.sorted_by, columns, names)
        groups = in_order(groups, lambda cells: cells[place], is_descending=question.is_descending)
        return Table(columns, question.part(groups), [], len(groups), len(rows), names.all)
    found.sort(key=lambda row: -row.id)
    if question.sort:
        found = in_order(found, names.value_of(question.sorted_by), is_descending=question.is_descending)
    shown = question.part(found)
    values = [names.value_of(column.key) for column in columns]
    cells = [[value(row) for value in values] for row in shown]
    states = list(map(names.value_of("state"), shown))
    return Table(columns, cells, [row.id for row in shown], len(found), len(rows), names.all, states)


def _matching(rows: Sequence[RowT], terms: Sequence[Term], names: Names[RowT]) -> list[RowT]:
    test = Group(tuple(terms)).test(lambda term: names.compared(term.name) if term.name else names.searched)
    return list(filter(test, rows))


def in_order(rows: Sequence[_T], value: Callable[[_T], Any], *, is_descending: bool) -> list[_T]:
    """Return rows in the order of their values; those without a value are last in either direction."""
    keyed = [(_order(value(row)), row) for row in rows]
    with_value = [(key, row) for key, row in keyed if key is not None]
    with_value.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [row for _, row in with_value] + [row for key, row in keyed if key is None]


def _order(value: Any) -> tuple[int, Any] | None:
    """Return what compares values of all kinds, numbers before texts, in which 2 is before 10; None without a value."""
    if value is None or value == []:
        return None
    if isinstance(value, int | float):
        return None if math.isnan(value) else (0, value)
    text = (", ".join(value) if isinstance(value, list) else str(value)).lower()
    return 1, [int(part) if place % 2 else part for place, part in enumerate(_NUMBER.split(text))]


def _grouped(
    rows: Sequence[RowT], group: Column, columns: Sequence[Column], names: Names[RowT]
) -> tuple[list[Column], list[list[Any]]]:
    """Return the columns and rows of groups: the value, how many there are, mean and deviation of each number."""
    by = names.value_of(group.key)
    members: dict[str, list[RowT]] = defaultdict(list)
    for row in rows:
        members[repr(by(row))].append(row)
    kept = [column for column in columns if column.kind in _NUMERIC and column.key != group.key]
    values = {column: names.value_of(column.key) for column in kept}
    numeric = {column: value for column, value in values.items() if any(map(_is_number, map(value, rows)))}
    shown = [group, names.counted]
    for column in numeric:
        kind = column.kind if column.kind in ("duration", "size") else "number"
        shown += [Column(f"{form}.{column.key}", f"{column.title} ({form})", kind) for form in GROUP_FORMS]
    groups = []
    for found in members.values():
        cells = [by(found[0]), len(found)]
        for value in numeric.values():
            cells += _mean_and_deviation(map(value, found))
        groups.append(cells)
    return shown, groups


def _place_of_order(name: str, columns: Sequence[Column], names: Names[RowT]) -> int:
    """Return the column by which groups are ordered: that of the values unless another one is named."""
    keys = [column.key for column in columns]
    wanted = (name, names.key_of(name), f"mean.{names.key_of(name)}")
    return next((keys.index(key) for key in wanted if key in keys), 0)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _mean_and_deviation(values: Iterable[Any]) -> list[float | None]:
    numbers = [float(value) for value in values if _is_number(value)]
    if not numbers:
        return [None, None]
    mean = math.fsum(numbers) / len(numbers)
    return [mean, math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))]
