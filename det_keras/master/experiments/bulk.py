"""What is done with many experiments at once: those of a request, of a project or of a workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import select

from det_keras.master import lifecycle
from det_keras.master.accounts.auth import Caller
from det_keras.master.accounts.links import delete_links
from det_keras.master.database.lookups import find_experiment
from det_keras.master.database.models import (
    CheckpointRow,
    ExperimentRow,
    ModelRow,
    ProjectRow,
    TaskRow,
    TrialRow,
)
from det_keras.master.database.notifier import DELETIONS
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import ApiError, FailedPreconditionError
from det_keras.master.experiments.reporting import controller_of
from det_keras.master.registry.versions import refuse_registered
from det_keras.master.tasks.jobs import kill_job
from det_keras.master.teams import projects, workspaces
from det_keras.master.teams.placing import forget_if_deleted, forget_workspace_if_deleted
from det_keras.protocol import states

# Numbers in a message.
_MOST_NAMED = 10

Action = Callable[[Transaction, ExperimentRow], None]


def set_archived(tx: Transaction, experiment: ExperimentRow, *, archived: bool) -> None:
    """Archive an ended experiment, which hides it in lists, or unarchive it.

    Raises:
        FailedPreconditionError: it has not ended, or is archived or unarchived already.
    """
    del tx
    if experiment.state not in states.TERMINAL and archived:
        raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")
    if experiment.archived == archived:
        raise FailedPreconditionError(f"experiment is {'already' if archived else 'not'} archived")
    experiment.archived = archived


def apply_to_each(store: Store, experiment_ids: Sequence[int], action: Action) -> list[tuple[int, str]]:
    """Do something with each of some experiments, in a transaction of its own.

    Args:
        store: the database.
        experiment_ids: numbers of experiments; one that is named twice counts once.
        action: what is done.

    Returns:
        The number of each, and why nothing was done with it; empty if it was done.
    """
    return one_by_one(store, experiment_ids, lambda tx, number: action(tx, find_experiment(tx, number)))


def one_by_one(
    store: Store, numbers: Sequence[int], act: Callable[[Transaction, int], None]
) -> list[tuple[int, str]]:
    """Do something with each of some numbers, in a transaction of its own; see `apply_to_each`."""
    results = []
    for number in dict.fromkeys(numbers):
        try:
            with store.writing() as tx:
                act(tx, number)
            results.append((number, ""))
        except ApiError as error:
            results.append((number, str(error)))
    return results


def begin_deletion(tx: Transaction, experiment: ExperimentRow) -> None:
    """Have the garbage collector delete an ended experiment, with its trials, checkpoints and logs.

    Raises:
        FailedPreconditionError: it has not ended, or a version of a model needs a checkpoint of it.
    """
    if experiment.state == states.DELETING:
        return
    if not lifecycle.experiment_may_become(experiment.state, states.DELETING):
        raise FailedPreconditionError(f"experiment in incompatible state {experiment.state}")
    trials = select(TrialRow.id).where(TrialRow.experiment_id == experiment.id)
    stored = select(CheckpointRow.uuid).where(CheckpointRow.trial_id.in_(trials))
    refuse_registered(tx, stored, f"Experiment {experiment.id} cannot be deleted")
    experiment.state = states.DELETING
    # At once: the rest is deleted by and by.
    delete_links(tx, experiment.id)
    tx.notify(DELETIONS)


#: What may be done with many experiments at once, by the last word of the call's path.
ACTIONS: Mapping[str, Action] = {
    "activate": lambda tx, row: controller_of(tx, row).activate(),
    "pause": lambda tx, row: controller_of(tx, row).pause(),
    "cancel": lambda tx, row: controller_of(tx, row).stop(states.STOPPING_CANCELED),
    "kill": lambda tx, row: controller_of(tx, row).stop(states.STOPPING_KILLED),
    "archive": lambda tx, row: set_archived(tx, row, archived=True),
    "unarchive": lambda tx, row: set_archived(tx, row, archived=False),
    "delete": begin_deletion,
}


def delete_project(tx: Transaction, caller: Caller, project_id: int) -> bool:
    """Delete a project with its experiments; return whether it is gone already.

    Raises:
        ApiError: it does not exist, belongs to somebody else or is the first one.
        FailedPreconditionError: experiments of it have not ended.
    """
    project = projects.deletable(tx, caller, project_id)
    _delete_experiments(tx, [project])
    forget_if_deleted(tx, project_id)
    return tx.get(ProjectRow, project_id) is None


def delete_workspace(tx: Transaction, caller: Caller, workspace_id: int) -> bool:
    """Delete a workspace with its projects and their experiments; return whether it is gone already.

    Its jobs that run are killed.

    Raises:
        ApiError: it does not exist, belongs to somebody else or is the first one.
        FailedPreconditionError: experiments of it have not ended, or it has models.
    """
    workspace = workspaces.deletable(tx, caller, workspace_id)
    models = tx.scalars(select(ModelRow.name).where(ModelRow.workspace_id == workspace_id)).all()
    if models:
        raise FailedPreconditionError(
            f"The workspace {workspace.name!r} has {len(models)} models in the registry, such as {models[0]!r}. "
            "Move or delete them first."
        )
    found = tx.scalars(select(ProjectRow).where(ProjectRow.workspace_id == workspace_id)).all()
    _delete_experiments(tx, found)
    workspace.is_deleting = True
    running = select(TaskRow).where(TaskRow.workspace_id == workspace_id, TaskRow.end_time.is_(None))
    for task in tx.scalars(running).all():
        kill_job(tx, task)
    for project in found:
        forget_if_deleted(tx, project.id)
    if not found:
        forget_workspace_if_deleted(tx, workspace_id)
    return not found or tx.get(type(workspace), workspace_id) is None


def _delete_experiments(tx: Transaction, found: Sequence[ProjectRow]) -> None:
    in_projects = ExperimentRow.project_id.in_([project.id for project in found])
    experiments = tx.scalars(select(ExperimentRow).where(in_projects).order_by(ExperimentRow.id)).all()
    running = [row.id for row in experiments if not _may_be_deleted(row)]
    if running:
        named = ", ".join(map(str, running[:_MOST_NAMED])) + (", ..." if len(running) > _MOST_NAMED else "")
        raise FailedPreconditionError(
            f"{len(running)} of its experiments have not ended: {named}. Kill them, or move them to another project."
        )
    for project in found:
        project.is_deleting = True
    for experiment in experiments:
        begin_deletion(tx, experiment)


def _may_be_deleted(experiment: ExperimentRow) -> bool:
    is_deleting = experiment.state == states.DELETING
    return is_deleting or lifecycle.experiment_may_become(experiment.state, states.DELETING)
