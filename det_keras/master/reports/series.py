"""Curves of metrics: read once, cached until new reports arrive, downsampled for display.

A plot of 50 trials with 10,000 points each needs half a million reports. A whole curve is therefore read by one
statement (`points.py`), and cached as arrays. The summary in the trial's row shows whether it
is still current: the run, and count, sum and last value of the metric. If points were only added, only the new
points are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.store import Store
from det_keras.master.reports.points import Curve, Floats, read_points
from det_keras.master.reports.thinning import smooth, thin
from det_keras.protocol.metrics import TRAINING, VALIDATION, summary_name

_MOST_BYTES = 128 << 20
# Databases run without Python's global lock, so two readers use two cores.
_READERS = 2
_MANY_CURVES = 8
_EPOCHS = ("epochs", "epoch")


@dataclass(frozen=True)
class Series:
    """One metric of one trial, ready for plotting.

    Attributes:
        trial_id: number of the trial.
        started: when the trial began.
        batches: int64, (points,): batches trained at each report, ascending.
        epochs: (points,): `epochs` or `epoch` of the same reports, NaN where absent; None if never reported.
        seconds: (points,): time since the trial's start, in seconds.
        values: (points,): the metric, smoothed if requested; NaN and infinite values are gaps.
        total: number of points before downsampling.
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
    """The summary of a metric in a trial's row; while it is unchanged, so is the curve.

    Attributes:
        trial_id: number of the trial.
        started: when the trial began.
        run_id: the trial's run; a later run may roll back reports of an earlier run.
        summary: count, sum, last value and so on.
        epochs: the name under which epochs are reported; None if they are not.
    """

    trial_id: int
    started: datetime
    run_id: int
    summary: Mapping[str, Any]
    epochs: str | None

    @property
    def count(self) -> int | None:
        """Number of reports with the metric; None if some of its values were no numbers."""
        return self.summary["count"] if self.summary["type"] == "number" else None


@dataclass
class _Kept:
    """A cached curve, the summary for which it was read, and its last downsampled views."""

    head: _Head
    curve: Curve
    downsampled: dict[tuple[Any, ...], Series] = field(default_factory=dict)


