"""The trials of all experiments as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.client import Session
from det_keras.errors import DetError
from det_keras.experimental.trial import decoded
from det_keras.frame import metrics_frame


@dataclass(frozen=True)
class TrialTable:
    """Rows of the table of all trials, as they were when it was fetched.

    Attributes:
        columns: the names of the columns, in their order.
        rows: the cells of each row by the names of the columns; None where a trial has no value.
        total: how many trials there are, whatever the filter.
    """

    columns: list[str]
    rows: list[dict[str, Any]]
    total: int

    @classmethod
    def read(
        cls, session: Session, *, q: str, sort: str, columns: Sequence[str], group: str, limit: int | None
    ) -> TrialTable:
        """Fetch a table; see `det_keras.experimental.client.trial_table`."""
        if session.api.accounts.is_determined():
            raise DetError("Only a master of det_keras has the table of all trials. Use `get_experiment`.")
        answer = session.api.trials.table(q=q, sort=sort, columns=",".join(columns), group=group, limit=limit)
        keys = [column["key"] for column in answer["columns"]]
        rows = [dict(zip(keys, map(decoded, cells), strict=True)) for cells in answer["rows"]]
        return cls(keys, rows, answer["total"])

    def to_frame(self) -> Any:
        """Return the rows as a pandas DataFrame, in their order.

        Returns:
            A `pandas.DataFrame` with a column for each of `columns`. Columns of numbers are numeric.

        Raises:
            DetError: pandas is not installed.
        """
        places = range(len(self.rows))
        columns = {
            name: {
                place: row[name]
                for place, row in zip(places, self.rows, strict=True)
                if row[name] is not None
            }
            for name in self.columns
        }
        return metrics_frame(places, ["row"], columns)
