"""Curves of metrics: read once, kept as long as nothing was reported, thinned for the eye.

A plot of 50 trials with 10,000 points each asks for half a million reports. So a whole curve is read by one light
statement, without a row of them becoming an object, and stays in memory as arrays. Whether it still holds is told by
the summary that the trial's row keeps anyway: the run, and count, sum and last value of the metric. A curve that only
grew is read on from where it ended.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.orm import Session

from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.store import Store
from det_keras.master.reports.thinning import smooth, thin
from det_keras.protocol.metrics import number, summary_name

__all__ = ["Curves", "Series"]

Floats = npt.NDArray[np.float64]

_MOST_BYTES = 128 << 20
# SQLite works outside of Python's lock: two readers use two cores, and one of them leaves the other to everybody else.
_READERS = 2
_MANY_CURVES = 8
# Reading through the page cache in place of copying every page out of it halves the time.
_MAP_BYTES = 256 << 20
# Other names would have to be quoted inside of SQLite's JSON paths, for which no rule holds in all of its releases.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ ./:@+-]+")
_EPOCHS = ("epochs", "epoch")
_TIME_LETTERS = len("2026-01-02 03:04:05.678901")


@dataclass(frozen=True)
class Series:
    """One metric of one trial, ready to be drawn.

    Attributes:
        trial_id: of the trial.
        started: when the trial began.
        batches: int64, (points,): where it was reported, ascending.
        epochs: (points,): the `epochs` or `epoch` that was reported with it, NaN where none was; None if there is none.
        seconds: (points,): since the trial's start.
        values: (points,): smoothed if that was asked for; NaN and infinite values are gaps.
        total: points before thinning.
    """

    trial_id: int
    started: datetime
    batches: npt.NDArray[np.int64]
    epochs: Floats | None
    seconds: Floats
    values: Floats
    total: int


@dataclass(frozen=True)
class _Head:
    """What a trial's row says of a metric; while it stays, so does the curve.

    Attributes:
        trial_id: of the trial.
        started: when the trial began.
        run_id: reports of an earlier run may be rolled back by a later one.
        summary: of the metric: count, sum, last and so on.
        epochs: the name under which epochs are reported, None if they are not.
    """

    trial_id: int
    started: datetime
    run_id: int
    summary: Mapping[str, Any]
    epochs: str | None

    @property
    def count(self) -> int | None:
        """How many reports have the metric; None if it was not always a number, so that nobody counted."""
        return self.summary["count"] if self.summary["type"] == "number" else None


@dataclass(frozen=True)
class _Curve:
    """All points of a metric of a trial, by batches.

    Attributes:
        last_id: of the newest report among them.
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
        return self.batches.nbytes + self.times.nbytes + self.values.nbytes + epochs


@dataclass
class _Kept:
    """A curve in memory, what it was read for, and how it was thinned last."""

    head: _Head
    curve: _Curve
    thinned: dict[tuple[Any, ...], Series] = field(default_factory=dict)


