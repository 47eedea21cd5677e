"""Metrics as a pandas DataFrame. pandas is optional and only imported when a frame is asked for."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from det_keras.errors import DetError

_INT64 = range(-(2**63), 2**63)


def metrics_frame(
    index: Sequence[Hashable], index_names: Sequence[str], columns: Mapping[str, Mapping[Any, Any]]
) -> Any:
    """Return a DataFrame.

    A column of integers is ``int64``, or ``Int64`` if values are missing. A column of other numbers is ``float64``:
    NaN stays NaN, and a missing value is NaN too. Every other column has the dtype ``object``.

    Args:
        index: the rows; tuples if there are several index names.
        index_names: names of the levels of the index.
        columns: name -> row -> value.

    Returns:
        A `pandas.DataFrame` with the columns in the given order.

    Raises:
        DetError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise DetError("`to_frame` requires the package `pandas`: `pip install pandas`.") from None
    if len(index_names) > 1:
        rows = pd.MultiIndex.from_tuples(index, names=index_names)
        if not index:
            # Without rows pandas does not know the number of levels.
            rows = pd.MultiIndex.from_arrays([[] for _ in index_names], names=index_names)
    else:
        rows = pd.Index(index, name=index_names[0], dtype="int64")
    series = {
        name: pd.Series([values.get(row) for row in index], index=rows, dtype=_dtype(values, len(index)))
        for name, values in columns.items()
    }
    return pd.DataFrame(series, index=rows)


def _dtype(values: Mapping[Any, Any], count: int) -> str:
    found = list(values.values())
    if all(isinstance(value, int) and not isinstance(value, bool) and value in _INT64 for value in found):
        return "int64" if len(found) == count else "Int64"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in found):
        return "float64"
    return "object"
