"""The trials in memory, as rows of values, which follow the database.

A question about 100,000 trials would take seconds if their hyperparameters and metrics were read from JSON each time.
So the rows are kept.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Text, func, select, type_coerce
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from det_keras.display import flat_hparams
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.change_feed import EVERYTHING, Subject
from det_keras.master.database.models import (
    AllocationRow,
    CheckpointRow,
    ExperimentRow,
    ProjectRow,
    ProvenanceRow,
    TrialRow,
    UserRow,
    WorkspaceRow,
)
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError
from det_keras.master.lifecycle import refined_state
from det_keras.master.reports.provenance import subject_of
from det_keras.master.table.followed import FollowedRows, in_parts
from det_keras.protocol import states
from det_keras.protocol.metrics import POSITIONS, VALIDATION, group_of
from det_keras.protocol.values import now, timestamp

_COMMIT_LENGTH = 12
# Of each metric.
_FORMS = ("last", "min", "max")
_LENGTH = func.length(type_coerce(TrialRow.summary_metrics, Text)).label("length")
_MARKED = (
    TrialRow.state,
    TrialRow.task_id,
    TrialRow.end_time,
    TrialRow.total_batches,
    TrialRow.searcher_metric_value,
    _LENGTH,
)
_MARKS = select(TrialRow.id, *_MARKED)
_COLUMNS = select(
    TrialRow.id,
    *_MARKED,
    TrialRow.experiment_id,
    TrialRow.earlier_task_ids,
    TrialRow.restarts,
    TrialRow.progress,
    TrialRow.start_time,
    type_coerce(TrialRow.hparams, Text).label("hparams"),
    type_coerce(TrialRow.summary_metrics, Text).label("summary_metrics"),
)


class Schema(NamedTuple):
    """The hyperparameters and metrics of a trial, by name; all trials of a search share one.

    Attributes:
        hparams: names of hyperparameters, nested ones with dots.
        metrics: names of metrics.
        places: the place in `Row.values` of each of them, and of ``min.NAME`` and ``max.NAME`` for each metric.
    """

    hparams: tuple[str, ...]
    metrics: tuple[str, ...]
    places: Mapping[str, int]


@dataclass(frozen=True)
class Experiment:
    """What is known of all trials of an experiment.

    Attributes:
        id: its number.
        name: its name.
        description: its description.
        labels: its labels.
        owner: name of its user.
        workspace: name of its workspace.
        project: name of its project.
        project_id: number of its project.
        searcher: name of its search method.
        forked_from: number of the experiment from which it was made; None for none.
        is_archived: whether it is archived.
        is_unmanaged: whether its trials run outside of the master.
        metric: the searcher's metric.
        smaller_is_better: how the metric compares.
        code: the commit with which it was submitted, with a ``+`` if files were changed; None if there is none.
    """

    id: int
    name: str
    description: str
    labels: tuple[str, ...]
    owner: str
    workspace: str
    project: str
    project_id: int
    searcher: str
    forked_from: int | None
    is_archived: bool
    is_unmanaged: bool
    metric: str
    smaller_is_better: bool
    code: str | None


@dataclass(frozen=True, slots=True)
class Row:
    """A trial.

    Attributes:
        id: its number.
        experiment: of the trial.
        state: the stored state.
        task_id: its current task.
        best: the best value of the searcher's metric.
        batches: trained so far.
        restarts: counted ones.
        progress: how much of its length is trained, from 0 to 1.
        started: when it was created.
        ended: None while it has not ended.
        run_s: how long its ended runs took.
        running_since: the start of the run that has not ended.
        schema: names of `values`.
        values: of hyperparameters and metrics.
        mark: changes with the trial, once it has ended.
    """

    id: int
    experiment: Experiment
    state: str
    task_id: str
    best: float | None
    batches: int
    restarts: int
    progress: float
    started: datetime
    ended: datetime | None
    run_s: float
    running_since: datetime | None
    schema: Schema
    values: tuple[Any, ...]
    mark: int

    def value(self, name: str) -> Any:
        """Return the value of a hyperparameter or metric; None if the trial has none."""
        place = self.schema.places.get(name)
        return None if place is None else self.values[place]

    @property
    def duration_s(self) -> float:
        """How long it has run, without the time in which it was queued or paused."""
        if self.experiment.is_unmanaged:
            return ((self.ended or now()) - self.started).total_seconds()
        return self.run_s + (
            0.0 if self.running_since is None else (now() - self.running_since).total_seconds()
        )


class TrialRows(FollowedRows[Row]):
    """All trials, for any thread.

    Args:
        store: the database.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._is_prepared = False
        self._experiments: dict[int, Experiment] = {}
        self._schemas: dict[tuple[tuple[str, ...], tuple[str, ...]], Schema] = {}

    def prepare(self) -> None:
        """Read the trials in the background, if they were never read: of 100,000 this takes some seconds.

        Called when somebody opens a page, so that the table is there when it is looked for. A master without visitors
        keeps no rows.
        """
        if not self._is_prepared:
            self._is_prepared = True
            threading.Thread(target=self._read_first, name="trial-rows", daemon=True).start()

    def _read_first(self) -> None:
        # Whoever asks for the table gets the error.
        with contextlib.suppress(UnavailableError, SQLAlchemyError):
            self.read()

    def states(self, rows: Iterable[Row]) -> dict[int, str]:
        """Return the state of each trial in the REST API, without its prefix, such as ``QUEUED``."""
        rows = list(rows)
        live: dict[str, list[str]] = defaultdict(list)
        if any(row.state == states.ACTIVE for row in rows):
            query = select(AllocationRow.task_id, AllocationRow.state).where(AllocationRow.end_time.is_(None))
            with self._store.reading() as session:
                for task_id, state in session.execute(query):
                    live[task_id].append(state)
        return {
            row.id: states.bare(
                refined_state(row.state, live.get(row.task_id, ()), row.experiment.is_unmanaged)
            )
            if row.state == states.ACTIVE
            else row.state
            for row in rows
        }

    def checkpoint_sizes(self) -> dict[int, int]:
        """Return the bytes of the checkpoints of each trial that has some."""
        query = select(CheckpointRow.trial_id, func.sum(CheckpointRow.size))
        query = query.where(CheckpointRow.state != checkpoints.DELETED).group_by(CheckpointRow.trial_id)
        with self._store.reading() as session:
            return {trial_id: int(size or 0) for trial_id, size in session.execute(query)}

    def _follow(self, session: Session, changed: frozenset[Subject] | None) -> None:
        if changed is None:
            self._load(session, session.scalars(select(TrialRow.id).order_by(TrialRow.id)).all())
        elif EVERYTHING in changed:
            self._follow_all(session)
        else:
            self._follow_some(session, changed)

    def _follow_some(self, session: Session, changed: Iterable[Subject]) -> None:
        """Read what changed again."""
        ids = {int(subject.id) for subject in changed if subject.kind == "trial"}
        tasks = [str(subject.id) for subject in changed if subject.kind == "task"]
        for part in in_parts(tasks):
            ids.update(session.scalars(select(TrialRow.id).where(TrialRow.task_id.in_(part))))
        experiments = {int(subject.id) for subject in changed if subject.kind == "experiment"}
        for number in experiments:
            self._experiments.pop(number, None)
        ids.update(row.id for row in self._rows.values() if row.experiment.id in experiments)
        self._replace(session, ids)

    def _follow_all(self, session: Session) -> None:
        """Read all experiments again, and the trials that are running or differ in a column that is quickly read."""
        marks = {row.id: _mark(row) for row in session.execute(_MARKS)}
        known = {row.id: row.mark for row in self._rows.values() if row.ended is not None}
        self._experiments = {}
        kept = {number for number, mark in marks.items() if known.get(number) == mark}
        self._replace(session, {*marks, *self._rows} - kept)
        experiments = _experiments(session, {row.experiment.id for row in self._rows.values()})
        self._experiments.update(experiments)
        self._rows = {
            row.id: replace(row, experiment=experiments[row.experiment.id])
            for row in self._rows.values()
            if row.experiment.id in experiments
        }

    def _replace(self, session: Session, ids: Collection[int]) -> None:
        """Read trials again; those that are gone are removed."""
        for number in ids:
            self._rows.pop(number, None)
        self._load(session, sorted(ids))
        if ids:
            # Rows that were read again are at the end.
            self._rows = dict(sorted(self._rows.items()))

    def _load(self, session: Session, ids: Sequence[int]) -> None:
        for part in in_parts(ids):
            rows = session.execute(_COLUMNS.where(TrialRow.id.in_(part)).order_by(TrialRow.id)).all()
            missing = {row.experiment_id for row in rows} - self._experiments.keys()
            self._experiments.update(_experiments(session, missing))
            runs = _runs(session, rows)
            for row in rows:
                # Another transaction may have deleted its experiment.
                if (experiment := self._experiments.get(row.experiment_id)) is not None:
                    self._rows[row.id] = self._row(row, experiment, *runs.get(row.id, (0.0, None)))

    def _row(self, row: Any, experiment: Experiment, run_s: float, running_since: datetime | None) -> Row:
        nested, summaries = json.loads(f"[{row.hparams},{row.summary_metrics}]")
        hparams = dict(flat_hparams(nested))
        metrics = _metrics(summaries)
        names = tuple(hparams), tuple(metrics)
        values = [_plain(value) for value in hparams.values()]
        for summary in metrics.values():
            values += [float(summary[form]) for form in _FORMS]
        return Row(
            row.id,
            experiment,
            row.state,
            row.task_id,
            row.searcher_metric_value,
            row.total_batches,
            row.restarts,
            row.progress,
            row.start_time,
            row.end_time,
            run_s,
            running_since,
            self._schema(*names),
            tuple(values),
            _mark(row),
        )

    def _schema(self, hparams: tuple[str, ...], metrics: tuple[str, ...]) -> Schema:
        key = hparams, metrics
        schema = self._schemas.get(key)
        if schema is None:
            places = {name: place for place, name in enumerate(hparams)}
            for index, name in enumerate(metrics):
                for offset, form in enumerate(_FORMS):
                    place = len(hparams) + index * len(_FORMS) + offset
                    # A hyperparameter comes first where a metric has the same name.
                    places.setdefault(name if form == "last" else f"{form}.{name}", place)
            schema = self._schemas[key] = Schema(hparams, metrics, places)
        return schema