class Curves:
    """The curves of a master's metrics. Use the one of the master: ``master.curves.read([7], group=..., metric=...)``.

    Args:
        store: the database.
        most_bytes: of curves that are kept; those asked for least recently go first.
    """

    def __init__(self, store: Store, *, most_bytes: int = _MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[int, str, str], _Kept] = OrderedDict()
        self._size_bytes = 0

    def read(
        self,
        trial_ids: Sequence[int],
        *,
        group: str,
        metric: str,
        most_points: int = 1000,
        smoothing: float = 0.0,
        start_batches: int = 0,
        end_batches: int | None = None,
        log_x: bool = False,
    ) -> list[Series]:
        """Return one metric of several trials, thinned so that the curves look the same.

        May be called from any thread; it opens sessions of its own.

        Args:
            trial_ids: in the order of the answer; trials that did not report the metric are left out of it.
            group: ``training``, ``validation`` or a name of the user's.
            metric: its name.
            most_points: of each curve, at least 4.
            smoothing: weight of the exponential moving average, over the whole curve, from 0 (none) to below 1.
            start_batches: points before it are left out.
            end_batches: points after it are left out; None for none.
            log_x: they will be looked at on a logarithmic axis.

        Raises:
            ValueError: `most_points` or `smoothing` is out of bounds.
        """
        view = (most_points, smoothing, start_batches, end_batches, log_x)
        kept = self._current(trial_ids, group, metric)
        return [_thinned(kept[trial_id], trial_id, view) for trial_id in trial_ids if trial_id in kept]

    def _current(self, trial_ids: Sequence[int], group: str, metric: str) -> dict[int, _Kept]:
        """Return the curves as they are now, from memory where that is certain."""
        with self._store.reading() as session:
            heads = _heads(session, trial_ids, group, metric)
            result = {one: kept for one, head in heads.items() if (kept := self._recall(head, group, metric))}
            stale = [trial_id for trial_id in heads if trial_id not in result]
            if len(stale) < _MANY_CURVES:
                return {**result, **self._load(session, stale, group, metric)}

        def load(part: Sequence[int]) -> dict[int, _Kept]:
            with self._store.reading() as own:
                return self._load(own, part, group, metric)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="curves") as pool:
            for loaded in pool.map(load, [stale[i::_READERS] for i in range(_READERS)]):
                result.update(loaded)
        return result

    def _recall(self, head: _Head, group: str, metric: str) -> _Kept | None:
        key = (head.trial_id, group, metric)
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept.head != head:
                return None
            self._kept.move_to_end(key)
            return kept

    def _load(self, session: Session, trial_ids: Sequence[int], group: str, metric: str) -> dict[int, _Kept]:
        """Read curves, heads first and in the same state of the database, and keep them."""
        result = {}
        for trial_id, head in _heads(session, trial_ids, group, metric).items():
            with self._lock:
                known = self._kept.get((trial_id, group, metric))
            curve = None if known is None else _read_on(session, known, head, group, metric)
            if curve is None:
                curve = _read_curve(session, head, group, metric)
            if len(curve.values):
                result[trial_id] = _Kept(head, curve)
                self._keep((trial_id, group, metric), result[trial_id])
        return result

    def _keep(self, key: tuple[int, str, str], kept: _Kept) -> None:
        # Where nobody counted, and where a database without snapshots gave more than its summary told, nothing would
        # say when the curve is out of date.
        if kept.head.count != len(kept.curve.values):
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self._kept[key] = kept
            self._size_bytes += kept.curve.size_bytes - (0 if old is None else old.curve.size_bytes)
            while self._size_bytes > self._most_bytes:
                _, gone = self._kept.popitem(last=False)
                self._size_bytes -= gone.curve.size_bytes


def _thinned(kept: _Kept, trial_id: int, view: tuple[int, float, int, int | None, bool]) -> Series:
    """Return what a plot shows of a curve; the last of its views are remembered with it."""
    found = kept.thinned.get(view)
    if found is not None:
        return found
    most_points, smoothing, start, end, log_x = view
    curve = kept.curve
    values = smooth(curve.values, smoothing)
    first = int(np.searchsorted(curve.batches, start, "left"))
    behind = len(values) if end is None else int(np.searchsorted(curve.batches, end, "right"))
    behind = max(first, behind)
    chosen = first + thin(curve.batches[first:behind], values[first:behind], most_points, log_x=log_x)
    started = np.datetime64(kept.head.started.replace(tzinfo=None), "us")
    series = Series(
        trial_id=trial_id,
        started=kept.head.started,
        batches=curve.batches[chosen],
        epochs=None if curve.epochs is None else curve.epochs[chosen],
        seconds=(curve.times[chosen] - started) / np.timedelta64(1, "s"),
        values=values[chosen],
        total=behind - first,
    )
    # Two views: a plot as it is first drawn, and as its reader has set it. Threads may both add theirs.
    if len(kept.thinned) > 1:
        kept.thinned.clear()
    kept.thinned[view] = series
    return series


def _heads(session: Session, trial_ids: Sequence[int], group: str, metric: str) -> dict[int, _Head]:
    """Return what the trials' rows say of a metric, without those that have not reported it."""
    query = select(TrialRow.id, TrialRow.start_time, TrialRow.run_id, TrialRow.summary_metrics)
    result = {}
    for trial_id, started, run_id, summaries in session.execute(query.where(TrialRow.id.in_(trial_ids))):
        summary = summaries.get(summary_name(group), {})
        if metric in summary:
            epochs = next((name for name in _EPOCHS if name in summary), None)
            result[trial_id] = _Head(trial_id, started, run_id, summary[metric], epochs)
    return result


