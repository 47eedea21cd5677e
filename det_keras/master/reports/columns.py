"""Many reports of one group at once, as columns: what an import of another tracker's run stores.

A report in a call of its own takes a millisecond, and even among many in one call 50 microseconds. Here the steps are
compared with the stored ones once, all rows are added by one statement, and the summary is computed from whole columns.
Storing the same columns again changes nothing; another value for a stored step replaces it.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import column, func, insert, select, table, update
from sqlalchemy.dialects import sqlite

from det_keras.config import Searcher
from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.metrics import Report, check_report
from det_keras.master.reports.summary import summarise_columns
from det_keras.protocol.imports import MOST_REPORTS, MOST_VALUES
from det_keras.protocol.metrics import VALIDATION, number, summary_name

_C = MetricRow.__table__.c
_COLUMNS = (
    "trial_id", "run_id", "group", "partition", "total_batches", "archived", "metrics", "searcher_metric", "end_time",
)  # fmt: skip
# Without types: the values are those that the driver gets. SQLAlchemy would convert each value of each row.
_INSERT = insert(table("metrics", *(column(name) for name in _COLUMNS)))
_NOT_FINITE = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
_LAST_MICROSECOND = int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()) * 1_000_000
# Most reports that are read at once to compute a summary.
_READ_TOGETHER = 5000

Values = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Columns:
    """Reports of one group.

    Attributes:
        group: ``training``, ``validation`` or a name chosen by the user.
        steps: int64, (rows,): ascending, each once.
        times: int64, (rows,): in microseconds since 1970.
        metrics: by name the values and the rows that have one; None if all have.
    """

    group: str
    steps: npt.NDArray[np.int64]
    times: npt.NDArray[np.int64]
    metrics: Mapping[str, tuple[Values, Rows | None]]

    def check(self) -> None:
        """Check the columns without the database.

        Raises:
            InvalidArgumentError: they are malformed.
        """
        count = len(self.steps)
        _check_length("times", len(self.times), count)
        if not (np.diff(self.steps) > 0).all():
            raise InvalidArgumentError("The steps must be ascending, each once.")
        if count and not (self.times.min() >= 0 and self.times.max() <= _LAST_MICROSECOND):
            raise InvalidArgumentError("The times must be of the years 1970 to 9999.")
        for name, (values, rows) in self.metrics.items():
            _check_length(name, len(values), count if rows is None else len(rows))
            if rows is not None and len(rows):
                is_right = (np.diff(rows) > 0).all() and rows[0] >= 0 and rows[-1] < count
                if not is_right:
                    raise InvalidArgumentError(
                        f"The rows of the column `{name}` must be ascending, below {count}."
                    )
        report = Report(0, 0, self.group, 0, {})
        check_report(report)
        if report.partition == "profiler":
            raise InvalidArgumentError(
                f"The group {self.group!r} has samples of a machine, which have no steps."
            )

    def texts(self) -> list[str]:
        """Return the metrics of each report as JSON."""
        columns = [_texts(values, rows, len(self.steps)) for values, rows in self.metrics.values()]
        keys = [f"{json.dumps(name)}:" for name in self.metrics]
        if columns and all(rows is None for _, rows in self.metrics.values()):
            # One operation for a report: most of the time goes into the texts of the numbers.
            form = ",".join(key.replace("%", "%%") + "%s" for key in keys)
            return [f"{{{form % texts}}}" for texts in zip(*columns, strict=True)]
        return [
            f"{{{','.join(key + column[row] for key, column in zip(keys, columns, strict=True) if column[row])}}}"
            for row in range(len(self.steps))
        ]

    def values_of(self, name: str) -> list[float | None]:
        """Return the finite values of a metric, and None where a report has none."""
        found: list[float | None] = [None] * len(self.steps)
        values, rows = self.metrics.get(name, (np.empty(0), np.empty(0, np.int32)))
        places = range(len(found)) if rows is None else rows.tolist()
        for row, value in zip(places, values.tolist(), strict=True):
            found[row] = value if math.isfinite(value) else None
        return found


def check_columns(parts: Sequence[Columns]) -> None:
    """Check the columns that one call sends, without the database.

    Raises:
        InvalidArgumentError: they are malformed, or too many.
    """
    rows = sum(len(columns.steps) for columns in parts)
    values = sum(len(column) for columns in parts for column, _ in columns.metrics.values())
    for name, count, most in (("reports", rows, MOST_REPORTS), ("values", values, MOST_VALUES)):
        if count > most:
            raise InvalidArgumentError(f"A part may have {most} {name}, received {count}.")
    for columns in parts:
        columns.check()


def _check_length(name: str, length: int, expected: int) -> None:
    if length != expected:
        raise InvalidArgumentError(f"The column `{name}` has {length} values in place of {expected}.")


def _texts(values: Values, rows: Rows | None, count: int) -> list[str]:
    """Return the value of each report as JSON; "" where there is none."""
    texts = list(map(repr, values.tolist()))
    if not np.isfinite(values).all():
        texts = [_NOT_FINITE.get(text, text) for text in texts]
    if rows is None:
        return texts
    found = [""] * count
    for row, text in zip(rows.tolist(), texts, strict=True):
        found[row] = text
    return found


@dataclass(frozen=True)
class Stored:
    """What storing columns changed.

    Attributes:
        added: number of new reports.
        changed: number of stored reports that got another value or a further metric.
    """

    added: int = 0
    changed: int = 0

    def __add__(self, other: Stored) -> Stored:
        return Stored(self.added + other.added, self.changed + other.changed)


def store_columns(tx: Transaction, trial: TrialRow, columns: Columns, searcher: Searcher) -> Stored:
    """Store reports of a trial; those that are stored already stay, or get the new values.

    Args:
        tx: the transaction.
        trial: a trial that nothing else reports to.
        columns: the reports; they were checked.
        searcher: of the trial's experiment.
    """
    if not len(columns.steps):
        return Stored()
    name = summary_name(columns.group)
    summary = trial.summary_metrics.get(name)
    first, last = int(columns.steps[0]), int(columns.steps[-1])
    is_behind = summary is None or _last_step(tx, trial, columns.group) < first
    texts = columns.texts()
    metric = searcher.metric if columns.group == VALIDATION else ""
    if is_behind:
        stored = Stored(added=len(texts))
        _add(tx, trial, columns, texts, range(len(texts)), metric)
        values = {name: values for name, (values, _) in columns.metrics.items()}
        summary = summarise_columns(summary or {}, values)
    else:
        stored = _merge(tx, trial, columns, texts, metric)
        if stored == Stored():
            return stored
        # A later run: curves that were read before are read again.
        trial.run_id += 1
        summary = _summary(tx, trial, columns.group)
    trial.summary_metrics = {**trial.summary_metrics, name: summary}
    trial.total_batches = max(trial.total_batches, last)
    if metric and (stored.changed or metric in columns.metrics):
        _record_validations(tx, trial, searcher)
    return stored


def _of_group(trial: TrialRow, group: str) -> tuple[Any, ...]:
    return _C.trial_id == trial.id, _C.group == group, _C.archived.is_(False)


def _last_step(tx: Transaction, trial: TrialRow, group: str) -> float:
    last = tx.scalar(select(func.max(_C.total_batches)).where(*_of_group(trial, group)))
    return -math.inf if last is None else int(last)


def _merge(
    tx: Transaction, trial: TrialRow, columns: Columns, texts: Sequence[str], searcher_metric: str
) -> Stored:
    """Store reports of which some may be stored already."""
    steps = columns.steps.tolist()
    query = select(_C.total_batches, _C.id, _C.metrics).where(
        *_of_group(trial, columns.group), _C.total_batches.between(steps[0], steps[-1])
    )
    known = {row.total_batches: (row.id, row.metrics) for row in tx.execute(query)}
    changed, new = 0, []
    for index, step in enumerate(steps):
        if step not in known:
            new.append(index)
            continue
        row_id, before = known[step]
        merged = {**before, **json.loads(texts[index])}
        if merged == before:
            continue
        values: dict[str, Any] = {"metrics": merged}
        if searcher_metric:
            values["searcher_metric"] = _finite(merged.get(searcher_metric))
        tx.connection().execute(update(MetricRow).where(_C.id == row_id).values(values))
        changed += 1
    if new:
        _add(tx, trial, columns, texts, new, searcher_metric)
    return Stored(len(new), changed)


def _add(
    tx: Transaction,
    trial: TrialRow,
    columns: Columns,
    texts: Sequence[str],
    which: Sequence[int],
    searcher_metric: str,
) -> None:
    connection = tx.connection()
    group, steps = columns.group, columns.steps.tolist()
    times = _times(columns.times, connection.dialect.name)
    searched = columns.values_of(searcher_metric) if searcher_metric else [None] * len(steps)
    # Not read from the object for each row.
    trial_id, run_id, partition = trial.id, trial.run_id, Report(0, 0, group, 0, {}).partition
    rows = [
        (
            trial_id,
            run_id,
            group,
            partition,
            steps[index],
            False,
            texts[index],
            searched[index],
            times[index],
        )
        for index in which
    ]
    if connection.dialect.name == "sqlite":
        # As the driver takes them: SQLAlchemy would make a dictionary of each row, and a tuple of that.
        connection.exec_driver_sql(_statement(), rows)
    else:
        connection.execute(_INSERT, [dict(zip(_COLUMNS, row, strict=True)) for row in rows])


@functools.cache
def _statement() -> str:
    # In the order of `_COLUMNS`, with a question mark for each.
    return str(_INSERT.compile(dialect=sqlite.dialect()))


def _times(microseconds: npt.NDArray[np.int64], dialect: str) -> list[Any]:
    """Return times as the driver gets them; see `UtcTime`."""
    if dialect != "sqlite":
        return [datetime.fromtimestamp(time / 1e6, timezone.utc) for time in microseconds.tolist()]
    texts: npt.NDArray[np.str_] = np.datetime_as_string(microseconds.astype("datetime64[us]"), unit="us")
    return [text.replace("T", " ") for text in texts.tolist()]


def _summary(tx: Transaction, trial: TrialRow, group: str) -> dict[str, Any]:
    """Return the summary of all stored reports of a group, in the order of steps."""
    query = select(_C.metrics).where(*_of_group(trial, group)).order_by(_C.total_batches, _C.id)
    summary: dict[str, Any] = {}
    for part in tx.execute(query).scalars().partitions(_READ_TOGETHER):
        summary = summarise_columns(summary, _by_name(part))
    return summary


def _by_name(reports: Iterable[Mapping[str, Any]]) -> dict[str, Values]:
    lists: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            x = number(value)
            if x is not None:
                lists.setdefault(name, []).append(x)
    return {name: np.array(values) for name, values in lists.items()}


def _record_validations(tx: Transaction, trial: TrialRow, searcher: Searcher) -> None:
    """Record which validation is the latest and which is the best, by the stored reports."""
    metric = (*_of_group(trial, VALIDATION), _C.searcher_metric.is_not(None))
    order = _C.searcher_metric if searcher.smaller_is_better else _C.searcher_metric.desc()
    latest = select(_C.id).where(*metric).order_by(_C.total_batches.desc(), _C.id.desc())
    best = select(_C.id, _C.searcher_metric).where(*metric).order_by(order, _C.total_batches, _C.id)
    trial.latest_validation_id = tx.scalar(latest.limit(1))
    row = tx.execute(best.limit(1)).first()
    trial.best_validation_id, trial.searcher_metric_value = (None, None) if row is None else row


def _finite(value: object) -> float | None:
    x = number(value)
    return None if x is None or not math.isfinite(x) else x
