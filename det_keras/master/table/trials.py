"""The table of trials: its columns, and the value of a trial in each."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Store
from det_keras.master.experiments.rungs import brackets_of, last_rungs
from det_keras.master.table.columns import COUNT, Column, Names, Value
from det_keras.master.table.query import Question, Table, answer
from det_keras.master.table.rows import Row, Schema, TrialRows, time_of
from det_keras.protocol.states import COMPLETED, ERROR


def _duration(row: Row) -> float | None:
    has_run = row.running_since is not None or row.run_s > 0 or row.experiment.is_unmanaged
    return round(row.duration_s, 3) if has_run else None


_FIXED: dict[str, tuple[Column, Value[Row]]] = {
    column.key: (column, value)
    for column, value in (
        (Column("id", "Trial", "id"), lambda row: row.id),
        (Column("experiment", "Experiment", "experiment"), lambda row: row.experiment.id),
        (Column("name", "Name", "text"), lambda row: row.experiment.name),
        (Column("description", "Description", "text"), lambda row: row.experiment.description),
        (Column("label", "Labels", "labels"), lambda row: list(row.experiment.labels)),
        (Column("owner", "Owner", "text"), lambda row: row.experiment.owner),
        (Column("workspace", "Workspace", "text"), lambda row: row.experiment.workspace),
        (Column("project", "Project", "text"), lambda row: row.experiment.project),
        (Column("best", "Best", "metric"), lambda row: row.best),
        (Column("metric", "Searcher's metric", "text"), lambda row: row.experiment.metric),
        # Without a report its length may be unknown.
        (Column("progress", "Progress", "progress"), lambda row: None if row.ended else row.progress or None),
        (Column("batches", "Batches", "number"), lambda row: row.batches),
        (Column("restarts", "Restarts", "number"), lambda row: row.restarts),
        (Column("duration", "Duration", "duration"), _duration),
        (Column("started", "Started", "time"), lambda row: time_of(row, "started")),
        (Column("ended", "Ended", "time"), lambda row: time_of(row, "ended")),
        (Column("code", "Code", "text"), lambda row: row.experiment.code),
        (Column("archived", "Archived", "text"), lambda row: row.experiment.is_archived),
    )
}
_STATE = Column("state", "State", "state")
_SIZE = Column("checkpoints", "Checkpoints", "size")
_STOPPED = Column("stopped", "Stopped at", "text")
_SHOWN_AT_THE_END = ("duration", "started")
_SHOWN_HPARAMS = 6
_SHOWN_METRICS = 2


@dataclass(frozen=True)
class Among:
    """Some trials of which a table is asked, as on the page of an experiment.

    Attributes:
        experiments: numbers of experiments; None for all.
        trials: numbers of trials; None for all.
        rungs: the highest rung that a trial reached, such as ``rung 1 of 3``, for those that did not reach the last.
    """

    experiments: Collection[int] | None = None
    trials: Collection[int] | None = None
    rungs: Mapping[int, str] = field(default_factory=dict)

    @property
    def is_all(self) -> bool:
        """Whether the table is that of all trials."""
        return self.experiments is None and self.trials is None

    def includes(self, row: Row) -> bool:
        """Return whether a trial is one of them."""
        return (self.experiments is None or row.experiment.id in self.experiments) and (
            self.trials is None or row.id in self.trials
        )


ALL = Among()


def among_of(store: Store, experiments: Collection[int] | None, trials: Collection[int] | None) -> Among:
    """Return some trials; where they are those of one experiment, it is known where its search stopped them.

    Args:
        store: has the searches.
        experiments: numbers of experiments; None for all.
        trials: numbers of trials; None for all.

    Raises:
        UnavailableError: the database cannot be used at the moment.
    """
    rungs: Mapping[int, str] = {}
    if experiments is not None and len(experiments) == 1:
        with store.reading() as session:
            experiment = session.get(ExperimentRow, *experiments)
            rungs = {} if experiment is None else last_rungs(brackets_of(session, experiment))
    return Among(experiments, trials, rungs)


def trial_table(source: TrialRows, question: Question, among: Among = ALL) -> Table:
    """Answer a question about trials.

    Args:
        source: the trials.
        question: what is asked.
        among: of which trials; trials of archived experiments are left out of the table of all.

    Raises:
        InvalidArgumentError: a name is unknown; the error has the nearest ones that are known.
        UnavailableError: the database cannot be used at the moment.
    """
    rows = source.read()
    if not among.is_all:
        rows = [row for row in rows if among.includes(row)]
        question = replace(question, is_archived=None)
    names = TrialNames(rows, source, among)
    found = answer(rows, names, question)
    return replace(found, best=_best_of(rows, found.ids))


def _best_of(rows: Sequence[Row], shown: Iterable[int]) -> list[int]:
    """Return those of the shown trials that are the best of their experiments."""
    wanted = set(shown)
    experiments = {row.experiment.id for row in rows if row.id in wanted}
    best: dict[int, tuple[float, int]] = {}
    for row in rows:
        if row.best is None or math.isnan(row.best) or row.experiment.id not in experiments:
            continue
        key = (row.best if row.experiment.smaller_is_better else -row.best, row.id)
        best[row.experiment.id] = min(key, best.get(row.experiment.id, key))
    chosen = {number for _, number in best.values()} & wanted
    return sorted(row.id for row in rows if row.id in chosen and row.state != ERROR)


class TrialNames(Names[Row]):
    """The names that trials have, and the value of each.

    Args:
        rows: the trials.
        source: of the rows; has their states and the sizes of their checkpoints.
        among: which trials they are.
    """

    word = "trial"
    counted = COUNT
    aliases: ClassVar[Mapping[str, str]] = {"trial": "id", "labels": "label", "user": "owner"}

    def __init__(self, rows: Sequence[Row], source: TrialRows, among: Among = ALL) -> None:
        self._among = among
        self._schemas = list({id(row.schema): row.schema for row in rows}.values())
        states = source.states(rows)
        sizes: dict[int, int] = {}

        def size(row: Row) -> int:
            # Most questions ask for none.
            sizes or sizes.update(source.checkpoint_sizes())
            return sizes.get(row.id, 0)

        self._fixed: dict[str, tuple[Column, Value[Row]]] = {
            **_FIXED,
            "best": (_best_column(rows, among), _FIXED["best"][1]),
            _STATE.key: (_STATE, lambda row: states[row.id].lower()),
            _SIZE.key: (_SIZE, size),
            **({_STOPPED.key: (_STOPPED, self._stopped)} if among.rungs else {}),
        }
        columns = {key: column for key, (column, _) in self._fixed.items()}
        hparams = dict.fromkeys(name for schema in self._schemas for name in schema.hparams)
        metrics = dict.fromkeys(name for schema in self._schemas for name in schema.metrics)
        for kind, found in (("hparam", hparams), ("metric", metrics)):
            for name in found:
                columns.setdefault(name, Column(name, name, kind))
        for name in metrics:
            for form, title in (("min", "smallest"), ("max", "largest")):
                key = f"{form}.{name}"
                columns.setdefault(key, Column(key, f"{name} ({title})", "metric"))
        super().__init__(columns, is_empty=not rows)

    def value_of(self, name: str) -> Value[Row]:
        """Return a function from a trial to its value under a name; None for trials without one."""
        candidates = self.candidates(name)
        if candidates and candidates[0] in self._fixed:
            return self._fixed[candidates[0]][1]
        places = {id(schema): _place(schema, candidates) for schema in self._schemas}

        def value(row: Row) -> Any:
            place = places[id(row.schema)]
            return None if place is None else row.values[place]

        return value

    def compared(self, name: str) -> Value[Row]:
        """Return what a filter compares: an experiment has a number and a name."""
        if self.key_of(name) == "experiment":
            return lambda row: (row.experiment.id, row.experiment.name)
        return self.value_of(name)

    def searched(self, row: Row) -> str:
        """Return the texts of the experiment."""
        experiment = row.experiment
        return " ".join((experiment.name, *experiment.labels, experiment.description, experiment.owner))

    def is_archived(self, row: Row) -> bool:
        """Return whether the experiment is archived."""
        return row.experiment.is_archived

    def fitting(self, rows: Sequence[Row], asked: Iterable[str]) -> list[Column]:
        """Return the columns that say most about trials: hyperparameters that differ, metrics that most have.

        Args:
            rows: the trials.
            asked: names that are shown in any case.
        """
        counts = Counter(id(row.schema) for row in rows)
        schemas = {id(schema): schema for schema in self._schemas}
        hparams: Counter[str] = Counter()
        metrics: Counter[str] = Counter()
        for key, count in counts.items():
            hparams.update(dict.fromkeys(schemas[key].hparams, count))
            metrics.update(dict.fromkeys(schemas[key].metrics, count))
        differing = [name for name, _ in hparams.most_common(_SHOWN_HPARAMS * 4) if self._differs(rows, name)]
        is_of_one = self._among.experiments is not None and len({row.experiment.id for row in rows}) <= 1
        wanted = [
            "id",
            *([] if is_of_one else ["name"]),
            "state",
            "best",
            *(["progress"] if any(not row.ended for row in rows) else []),
            *(["stopped"] if "stopped" in self._fixed else []),
            *(self.key_of(name) for name in asked),
            *differing[:_SHOWN_HPARAMS],
            *(name for name, _ in metrics.most_common(_SHOWN_METRICS)),
            *(["batches"] if is_of_one else []),
            *(["restarts"] if any(row.restarts for row in rows) else []),
            *_SHOWN_AT_THE_END,
        ]
        return [self.all[key] for key in dict.fromkeys(wanted) if key in self.all]

    def _stopped(self, row: Row) -> str | None:
        """Return where its search stopped a trial."""
        return self._among.rungs.get(row.id) if row.state == COMPLETED else None

    def _differs(self, rows: Sequence[Row], name: str) -> bool:
        value = self.value_of(name)
        found: set[str] = set()
        for row in rows:
            found.add(repr(value(row)))
            if len(found) > 1:
                return True
        return False


def _best_column(rows: Sequence[Row], among: Among) -> Column:
    """Return the column of the best values; in the table of one experiment its metric is named."""
    smaller = sum(row.experiment.smaller_is_better for row in rows)
    metrics = {row.experiment.metric for row in rows} if among.experiments else set()
    title = f"Best {metrics.pop()}" if len(metrics) == 1 else "Best"
    return Column("best", title, "metric", "min" if 2 * smaller > len(rows) else "max")


def _place(schema: Schema, keys: Iterable[str]) -> int | None:
    return next((schema.places[key] for key in keys if key in schema.places), None)