def _read_on(session: Session, known: _Kept, head: _Head, group: str, metric: str) -> _Curve | None:
    """Return a curve that only grew; None if more became of it than that."""
    if head.count is None or (head.run_id, head.epochs) != (known.head.run_id, known.head.epochs):
        return None
    old = known.curve
    new = _read_curve(session, head, group, metric, after=old)
    # A report may also have been merged into an older one, or have come for an earlier batch.
    if len(old.values) + len(new.values) != head.count:
        return None
    epochs = None
    if old.epochs is not None and new.epochs is not None:
        epochs = np.concatenate((old.epochs, new.epochs))
    return _Curve(
        max(old.last_id, new.last_id),
        np.concatenate((old.batches, new.batches)),
        epochs,
        np.concatenate((old.times, new.times)),
        np.concatenate((old.values, new.values)),
    )


def _read_curve(
    session: Session, head: _Head, group: str, metric: str, after: _Curve | None = None
) -> _Curve:
    """Return all points of a metric, or only those behind a curve."""
    conditions = [
        MetricRow.trial_id == head.trial_id,
        MetricRow.group == group,
        MetricRow.archived.is_(False),
        MetricRow.total_batches.is_not(None),
    ]
    if after is not None:
        conditions += [MetricRow.id > after.last_id, MetricRow.total_batches >= int(after.batches[-1])]
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    read = _extracted if is_sqlite and _PLAIN_NAME.fullmatch(metric) else _parsed
    curve = read(session, conditions, metric, head.epochs or metric)
    curve = curve if head.epochs else replace(curve, epochs=None)
    return _in_order(curve)


def _extracted(session: Session, conditions: Sequence[Any], metric: str, epochs: str) -> _Curve:
    """Read a curve with SQLite's own functions: no row and no other metric becomes a Python object."""
    session.connection().exec_driver_sql(f"PRAGMA mmap_size={_MAP_BYTES}")
    # Two paths give a list, in which numbers stand with all their digits.
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
    if len(flat) != 2 * count or len(times) != _TIME_LETTERS * count:
        # A value that is a list itself, or a row that another hand wrote.
        return _parsed(session, conditions, metric, epochs)
    moments = np.frombuffer(times.encode(), f"S{_TIME_LETTERS}").astype("datetime64[us]")
    return _curve(last_id, json.loads(f"[{batches}]"), flat[0::2], flat[1::2], moments)


def _parsed(session: Session, conditions: Sequence[Any], metric: str, epochs: str) -> _Curve:
    """Read a curve on any database, whatever the metric's name is."""
    query = select(
        MetricRow.id, MetricRow.total_batches, type_coerce(MetricRow.metrics, Text), MetricRow.end_time
    ).where(*conditions)
    rows = session.execute(query).all()
    if not rows:
        return _curve(0, [], [], [], [])
    ids, batches, texts, times = zip(*rows, strict=True)
    reports = json.loads(f"[{','.join(texts)}]")
    return _curve(
        max(ids),
        batches,
        [one.get(metric) for one in reports],
        [one.get(epochs) for one in reports],
        [time.replace(tzinfo=None) for time in times],
    )


def _curve(
    last_id: int, batches: Sequence[int], values: Sequence[Any], epochs: Sequence[Any], times: Any
) -> _Curve:
    """Return a curve of columns as they were read, without the rows that have no such number."""
    curve = _Curve(
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
    """Return numbers, with NaN for what is none."""
    try:
        if not _has_others(values):
            return np.array(values, np.float64)
    except OverflowError:
        # JSON knows whole numbers of any size.
        pass
    numbers = map(number, values)
    return np.array([np.nan if value is None else value for value in numbers], np.float64)


def _in_order(curve: _Curve) -> _Curve:
    """Return a curve by batches; reports of one batch stay in the order of their arrival."""
    if (np.diff(curve.batches) >= 0).all():
        return curve
    return _picked(curve, np.argsort(curve.batches, kind="stable"))


def _picked(curve: _Curve, which: npt.NDArray[Any]) -> _Curve:
    return replace(
        curve,
        batches=curve.batches[which],
        epochs=None if curve.epochs is None else curve.epochs[which],
        times=curve.times[which],
        values=curve.values[which],
    )
