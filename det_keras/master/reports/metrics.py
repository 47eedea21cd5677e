"""Reports of metrics: rolled back after a restart, merged within a step, summarised.

Storing the same report twice changes nothing, so a client may repeat a report whose response was lost. A sample of a
profiler is the exception: it is stored again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, insert, or_, select, update
from sqlalchemy.orm import Session

from det_keras.config import Searcher
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import MetricRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.reports.summary import summarise, summarise_all
from det_keras.protocol.metrics import PROFILER_GROUPS, TRAINING, VALIDATION, is_better, number, summary_name
from det_keras.protocol.values import now

_PROFILER = "profiler"
_GENERIC = "generic"
_MOST_NAMES = 50_000
_EPOCHS = ("epoch", "epochs")


_METRICS, _TRIALS = MetricRow.__table__.c, TrialRow.__table__.c
_LIVE = (_METRICS.trial_id == bindparam("trial_id")) & _METRICS.archived.is_(False)
_TRIALS_BY_ID = select(_TRIALS.id, _TRIALS.run_id, _TRIALS.total_batches, _TRIALS.summary_metrics).where(
    _TRIALS.id.in_(bindparam("trial_ids", expanding=True))
)
# Reports of earlier runs that a report rolls back: those beyond its batch, and of its own partition those at its batch.
_ROLLED_BACK = (
    _LIVE
    & (_METRICS.run_id < bindparam("run_id"))
    & (_METRICS.partition != _PROFILER)
    & or_(
        _METRICS.total_batches > bindparam("steps"),
        (_METRICS.partition == bindparam("partition")) & (_METRICS.total_batches >= bindparam("steps")),
    )
)
_ANY_ROLLED_BACK = select(_METRICS.id).where(_ROLLED_BACK).limit(1)
_SAME_STEP = select(_METRICS.id).where(
    _LIVE, _METRICS.group == bindparam("group"), _METRICS.total_batches == bindparam("steps")
)
_INSERT = insert(MetricRow)
_UPDATE = update(TrialRow).where(_TRIALS.id == bindparam("row_id"))


@dataclass(frozen=True)
class Report:
    """A report of metrics.

    Attributes:
        trial_id: the trial.
        run_id: the trial's run; reports of earlier runs are refused.
        group: ``training``, ``validation``, a profiler's group or a name chosen by the user.
        steps_completed: batches trained so far; None for a profiler.
        metrics: averages over the batches, by name.
        batch_metrics: metrics of every batch; None if they were not sent.
        time: time of the report; None for now.
    """

    trial_id: int
    run_id: int
    group: str
    steps_completed: int | None
    metrics: Mapping[str, object]
    batch_metrics: Sequence[Any] | None = None
    time: datetime | None = None

    @property
    def partition(self) -> str:
        """The reports of one partition are rolled back together."""
        if self.group in (TRAINING, VALIDATION):
            return self.group
        return _PROFILER if self.group in PROFILER_GROUPS else _GENERIC


def store_report(tx: Transaction, report: Report) -> MetricRow | None:
    """Store a report.

    Returns:
        The row of a validation that this report created or extended; None for every other report.

    Raises:
        NotFoundError: the trial does not exist.
        InvalidArgumentError: the report is malformed, of another run, or contradicts an earlier one.
    """
    check_report(report)
    trial = find_trial(tx, report.trial_id)
    if report.run_id != trial.run_id:
        raise InvalidArgumentError(f"invalid run id, {report.run_id} (reported) != {trial.run_id} (expected)")
    if report.partition == _PROFILER:
        tx.add(_row(report, None))
        return None
    steps = report.steps_completed or 0
    if _roll_back(tx, report, steps):
        _recompute(tx, trial)
    searcher_metric = _searcher_metric(tx, trial, report)
    row, new_names = _merge_or_add(tx, report, steps, searcher_metric)
    trial.total_batches = max(trial.total_batches, steps)
    added = {name: report.metrics[name] for name in new_names}
    name = summary_name(report.group)
    summary = summarise(trial.summary_metrics.get(name, {}), added)
    trial.summary_metrics = {**trial.summary_metrics, name: summary}
    if report.group != VALIDATION or not new_names:
        return None
    _record_validation(trial, row, config_of(find_experiment(tx, trial.experiment_id)).searcher)
    return row


def add_quickly(connection: Connection, reports: Sequence[Report], calls: Sequence[Hashable]) -> list[bool]:
    """Store the reports that only add a row, as nearly all do; return for each whether it was stored.

    Those that follow one that does more, of the same trial and group or in the same call, are not stored either: their
    order stays, also for who reads between two commits.

    Reports are the most frequent calls. Prebuilt statements and rows without a session store 2.3 times as many a second
    from one client, and 3.6 times as many from 16 (`benchmarks/bench_report_lane.py`). The statements of all reports
    are sent together, so that a server is asked once instead of three times for each.
    """
    trial_ids = {report.trial_id for report in reports if report.partition != VALIDATION}
    lane = _Lane(connection, _trials(connection, sorted(trial_ids)))
    stored = [lane.add(report, call) for report, call in zip(reports, calls, strict=True)]
    lane.flush()
    return stored


def _trials(connection: Connection, trial_ids: Sequence[int]) -> dict[int, _Trial]:
    rows = connection.execute(_TRIALS_BY_ID, {"trial_ids": trial_ids}) if trial_ids else ()
    return {row.id: _Trial(row.run_id, row.total_batches, row.summary_metrics) for row in rows}


@dataclass
class _Trial:
    """The columns of a trial that its reports change."""

    run_id: int
    total_batches: int
    summary_metrics: Mapping[str, Any]


class _Lane:
    """Collects the rows of reports that arrive together."""

    def __init__(self, connection: Connection, trials: Mapping[int, _Trial]) -> None:
        self._connection = connection
        self._trials = trials
        self._rows: list[dict[str, Any]] = []
        self._changed: set[int] = set()
        # Groups of a trial, and its reports of a call, of which one was not taken.
        self._stopped: set[tuple[int, Hashable]] = set()

    def add(self, report: Report, call: Hashable) -> bool:
        """Take a report if it only adds a row and none was left that it must not overtake; return whether it did."""
        series: set[tuple[int, Hashable]] = {(report.trial_id, report.group)}
        if report.partition != _PROFILER:
            series.add((report.trial_id, call))
        is_taken = self._stopped.isdisjoint(series) and self._take(report)
        if not is_taken:
            self._stopped |= series
        return is_taken

    def _take(self, report: Report) -> bool:
        trial = self._trials.get(report.trial_id)
        if trial is None or report.partition == VALIDATION or trial.run_id != report.run_id:
            return False
        if report.partition == _PROFILER:
            self._rows.append(_values(report, None))
            return True
        steps = report.steps_completed or 0
        # Before the first run that was started nobody reports, but for programs that start none.
        if report.run_id > 1 and self._finds(_ANY_ROLLED_BACK, report, steps):
            return False
        # After the last reported batch there is no report to merge with.
        if steps <= trial.total_batches:
            self.flush()
            if self._finds(_SAME_STEP, report, steps):
                return False
        self._rows.append(_values(report, steps))
        name = summary_name(report.group)
        summary = summarise(trial.summary_metrics.get(name, {}), report.metrics)
        trial.summary_metrics = {**trial.summary_metrics, name: summary}
        trial.total_batches = max(trial.total_batches, steps)
        self._changed.add(report.trial_id)
        return True

    def flush(self) -> None:
        """Store the rows, and the trials that they change."""
        if not self._rows:
            return
        self._connection.execute(_INSERT, self._rows)
        changes = [
            {
                "row_id": trial_id,
                "total_batches": self._trials[trial_id].total_batches,
                "summary_metrics": self._trials[trial_id].summary_metrics,
            }
            for trial_id in sorted(self._changed)
        ]
        if changes:
            self._connection.execute(_UPDATE, changes)
        self._rows, self._changed = [], set()

    def _finds(self, query: Select[Any], report: Report, steps: int) -> bool:
        return self._connection.execute(query, _parameters(report, steps)).first() is not None


def best_validation(session: Session, experiment_id: int, *, smaller_is_better: bool) -> float | None:
    """Return the best searcher metric of an experiment's validations; None if there is none.

    Args:
        session: to read with.
        experiment_id: number of the experiment.
        smaller_is_better: whether the best is the smallest.
    """
    best = func.min if smaller_is_better else func.max
    value = session.scalar(
        select(best(MetricRow.searcher_metric))
        .join(TrialRow, TrialRow.id == MetricRow.trial_id)
        .where(TrialRow.experiment_id == experiment_id, MetricRow.archived.is_(False))
    )
    return None if value is None else float(value)


def live_rows(trial_ids: Sequence[int] | Select[int]) -> Select[MetricRow]:
    """Return the query for all reports of some trials, or of those of a query, that were not rolled back."""
    return select(MetricRow).where(MetricRow.trial_id.in_(trial_ids), MetricRow.archived.is_(False))


def check_report(report: Report) -> None:
    """Check a report without the database.

    Raises:
        InvalidArgumentError: the report is malformed.
    """
    if not report.group or "." in report.group:
        raise InvalidArgumentError(f"The group {report.group!r} must be a name without a dot.")
    if len(report.metrics) > _MOST_NAMES:
        raise InvalidArgumentError(
            f"A report may have at most {_MOST_NAMES} metrics, received {len(report.metrics)}."
        )
    for name in _EPOCHS:
        value = report.metrics.get(name)
        if value is not None and number(value) is None:
            raise InvalidArgumentError(f"The metric `{name}` must be a number, received {value!r}.")


def _roll_back(tx: Transaction, report: Report, steps: int) -> bool:
    """Archive the reports that this report rolls back; return whether there were any."""
    if report.run_id == 0:
        # There are no earlier reports.
        return False
    rows = tx.scalars(select(MetricRow).where(_ROLLED_BACK), _parameters(report, steps)).all()
    for row in rows:
        row.archived = True
    tx.flush()
    return bool(rows)


def _recompute(tx: Transaction, trial: TrialRow) -> None:
    """Recompute the metrics in a trial's row from the reports that were not archived."""
    rows = tx.scalars(
        live_rows([trial.id]).where(MetricRow.partition != _PROFILER).order_by(MetricRow.id)
    ).all()
    trial.total_batches = max((row.total_batches or 0 for row in rows), default=0)
    trial.summary_metrics = summarise_all((row.group, row.metrics) for row in rows)
    trial.latest_validation_id = trial.best_validation_id = trial.searcher_metric_value = None
    config = config_of(find_experiment(tx, trial.experiment_id))
    for row in rows:
        if row.group == VALIDATION:
            _record_validation(trial, row, config.searcher)


