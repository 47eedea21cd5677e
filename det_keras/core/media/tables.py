"""Tables: lists of dicts, dicts of columns, data frames of pandas, and arrays with two axes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from det_keras.core.media.content import Content, is_of, json_content

logger = logging.getLogger(__name__)

# The titles, and the cells of each column.
_Table = tuple[list[str], Sequence[Sequence[Any]]]

MOST_ROWS = 10_000
MOST_COLUMNS = 50


def table_content(name: str, value: Any, columns: Sequence[str] | None = None) -> Content:
    """Return a table; one that is too long or too wide is cut, with a warning.

    Args:
        name: name of the item, for the warning.
        value: a list of dicts, a dict of columns of equal lengths, a data frame of pandas, or an array with two axes.
        columns: of an array, the titles of its columns; otherwise the columns to store, in this order.

    Raises:
        ValueError: `value` is none of these, or `columns` does not fit.
    """
    wanted = None if columns is None else [str(title) for title in columns]
    if is_of(value, "pandas") and hasattr(value, "iloc") and getattr(value, "ndim", 0) == 2:
        titles, series = _of_frame(value, wanted)
    elif isinstance(value, Mapping):
        titles, series = _of_columns(value, wanted)
    elif isinstance(value, list | tuple) and all(isinstance(row, Mapping) for row in value):
        titles, series = _of_rows(value, wanted)
    else:
        titles, series = _of_array(value, wanted)
    length = len(series[0]) if series else 0
    if length > MOST_ROWS or len(titles) > MOST_COLUMNS:
        logger.warning(
            "Table %r has %s rows and %s columns. Its first %s rows and %s columns are stored.",
            name, f"{length:,}", f"{len(titles):,}", f"{min(length, MOST_ROWS):,}", min(len(titles), MOST_COLUMNS),
        )  # fmt: skip
    kept = [[_cell(cell) for cell in column[:MOST_ROWS]] for column in series[:MOST_COLUMNS]]
    rows = [list(row) for row in zip(*kept, strict=True)]
    return json_content("table", {"columns": titles[:MOST_COLUMNS], "rows": rows})


def _of_frame(frame: Any, wanted: list[str] | None) -> _Table:
    titles = [str(title) for title in frame.columns]
    places = (
        range(len(titles)) if wanted is None else [titles.index(title) for title in _known(wanted, titles)]
    )
    # By place: titles of a data frame may be repeated.
    series = [frame.iloc[:, place].array for place in places]
    return [titles[place] for place in places], series


def _of_columns(table: Mapping[Any, Any], wanted: list[str] | None) -> _Table:
    named = {str(title): column for title, column in table.items()}
    titles = list(named) if wanted is None else _known(wanted, list(named))
    lengths = {}
    for title in titles:
        try:
            lengths[title] = len(named[title])
        except TypeError:
            raise ValueError(f"Column {title!r} of the table is not a list or an array.") from None
        if isinstance(named[title], str | bytes):
            raise ValueError(f"Column {title!r} of the table is not a list or an array.")
    if len(set(lengths.values())) > 1:
        raise ValueError(f"The columns of a table must have equal lengths. Received: {lengths}.")
    return titles, [named[title].array if is_of(named[title], "pandas") else named[title] for title in titles]


def _of_rows(rows: Sequence[Mapping[Any, Any]], wanted: list[str] | None) -> _Table:
    named = [{str(title): cell for title, cell in row.items()} for row in rows]
    found = list(dict.fromkeys(title for row in named for title in row))
    titles = found if wanted is None else _known(wanted, found)
    return titles, [[row.get(title) for row in named] for title in titles]


def _of_array(value: Any, wanted: list[str] | None) -> _Table:
    if isinstance(value, list | tuple) and all(isinstance(row, list | tuple) for row in value):
        # Not as an array, whose cells would all have one type.
        shape: tuple[int, ...] = (len(value), *{len(row) for row in value})
        series: list[Any] = list(zip(*value, strict=len(shape) == 2))
    else:
        array = np.asarray(value)
        shape, series = array.shape, list(array.T) if array.ndim == 2 else []
    if len(shape) != 2:
        raise ValueError(
            "A table is a list of dicts, a dict of columns, a pandas.DataFrame, or an array with two axes. "
            f"Received a {type(value).__name__} of shape {shape}."
        )
    titles = [str(place) for place in range(shape[1])] if wanted is None else wanted
    if len(titles) != shape[1]:
        raise ValueError(f"`columns` names {len(titles)} columns, but the array has {shape[1]}.")
    return titles, series


def _known(wanted: list[str], titles: list[str]) -> list[str]:
    unknown = [title for title in wanted if title not in titles]
    if unknown:
        raise ValueError(f"The table has no column {unknown[0]!r}. It has: {', '.join(map(repr, titles))}.")
    return wanted


def _cell(cell: Any) -> Any:
    """Return a value of JSON: a number, a text, a truth value or None."""
    if isinstance(cell, np.generic | np.ndarray) and cell.ndim == 0 and cell.dtype.kind not in "mM":
        cell = cell.item()
    if cell is None or isinstance(cell, bool | int | float | str):
        return cell
    return None if type(cell).__name__ in ("NaTType", "NAType") else str(cell)