def _mark(row: Any) -> int:
    # Reports that come after the end are seen by the length of the summary.
    return hash(tuple(getattr(row, column.key) for column in _MARKED))


def _experiments(session: Session, numbers: Iterable[int]) -> dict[int, Experiment]:
    found = {}
    for part in in_parts(sorted(numbers)):
        query = (
            select(ExperimentRow, UserRow.username, ProjectRow.name, WorkspaceRow.name)
            .join(UserRow, UserRow.id == ExperimentRow.owner_id)
            .join(ProjectRow, ProjectRow.id == ExperimentRow.project_id)
            .join(WorkspaceRow, WorkspaceRow.id == ProjectRow.workspace_id)
            .where(ExperimentRow.id.in_(part))
        )
        rows = session.execute(query).all()
        subjects = [subject_of("experiment", row.id) for row, *_ in rows]
        records = {
            record.subject: record.record
            for record in session.scalars(select(ProvenanceRow).where(ProvenanceRow.subject.in_(subjects)))
        }
        for row, owner, project, workspace in rows:
            searcher = row.config.get("searcher") or {}
            found[row.id] = Experiment(
                row.id,
                row.name,
                row.description,
                tuple(str(label) for label in row.labels),
                owner,
                workspace,
                project,
                row.project_id,
                str(searcher.get("name", "")),
                row.parent_id,
                row.archived,
                row.is_unmanaged,
                str(searcher.get("metric", "")),
                bool(searcher.get("smaller_is_better", True)),
                _commit(records.get(subject_of("experiment", row.id))),
            )
    return found