def _merge_or_add(
    tx: Transaction, report: Report, steps: int, searcher_metric: float | None
) -> tuple[MetricRow, list[str]]:
    """Return the row of a report, and the names of its new metrics."""
    row = tx.scalar(
        live_rows([report.trial_id]).where(MetricRow.group == report.group, MetricRow.total_batches == steps)
    )
    if row is None:
        row = _row(report, steps)
        row.searcher_metric = searcher_metric
        tx.add(row)
        tx.flush()
        return row, list(report.metrics)
    for name, value in report.metrics.items():
        if name in row.metrics and row.metrics[name] != value:
            raise InvalidArgumentError(
                f"overwriting existing metric keys is not supported, conflicting key: {name}"
            )
    new_names = [name for name in report.metrics if name not in row.metrics]
    batch_metrics = _batch_metrics(report)
    if batch_metrics and row.batch_metrics and row.batch_metrics != batch_metrics:
        raise InvalidArgumentError("overwriting existing batch metrics is not supported")
    row.metrics = {**row.metrics, **report.metrics}
    row.batch_metrics = row.batch_metrics or batch_metrics
    if row.searcher_metric is None:
        row.searcher_metric = searcher_metric
    return row, new_names


def _parameters(report: Report, steps: int) -> dict[str, Any]:
    return {
        "trial_id": report.trial_id,
        "run_id": report.run_id,
        "group": report.group,
        "partition": report.partition,
        "steps": steps,
    }


