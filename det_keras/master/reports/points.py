"""Reads the points of a curve: with functions of SQLite or PostgreSQL, or row by row.

A hundred thousand rows as Python objects take most of a second. Both databases can return the columns of a curve as one
value each instead, in a sixth of that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import JSON, LargeBinary, Text, cast, func, literal, select, type_coerce
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from det_keras.master.database.models import MetricRow
from det_keras.protocol.metrics import number

Floats = npt.NDArray[np.float64]

#: A maximum number of points that keeps all.
EVERY_POINT = 1 << 40

# Memory-mapped reads, which do not copy every page, halve the time.
_MAP_BYTES = 256 << 20
# Other names would need quoting in SQLite's JSON paths, and its releases differ in the rules.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ ./:@+-]+")
_TIME_CHARACTERS = len("2026-01-02 03:04:05.678901")
# A NaN that no calculation yields marks a report without the metric; a metric that is NaN is a point.
_MISSING = 0x7FF8_0000_0000_0001
_MISSING_BYTES = literal(_MISSING.to_bytes(8, "big"), LargeBinary)
_NOTHING = literal(b"", LargeBinary)
_EPOCH_OF_POSTGRESQL = np.datetime64("2000-01-01", "us")


@dataclass(frozen=True)
class Curve:
    """All points of a metric of a trial, by batches.

    Attributes:
        last_id: id of the newest report in the curve.
        times: (points,), UTC.
    """

    last_id: int
    batches: npt.NDArray[np.int64]
    epochs: Floats | None
    times: npt.NDArray[np.datetime64]
    values: Floats

    @property
    def size_bytes(self) -> int:
        epochs = 0 if self.epochs is None else self.epochs.nbytes
        """The size of the arrays in memory."""
        return self.batches.nbytes + self.times.nbytes + self.values.nbytes + epochs


def read_points(
    session: Session,
    trial_id: int,
    group: str,
    metric: str,
    epochs: str | None,
    *,
    is_number: bool,
    after: Curve | None = None,
) -> Curve:
    """Return all points of a metric, ordered by batches; reports of the same batch stay in the order of arrival.

    Args:
        session: to read with.
        trial_id: the trial.
        group: the group of the metric.
        metric: its name.
        epochs: the name under which the same reports have the epoch; None if they do not.
        is_number: whether the trial's summary says that all values of the metric are numbers.
        after: a curve that was read before; only the points after its end are returned.
    """
    conditions = [
        MetricRow.trial_id == trial_id,
        MetricRow.group == group,
        MetricRow.archived.is_(False),
        MetricRow.total_batches.is_not(None),
    ]
    if after is not None:
        conditions += [MetricRow.id > after.last_id, MetricRow.total_batches >= int(after.batches[-1])]
    dialect = session.get_bind().dialect.name
    curve = None
    if dialect == "sqlite" and _PLAIN_NAME.fullmatch(metric):
        curve = _extracted(session, conditions, metric, epochs or metric)
    elif dialect == "postgresql" and is_number:
        curve = _sent(session, conditions, metric, epochs)
    if curve is None:
        curve = _parsed(session, conditions, metric, epochs or metric)
    return _in_order(curve if epochs else replace(curve, epochs=None))


def _extracted(session: Session, conditions: Sequence[Any], metric: str, epochs: str) -> Curve | None:
    """Read a curve with SQLite's own functions, without creating Python objects for rows and other metrics."""
    session.connection().exec_driver_sql(f"PRAGMA mmap_size={_MAP_BYTES}")
    # With two paths the result is a list, which contains numbers with all their digits.
    pairs = func.json_extract(MetricRow.metrics, f'$."{metric}"', f'$."{epochs}"', type_=Text)
    query = select(
        func.count(),
        func.max(MetricRow.id),
        func.group_concat(MetricRow.total_batches, type_=Text),
        func.group_concat(pairs, type_=Text),
        func.group_concat(type_coerce(MetricRow.end_time, Text), "", type_=Text),
    ).where(*conditions)
    count, last_id, batches, texts, times = session.execute(query).one()
    if not count:
        return _curve(0, [], [], [], [])
    flat = json.loads(f"[{texts[1:-1].replace('],[', ',')}]")
    if len(flat) != 2 * count or len(times) != _TIME_CHARACTERS * count:
        # A value is itself a list, or another program wrote a row.
        return None
    moments = np.frombuffer(times.encode(), f"S{_TIME_CHARACTERS}").astype("datetime64[us]")
    return _curve(last_id, json.loads(f"[{batches}]"), flat[0::2], flat[1::2], moments)