class Curves:
    """The curves of a master's metrics, such as ``master.curves.read([7], group=..., metric=...)``.

    Args:
        store: the database.
        most_bytes: limit of the cache; the least recently used curves are dropped first.
    """

    def __init__(self, store: Store, *, most_bytes: int = _MOST_BYTES) -> None:
        self._store = store
        self._most_bytes = most_bytes
        # Guards the cache only, and is never held while the database is read. Two threads may therefore read the
        # same curve at once; the second result replaces the first.
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
        """Return one metric of several trials, downsampled so that the curves look the same.

        May be called from any thread; opens its own sessions.

        Args:
            trial_ids: in the order of the result; trials that did not report the metric are omitted.
            group: ``training``, ``validation`` or a name chosen by the user.
            metric: name of the metric.
            most_points: maximum number of points per curve, at least 4.
            smoothing: weight of the exponential moving average, over the whole curve, from 0 (none) to below 1.
            start_batches: points before it are omitted.
            end_batches: points after it are omitted; None for no limit.
            log_x: whether the x axis will be logarithmic.

        Raises:
            ValueError: `most_points` or `smoothing` is out of bounds.
        """
        view = (most_points, smoothing, start_batches, end_batches, log_x)
        kept = self._current(trial_ids, group, metric)
        return [_downsampled(kept[trial_id], trial_id, view) for trial_id in trial_ids if trial_id in kept]

    def summaries(self, trial_ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the summaries of all metrics of each trial, by the names of their groups there."""
        with self._store.reading() as session:
            query = select(TrialRow.id, TrialRow.summary_metrics).where(TrialRow.id.in_(trial_ids))
            return {row.id: row.summary_metrics for row in session.execute(query)}

    def not_finite_since(self, trial_id: int, *, group: str, metric: str) -> int | None:
        """Return the batch of the first report of the NaN or infinite values at a curve's end.

        Args:
            trial_id: number of the trial.
            group: as for `read`.
            metric: as for `read`.

        Returns:
            None if the metric was not reported, or its last value is finite.
        """
        kept = self._current([trial_id], group, metric).get(trial_id)
        if kept is None or np.isfinite(kept.curve.values[-1]):
            return None
        finite = np.flatnonzero(np.isfinite(kept.curve.values))
        first = int(finite[-1]) + 1 if len(finite) else 0
        return int(kept.curve.batches[first])

    def last_reports(self, trial_ids: Sequence[int]) -> dict[int, datetime]:
        """Return the time of the last training or validation report of each trial that has any."""
        found: dict[int, datetime] = {}
        with self._store.reading() as session:
            for trial_id in trial_ids:
                for group in (TRAINING, VALIDATION):
                    query = select(MetricRow.end_time).where(
                        MetricRow.trial_id == trial_id, MetricRow.group == group
                    )
                    time = session.scalar(query.order_by(MetricRow.total_batches.desc()).limit(1))
                    if time is not None:
                        found[trial_id] = max(time, found.get(trial_id, time))
        return found

    def _current(self, trial_ids: Sequence[int], group: str, metric: str) -> dict[int, _Kept]:
        """Return the current curves, from the cache where they are unchanged."""
        with self._store.reading() as session:
            heads = _heads(session, trial_ids, group, metric)
            result = {
                trial_id: kept
                for trial_id, head in heads.items()
                if (kept := self._recall(head, group, metric))
            }
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
        """Read curves and cache them. The session reads summaries and points in one state of the database."""
        result = {}
        for trial_id, head in _heads(session, trial_ids, group, metric).items():
            with self._lock:
                known = self._kept.get((trial_id, group, metric))
            curve = None if known is None else _with_new_points(session, known, head, group, metric)
            if curve is None:
                curve = _read_curve(session, head, group, metric)
            if len(curve.values):
                result[trial_id] = _Kept(head, curve)
                self._keep((trial_id, group, metric), result[trial_id])
        return result

    def _keep(self, key: tuple[int, str, str], kept: _Kept) -> None:
        # Without a count, or where a database without snapshots returned more points than the summary counted,
        # nothing would show when the curve is out of date: do not cache it.
        if kept.head.count != len(kept.curve.values):
            return
        with self._lock:
            old = self._kept.pop(key, None)
            self._kept[key] = kept
            self._size_bytes += kept.curve.size_bytes - (0 if old is None else old.curve.size_bytes)
            while self._size_bytes > self._most_bytes:
                _, evicted = self._kept.popitem(last=False)
                self._size_bytes -= evicted.curve.size_bytes


def _downsampled(kept: _Kept, trial_id: int, view: tuple[int, float, int, int | None, bool]) -> Series:
    """Return a downsampled view of a curve; its last views are cached with it."""
    found = kept.downsampled.get(view)
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
    # Two views: the first plot, and the plot with the user's settings. Two threads may both pass this check: then
    # there are three, which does no harm.
    if len(kept.downsampled) > 1:
        kept.downsampled.clear()
    kept.downsampled[view] = series
    return series


def _heads(session: Session, trial_ids: Sequence[int], group: str, metric: str) -> dict[int, _Head]:
    """Return the summaries of a metric in the trials' rows, without trials that have not reported it."""
    query = select(TrialRow.id, TrialRow.start_time, TrialRow.run_id, TrialRow.summary_metrics)
    result = {}
    for trial_id, started, run_id, summaries in session.execute(query.where(TrialRow.id.in_(trial_ids))):
        summary = summaries.get(summary_name(group), {})
        if metric in summary:
            epochs = next((name for name in _EPOCHS if name in summary), None)
            result[trial_id] = _Head(trial_id, started, run_id, summary[metric], epochs)
    return result


def _with_new_points(session: Session, known: _Kept, head: _Head, group: str, metric: str) -> Curve | None:
    """Return a cached curve with its new points; None if it changed in any other way."""
    if head.count is None or (head.run_id, head.epochs) != (known.head.run_id, known.head.epochs):
        return None
    old = known.curve
    new = _read_curve(session, head, group, metric, after=old)
    # A report may also have been merged into an older report, or belong to an earlier batch.
    if len(old.values) + len(new.values) != head.count:
        return None
    epochs = None
    if old.epochs is not None and new.epochs is not None:
        epochs = np.concatenate((old.epochs, new.epochs))
    return Curve(
        max(old.last_id, new.last_id),
        np.concatenate((old.batches, new.batches)),
        epochs,
        np.concatenate((old.times, new.times)),
        np.concatenate((old.values, new.values)),
    )


def _read_curve(session: Session, head: _Head, group: str, metric: str, after: Curve | None = None) -> Curve:
    """Return all points of a metric, or only those after the end of `after`."""
    is_number = head.count is not None
    return read_points(session, head.trial_id, group, metric, head.epochs, is_number=is_number, after=after)