def _row(report: Report, steps: int | None) -> MetricRow:
    return MetricRow(**_values(report, steps))


def _values(report: Report, steps: int | None) -> dict[str, Any]:
    return {
        "trial_id": report.trial_id,
        "run_id": report.run_id,
        "group": report.group,
        "partition": report.partition,
        "total_batches": steps,
        "archived": False,
        "metrics": dict(report.metrics),
        "batch_metrics": _batch_metrics(report),
        "searcher_metric": None,
        "end_time": report.time or now(),
    }


def _batch_metrics(report: Report) -> list[Any] | None:
    if report.group == VALIDATION or not report.batch_metrics:
        return None
    return list(report.batch_metrics)


def _searcher_metric(tx: Transaction, trial: TrialRow, report: Report) -> float | None:
    """Return the searcher's metric of a validation; None if it is missing or not finite."""
    if report.group != VALIDATION:
        return None
    name = config_of(find_experiment(tx, trial.experiment_id)).searcher.metric
    value = number(report.metrics.get(name))
    return None if value is None or not math.isfinite(value) else value


def _record_validation(trial: TrialRow, row: MetricRow, searcher: Searcher) -> None:
    """Record a validation that has the searcher's metric as the latest, and as the best if it is."""
    if number(row.metrics.get(searcher.metric)) is None:
        return
    trial.latest_validation_id = row.id
    if row.searcher_metric is None:
        # Not finite: it cannot be the best.
        return
    best = trial.searcher_metric_value
    if is_better(row.searcher_metric, best, smaller_is_better=searcher.smaller_is_better):
        trial.best_validation_id = row.id
        trial.searcher_metric_value = row.searcher_metric