def _sent(session: Session, conditions: Sequence[Any], metric: str, epochs: str | None) -> Curve | None:
    """Read a curve as columns of PostgreSQL's binary format, which NumPy reads without creating Python objects."""
    # Without the limit PostgreSQL would parse the text again for each of the two values.
    parsed = cast(MetricRow.metrics, JSON).label("values")
    rows = select(MetricRow.id, MetricRow.total_batches, MetricRow.end_time, parsed).where(*conditions)
    rows_of_trial = rows.offset(0).subquery()
    row = rows_of_trial.c
    names = [metric] if epochs is None else [metric, epochs]
    values = [func.float8send(cast(row["values"].op("->>")(name), DOUBLE_PRECISION)) for name in names]
    columns = [
        func.int8send(row.total_batches),
        func.timestamptz_send(row.end_time),
        *(func.coalesce(value, _MISSING_BYTES) for value in values),
    ]
    joined = [func.string_agg(column, _NOTHING, type_=LargeBinary) for column in columns]
    try:
        # A failed statement would end the transaction, in which the trial's summary was read.
        with session.begin_nested():
            count, last_id, *texts = session.execute(select(func.count(), func.max(row.id), *joined)).one()
    except DataError:
        # An integer beyond the range of a float, or a name with an escape that PostgreSQL does not read.
        return None
    if not count:
        return _curve(0, [], [], [], [])
    batches, times = (np.frombuffer(text, ">i8").astype(np.int64) for text in texts[:2])
    if len(np.unique(batches)) < count:
        # Their order of arrival would be lost.
        return None
    numbers = [np.frombuffer(text, ">f8").astype(np.float64) for text in texts[2:]]
    curve = Curve(
        last_id, batches, numbers[-1], times.astype("timedelta64[us]") + _EPOCH_OF_POSTGRESQL, numbers[0]
    )
    has_value = np.frombuffer(texts[2], ">u8") != _MISSING
    return curve if has_value.all() else _picked(curve, has_value)


def _parsed(session: Session, conditions: Sequence[Any], metric: str, epochs: str) -> Curve:
    """Read a curve from any database, with any name of the metric."""
    query = select(
        MetricRow.id, MetricRow.total_batches, type_coerce(MetricRow.metrics, Text), MetricRow.end_time
    ).where(*conditions)
    query = query.order_by(MetricRow.id)
    rows = session.execute(query).all()
    if not rows:
        return _curve(0, [], [], [], [])
    ids, batches, texts, times = zip(*rows, strict=True)
    reports = json.loads(f"[{','.join(texts)}]")
    return _curve(
        max(ids),
        batches,
        [report.get(metric) for report in reports],
        [report.get(epochs) for report in reports],
        [time.replace(tzinfo=None) for time in times],
    )


def _curve(
    last_id: int, batches: Sequence[int], values: Sequence[Any], epochs: Sequence[Any], times: Any
) -> Curve:
    """Return a curve of columns, without the rows in which the metric is not a number."""
    curve = Curve(
        last_id,
        np.array(batches, np.int64),
        _numbers(epochs),
        np.array(times, "datetime64[us]"),
        _numbers(values),
    )
    is_number = [number(value) is not None for value in values] if _has_others(values) else []
    return _picked(curve, np.array(is_number)) if is_number else curve


def _has_others(values: Sequence[Any]) -> bool:
    return not set(map(type, values)) <= {float, int}


def _numbers(values: Sequence[Any]) -> Floats:
    """Return an array of numbers, with NaN for other values."""
    try:
        if not _has_others(values):
            return np.array(values, np.float64)
    except OverflowError:
        # Integers in JSON may be of any size.
        pass
    numbers = map(number, values)
    return np.array([np.nan if value is None else value for value in numbers], np.float64)


def _in_order(curve: Curve) -> Curve:
    """Return a curve ordered by batches; reports of the same batch stay in the order of arrival."""
    if (np.diff(curve.batches) >= 0).all():
        return curve
    return _picked(curve, np.argsort(curve.batches, kind="stable"))


def _picked(curve: Curve, which: npt.NDArray[Any]) -> Curve:
    return replace(
        curve,
        batches=curve.batches[which],
        epochs=None if curve.epochs is None else curve.epochs[which],
        times=curve.times[which],
        values=curve.values[which],
    )
