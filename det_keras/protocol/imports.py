"""Imports of other trackers' runs: limits, and columns of numbers as text, which a master and its clients share.

A column is sent as the base64 of its numbers, 8 bytes each (4 for numbers of rows), little-endian. As JSON, ten million
numbers would take both sides half a minute, and would be twice as long.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

#: Most runs of which one call asks whether they are known. SQLite's limit of variables in older builds is 999.
MOST_FOUND = 500
#: Most reports and most values of a part of a run. Other writers wait while it is stored, some tenths of a second.
MOST_REPORTS = 10_000
MOST_VALUES = 100_000

#: The types of columns: steps and times, values, and numbers of rows.
INTEGERS, FLOATS, ROWS = "<i8", "<f8", "<i4"


def packed(column: Any) -> str:
    """Return a NumPy array of one dimension as text."""
    return base64.b64encode(column.astype(column.dtype.newbyteorder("<"), copy=False).tobytes()).decode()


def unpacked(text: str, kind: str) -> Any:
    """Return the NumPy array that `packed` made text of.

    Args:
        text: the text.
        kind: `INTEGERS`, `FLOATS` or `ROWS`.

    Raises:
        ValueError: the text is no column of this type.
    """
    # Imported here: other calls need no NumPy.
    import numpy as np

    try:
        return np.frombuffer(base64.b64decode(text, validate=True), np.dtype(kind)).astype(kind[1:])
    except binascii.Error:
        raise ValueError("it is not base64") from None
