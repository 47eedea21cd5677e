"""The table of experiments: the experiments in memory, their columns, and the value of an experiment in each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import select
from sqlalchemy.orm import Session

from det_keras.master.database.change_feed import EVERYTHING, Subject
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.serializers.experiments import LIST_COLUMNS, ListedExperiment, listed_experiments
from det_keras.master.table.columns import Column, Names, Value
from det_keras.master.table.followed import FollowedRows, in_parts
from det_keras.master.table.query import Question, Table, answer
from det_keras.protocol import states
from det_keras.protocol.values import now


@dataclass(frozen=True, slots=True)
class Listed:
    """An experiment.

    Attributes:
        id: its number.
        shape: the fields of the REST API that a list shows.
        smaller_is_better: how its metric compares.
        started: when it was created.
        until: when its duration stopped growing; None while it grows.
        has_run: whether it has a duration.
    """

    id: int
    shape: Mapping[str, Any]
    smaller_is_better: bool
    started: datetime
    until: datetime | None
    has_run: bool

    @property
    def duration_s(self) -> int | None:
        """How long it took; None if nothing of it ever ran."""
        if not self.has_run:
            return None
        return int(((self.until or now()) - self.started).total_seconds())


def _of(key: str) -> Value[Listed]:
    return lambda row: row.shape[key]


_COLUMNS: dict[str, tuple[Column, Value[Listed]]] = {
    column.key: (column, value)
    for column, value in (
        (Column("id", "Id", "id"), _of("id")),
        (Column("name", "Name", "name"), lambda row: row.shape["name"] or "unnamed"),
        (Column("state", "State", "state"), lambda row: states.bare(row.shape["state"]).lower()),
        (Column("best", "Best metric", "metric"), _of("bestTrialSearcherMetric")),
        (Column("metric", "Metric", "text"), _of("searcherMetric")),
        (Column("progress", "Progress", "progress"), _of("progress")),
        (Column("trials", "Trials", "number"), _of("numTrials")),
        (Column("owner", "Owner", "text"), _of("username")),
        (Column("started", "Started", "time"), _of("startTime")),
        (Column("duration", "Duration", "duration"), lambda row: row.duration_s),
        (Column("ended", "Ended", "time"), _of("endTime")),
        (Column("label", "Labels", "labels"), _of("labels")),
        (Column("description", "Description", "text"), _of("description")),
        (Column("searcher", "Searcher", "text"), _of("searcherType")),
        (Column("checkpoints", "Checkpoints", "size"), lambda row: int(row.shape["checkpointSize"])),
        (Column("workspace", "Workspace", "text"), _of("workspaceName")),
        (Column("project", "Project", "text"), _of("projectName")),
        (Column("archived", "Archived", "text"), _of("archived")),
    )
}
_SHOWN = (
    "id",
    "name",
    "state",
    "best",
    "metric",
    "progress",
    "trials",
    "owner",
    "started",
    "duration",
)


class ExperimentNames(Names[Listed]):
    """The names that experiments have, and the value of each.

    Args:
        rows: the experiments.
    """

    word = "experiment"
    counted = Column("experiments", "Experiments", "number")
    aliases: ClassVar[Mapping[str, str]] = {"experiment": "id", "labels": "label", "user": "owner"}

    def __init__(self, rows: Sequence[Listed]) -> None:
        smaller = sum(row.smaller_is_better for row in rows)
        best = Column("best", "Best metric", "metric", "min" if 2 * smaller > len(rows) else "max")
        columns = {key: column for key, (column, _) in _COLUMNS.items()}
        super().__init__({**columns, "best": best}, is_empty=not rows)

    def value_of(self, name: str) -> Value[Listed]:
        """Return a function from an experiment to its value under a name."""
        return _COLUMNS[self.key_of(name)][1] if self.candidates(name) else lambda _: None

    def fitting(self, rows: Sequence[Listed], asked: Iterable[str]) -> list[Column]:
        """Return the columns that every list has, and those that are asked for."""
        del rows
        wanted = dict.fromkeys((*_SHOWN, *(self.key_of(name) for name in asked)))
        # What is in the cell of the name is not shown a second time.
        return [self.all[key] for key in wanted if key in self.all and key not in ("label", "description")]

    def searched(self, row: Listed) -> str:
        """Return the number and the texts."""
        shape = row.shape
        return " ".join((str(row.id), shape["name"], *shape["labels"], shape["description"]))

    def is_archived(self, row: Listed) -> bool:
        """Return whether it is archived."""
        return bool(row.shape["archived"])


class ExperimentRows(FollowedRows[Listed]):
    """All experiments in memory, for any thread.

    Args:
        store: the database.
    """

    def table(self, question: Question, among: Collection[int] | None = None) -> Table:
        """Answer a question about experiments.

        Args:
            question: what is asked.
            among: numbers of experiments of which the table is asked, archived or not; None for all.

        Raises:
            InvalidArgumentError: a name is unknown; the error has the nearest ones that are known.
            UnavailableError: the database cannot be used at the moment.
        """
        rows = self.read()
        if among is not None:
            rows = [row for row in rows if row.id in among]
            question = replace(question, is_archived=None)
        return answer(rows, ExperimentNames(rows), question)

    def of(self, ids: Iterable[int]) -> list[Listed]:
        """Return experiments as they were last read; those that are unknown are left out."""
        with self._lock:
            return [self._rows[number] for number in ids if number in self._rows]

    def _follow(self, session: Session, changed: frozenset[Subject] | None) -> None:
        if changed is None or EVERYTHING in changed:
            self._rows = {}
            ids: Collection[int] = session.scalars(select(ExperimentRow.id)).all()
        else:
            ids = _experiments_of(session, changed)
        for number in ids:
            self._rows.pop(number, None)
        for part in in_parts(sorted(ids)):
            query = select(*LIST_COLUMNS).where(ExperimentRow.id.in_(part)).order_by(ExperimentRow.id)
            rows = session.connection().execute(query).all()
            for listed in listed_experiments(session, rows):
                self._rows[listed.row.id] = _listed(listed)
        # Rows that were read again are at the end.
        self._rows = dict(sorted(self._rows.items()))


def _listed(found: ListedExperiment) -> Listed:
    row = found.row
    return Listed(row.id, found.shape, found.smaller_is_better, row.start_time, found.until, found.has_run)


def _experiments_of(session: Session, changed: Iterable[Subject]) -> set[int]:
    """Return the experiments that changes concern."""
    found: dict[str, set[Any]] = defaultdict(set)
    for subject in changed:
        found[subject.kind].add(subject.id)
    numbers: set[int] = set(found["experiment"])
    for column, ids in ((TrialRow.id, found["trial"]), (TrialRow.task_id, found["task"])):
        for part in in_parts(list(ids)):
            numbers.update(session.scalars(select(TrialRow.experiment_id).where(column.in_(part)).distinct()))
    return numbers