def _commit(record: Mapping[str, Any] | None) -> str | None:
    """Return the commit of a record of provenance; clients send any values."""
    repository = (record or {}).get("repository")
    commit = repository.get("commit") if isinstance(repository, Mapping) else None
    if not isinstance(commit, str) or not isinstance(repository, Mapping):
        return None
    return commit[:_COMMIT_LENGTH] + ("+" if repository.get("isDirty") else "")


def _runs(session: Session, rows: Sequence[Any]) -> dict[int, tuple[float, datetime | None]]:
    """Return how long the ended runs of each trial took, and when the other one began."""
    trials = {task_id: row.id for row in rows for task_id in (*row.earlier_task_ids, row.task_id)}
    found: dict[int, tuple[float, datetime | None]] = {}
    for part in in_parts(list(trials)):
        query = select(AllocationRow.task_id, AllocationRow.start_time, AllocationRow.end_time)
        for task_id, start, end in session.execute(query.where(AllocationRow.task_id.in_(part))):
            run_s, since = found.get(trials[task_id], (0.0, None))
            found[trials[task_id]] = (
                (run_s, start) if end is None else (run_s + (end - start).total_seconds(), since)
            )
    return found


def _metrics(summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the summaries of numeric metrics by name; a validation counts before a training metric of the name."""
    found: dict[str, Mapping[str, Any]] = {}
    groups = sorted(summaries, key=lambda group: (group_of(group) != VALIDATION, group))
    for group in groups:
        for name, summary in summaries[group].items():
            if summary.get("type") != "number" or name in POSITIONS:
                continue
            found[name if name not in found else f"{group_of(group)}.{name}"] = summary
    return dict(sorted(found.items()))


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else json.dumps(value)


def time_of(row: Row, name: str) -> str | None:
    """Return when a trial ``started`` or ``ended``, as ISO 8601."""
    return timestamp(row.started if name == "started" else row.ended)
