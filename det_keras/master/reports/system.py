"""System metrics of trials: read as series by time, the newest ones, and thinned where they are old.

Each sample of a group is a row, with the values of a machine below the name of its agent. A trial that runs for a week
has 60,000 samples of each group. The series of a trial are therefore cached as arrays, to which only new rows are
added, and of samples older than a day one a minute is kept.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
from sqlalchemy import Text, delete, extract, or_, select, type_coerce, union_all
from sqlalchemy.orm import Session

from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.store import Store
from det_keras.master.reports.points import Floats
from det_keras.master.reports.thinning import thin
from det_keras.protocol.metrics import PROFILER_GROUPS, number

_MOST_TRIALS = 64
_GROUPS = sorted(PROFILER_GROUPS)
# Newest rows of a group that are searched for the newest one of each machine.
_MOST_MACHINES = 16
_DENSE = timedelta(days=1)
# Of each minute, samples from its first seconds are kept: at the usual period that is one of each group and machine.
_KEPT_SECONDS = 10
# Names of the first clients, which reported rates over one second.
_FORMER_NAMES = {
    "disk_read_bytes": "disk_throughput_read",
    "disk_write_bytes": "disk_throughput_write",
    "network_sent_bytes": "net_throughput_sent",
    "network_received_bytes": "net_throughput_recv",
}


@dataclass(frozen=True, order=True)
class SystemMetric:
    """What is measured, and where.

    Attributes:
        group: ``cpu``, ``memory``, ``disk``, ``network`` or ``gpu``.
        name: name of the metric, such as ``cpu_util_trial``.
        agent: name of the machine.
        device: UUID of a GPU, or another part of the machine; empty for the whole machine.
    """

    group: str
    name: str
    agent: str
    device: str = ""


@dataclass(frozen=True)
class SystemSeries:
    """A system metric of a trial over time, over all of its runs.

    Attributes:
        metric: what is measured, and where.
        started: time of the trial's creation, as of a `Series`.
        times: (points,): time of each sample in seconds since 1970, UTC, ascending.
        values: (points,).
        total: number of points before downsampling.
    """

    metric: SystemMetric
    started: datetime
    times: Floats
    values: Floats
    total: int


@dataclass(frozen=True)
class SystemValue:
    """The newest value of a system metric.

    Attributes:
        time: time of the sample in seconds since 1970, UTC.
        value: the value.
    """

    time: float
    value: float


@dataclass(frozen=True)
class _Kept:
    """The points of all metrics of a trial.

    Attributes:
        started: when the trial began; after its deletion another trial may get its number.
        last_id: id of the newest row.
        points: times and values.
    """

    started: datetime
    last_id: int
    points: Mapping[SystemMetric, tuple[Floats, Floats]]


class SystemMetrics:
    """The system metrics of a master's trials.

    May be used from any thread; opens its own sessions.

    Args:
        store: the database.
        most_trials: trials whose series are cached.
    """

    def __init__(self, store: Store, *, most_trials: int = _MOST_TRIALS) -> None:
        self._store = store
        self._most_trials = most_trials
        # Guards the cache only, and is never held while the database is read.
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, _Kept] = OrderedDict()

    def read(self, trial_id: int, *, most_points: int = 1000) -> list[SystemSeries]:
        """Return all system metrics of a trial by time, ordered by metric; [] if it has none.

        Args:
            trial_id: number of the trial.
            most_points: maximum number of points of each series, at least 4.

        Raises:
            ValueError: `most_points` is below 4.
        """
        with self._lock:
            known = self._kept.get(trial_id)
        with self._store.reading() as session:
            started = session.scalar(select(TrialRow.start_time).where(TrialRow.id == trial_id))
            if started is None:
                return []
            if known is None or known.started != started:
                known = _Kept(started, 0, {})
            current = _with_new_points(session, trial_id, known)
        with self._lock:
            self._kept[trial_id] = current
            self._kept.move_to_end(trial_id)
            while len(self._kept) > self._most_trials:
                self._kept.popitem(last=False)
        return [
            _downsampled(metric, started, *current.points[metric], most_points)
            for metric in sorted(current.points)
        ]

    def latest(self, trial_ids: Sequence[int]) -> dict[int, dict[SystemMetric, SystemValue]]:
        """Return the newest value of each system metric of some trials; trials without any are omitted."""
        result: dict[int, dict[SystemMetric, SystemValue]] = {}
        with self._store.reading() as session:
            for trial_id in trial_ids:
                newest: dict[SystemMetric, SystemValue] = {}
                # Oldest first, so that the newest remains.
                rows = sorted(session.execute(_newest_rows(trial_id)).all())
                for _, group, text, time in rows:
                    values = _flat(group, json.loads(text))
                    newest.update({metric: SystemValue(time.timestamp(), value) for metric, value in values})
                if newest:
                    result[trial_id] = newest
        return result

    def thin(self, now: datetime) -> int:
        """Delete samples older than a day but those of the first seconds of each minute; return how many.

        Trials that ended more than two days ago are omitted: they were thinned before.
        """
        with self._store.reading() as session:
            ended = TrialRow.end_time
            recent = or_(ended.is_(None), ended > now - 2 * _DENSE)
            trial_ids = session.scalars(
                select(TrialRow.id).where(recent, TrialRow.start_time < now - _DENSE)
            ).all()
        deleted = 0
        for trial_id in trial_ids:
            # One at a time: reports wait for the end of each transaction.
            with self._store.adding() as connection:
                deleted += connection.execute(
                    delete(MetricRow).where(
                        *_samples_of(trial_id),
                        MetricRow.end_time < now - _DENSE,
                        extract("second", MetricRow.end_time) >= _KEPT_SECONDS,
                    )
                ).rowcount
        return deleted


def _samples_of(trial_id: int) -> tuple[Any, ...]:
    """Return the conditions of all samples of a trial, by which an index finds them."""
    return MetricRow.trial_id == trial_id, MetricRow.group.in_(_GROUPS), MetricRow.total_batches.is_(None)


def _rows(*conditions: Any) -> Any:
    text = type_coerce(MetricRow.metrics, Text).label("metrics")
    return select(MetricRow.id, MetricRow.group, text, MetricRow.end_time).where(*conditions)


def _newest_rows(trial_id: int) -> Any:
    """Return the query for the newest rows of each group, each of which an index finds."""
    parts = []
    for group in _GROUPS:
        rows = _rows(
            MetricRow.trial_id == trial_id, MetricRow.group == group, MetricRow.total_batches.is_(None)
        )
        part = rows.order_by(MetricRow.id.desc()).limit(_MOST_MACHINES).subquery()
        parts.append(select(part))
    return union_all(*parts)


def _with_new_points(session: Session, trial_id: int, known: _Kept) -> _Kept:
    """Return the points of a trial with those of new rows."""
    query = _rows(*_samples_of(trial_id), MetricRow.id > known.last_id).order_by(MetricRow.id)
    rows = session.execute(query).all()
    if not rows:
        return known
    ids, groups, texts, times = zip(*rows, strict=True)
    new: dict[SystemMetric, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for group, metrics, time in zip(groups, json.loads(f"[{','.join(texts)}]"), times, strict=True):
        seconds = time.timestamp()
        for metric, value in _flat(group, metrics):
            points = new[metric]
            points[0].append(seconds)
            points[1].append(value)
    points_of = dict(known.points)
    for metric, added in new.items():
        points_of[metric] = _in_order(*_joined(points_of.get(metric), added))
    return _Kept(known.started, ids[-1], points_of)


def _flat(group: str, metrics: Mapping[str, Any]) -> Iterator[tuple[SystemMetric, float]]:
    """Yield the numbers of a row: of a machine, and of its devices one level below."""
    for agent, load in metrics.items():
        for name, value in load.items() if isinstance(load, dict) else ():
            if isinstance(value, dict):
                for part, of_part in value.items():
                    if (x := number(of_part)) is not None:
                        yield SystemMetric(group, str(part), agent, name), x
            elif (x := number(value)) is not None:
                yield SystemMetric(group, _FORMER_NAMES.get(name) or name, agent), x


def _joined(
    old: tuple[Floats, Floats] | None, new: tuple[Sequence[float], Sequence[float]]
) -> tuple[Floats, Floats]:
    times, values = np.array(new[0], np.float64), np.array(new[1], np.float64)
    if old is None:
        return times, values
    return np.concatenate((old[0], times)), np.concatenate((old[1], values))


def _in_order(times: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return points ordered by time: reports of a machine may arrive late."""
    if (np.diff(times) >= 0).all():
        return times, values
    order = np.argsort(times, kind="stable")
    return times[order], values[order]


def _downsampled(
    metric: SystemMetric, started: datetime, times: Floats, values: Floats, most_points: int
) -> SystemSeries:
    chosen = thin(times, values, most_points)
    return SystemSeries(metric, started, times[chosen], values[chosen], len(times))
