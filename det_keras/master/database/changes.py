"""Which rows a transaction changed, so that nothing else has to be read again: by the queue, and by open pages.

For the queue only the changes that matter to it are collected: a report of progress is not one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import event, inspect
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.orm.unitofwork import UOWTransaction

from det_keras.master.database.change_feed import EVERYTHING, Subject
from det_keras.master.database.models import (
    AllocationRow,
    Base,
    CheckpointRow,
    DisabledSlotRow,
    ExperimentRow,
    MediaRow,
    ModelRow,
    ModelVersionRow,
    PinRow,
    ProjectRow,
    TaskRow,
    TrialRow,
    VerificationRow,
    WorkspaceRow,
)

#: The option of a statement whose transaction says itself which rows it changes.
NAMES_ROWS = "names_rows"

# The columns that decide whether and where a task waits or runs.
_COLUMNS: dict[type[Base], tuple[str, ...]] = {
    AllocationRow: ("shares", "end_time", "is_preempted", "is_killed"),
    TaskRow: ("end_time", "slots", "config", "queue_position"),
    TrialRow: ("task_id", "state", "has_work", "excluded_nodes"),
    ExperimentRow: ("state", "config", "queue_position"),
    DisabledSlotRow: ("is_draining",),
}
# The rows that pages show: the kind of the subject, and the column with its id.
_SUBJECTS: dict[type[Base], tuple[str, str]] = {
    AllocationRow: ("task", "task_id"),
    TaskRow: ("task", "id"),
    TrialRow: ("trial", "id"),
    CheckpointRow: ("trial", "trial_id"),
    MediaRow: ("trial", "trial_id"),
    ExperimentRow: ("experiment", "id"),
    VerificationRow: ("experiment", "experiment_id"),
    DisabledSlotRow: ("slot", "node"),
    WorkspaceRow: ("workspace", "id"),
    ProjectRow: ("project", "id"),
    PinRow: ("workspace", "workspace_id"),
    ModelRow: ("model", "id"),
    ModelVersionRow: ("model", "model_id"),
}


@dataclass
class QueueChanges:
    """What has to be read again.

    Attributes:
        tasks: ids of tasks.
        experiments: numbers of experiments whose configs or positions changed.
        activity: numbers of experiments that were created, deleted, activated, paused or stopped.
        slots: whether slots were enabled or disabled.
        is_everything: whether rows were changed by a statement that does not say which.
    """

    tasks: set[str] = field(default_factory=set)
    experiments: set[int] = field(default_factory=set)
    activity: set[int] = field(default_factory=set)
    slots: bool = False
    is_everything: bool = False

    def __bool__(self) -> bool:
        return bool(self.tasks or self.experiments or self.activity or self.slots or self.is_everything)

    def add(self, other: QueueChanges) -> None:
        """Add other changes."""
        self.tasks |= other.tasks
        self.experiments |= other.experiments
        self.activity |= other.activity
        self.slots |= other.slots
        self.is_everything |= other.is_everything

    def note(self, row: object, *, is_whole: bool) -> None:
        """Add a changed row.

        Args:
            row: any row.
            is_whole: whether it was added or deleted; otherwise only some columns changed.
        """
        columns = _COLUMNS.get(type(row))  # type: ignore[arg-type]  # other classes are not in it
        if columns is None:
            return
        attributes = inspect(row).attrs
        changed = {name for name in columns if is_whole or attributes[name].history.has_changes()}
        if not changed:
            return
        if isinstance(row, AllocationRow):
            self.tasks.add(row.task_id)
        elif isinstance(row, TaskRow):
            self.tasks.add(row.id)
        elif isinstance(row, TrialRow):
            self.tasks.update((row.task_id, *(attributes.task_id.history.deleted or ())))
        elif isinstance(row, ExperimentRow):
            (self.activity if "state" in changed else self.experiments).add(row.id)
        elif isinstance(row, DisabledSlotRow):
            self.slots = True


def collect_changes(session_class: type[Session]) -> None:
    """Collect the changes of all sessions of a class in their attributes `queue_changes` and `subjects`."""
    event.listen(session_class, "after_flush", _flushed)
    event.listen(session_class, "do_orm_execute", _executed)


def _flushed(session: Session, _: UOWTransaction) -> None:
    changes: QueueChanges = session.queue_changes  # type: ignore[attr-defined]  # of `Transaction`
    for row in (*session.new, *session.deleted):
        changes.note(row, is_whole=True)
    for row in session.dirty:
        changes.note(row, is_whole=False)
    subjects: set[Subject] = session.subjects  # type: ignore[attr-defined]  # of `Transaction`
    for row in (*session.new, *session.deleted, *session.dirty):
        if (named := _SUBJECTS.get(type(row))) is not None:
            subjects.add(Subject(named[0], getattr(row, named[1])))


def _executed(state: ORMExecuteState) -> None:
    """Notice a statement such as ``update(TrialRow)``, which passes by the rows of the session."""
    if state.execution_options.get(NAMES_ROWS):
        return
    is_change = state.is_update or state.is_delete or state.is_insert
    if not is_change or state.bind_mapper is None:
        return
    if state.bind_mapper.class_ in _COLUMNS:
        state.session.queue_changes.is_everything = True  # type: ignore[attr-defined]  # of `Transaction`
    if state.bind_mapper.class_ in _SUBJECTS:
        state.session.subjects.add(EVERYTHING)  # type: ignore[attr-defined]  # of `Transaction`
