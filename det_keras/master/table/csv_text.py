"""A table as text for spreadsheets and other programs."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

from det_keras.master.table.query import Table

# A spreadsheet would calculate such a text.
_FORMULA = re.compile(r"[=+\-@\t\r]")


def csv_text(table: Table) -> str:
    """Return a table as CSV: the names of its columns, and a line for each row.

    Missing values are empty, and NaN is ``nan``. Lists are joined by commas. A text that a spreadsheet would take for a
    formula has a ``'`` in front.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_cell(column.key) for column in table.columns])
    writer.writerows([_cell(value) for value in row] for row in table.rows)
    return file.getvalue()


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return (
        f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _is_number(value) else value
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
