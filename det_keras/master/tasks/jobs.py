"""Generic jobs: a command on slots, without trials. The REST API calls them commands or tensorboards."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from det_keras.config import JobConfig, load_job_config
from det_keras.config.secrets import secret_values
from det_keras.errors import ConfigError
from det_keras.master.accounts.audit import killer
from det_keras.master.database.concealing import without_copied_secrets
from det_keras.master.database.context_store import ContextStore, FileEntry
from det_keras.master.database.models import TaskRow, UserRow
from det_keras.master.database.notifier import WORK, task_topic
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import InvalidArgumentError, NotFoundError
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.reports.provenance import check_record, store_record, subject_of
from det_keras.master.resources import ResourcePool
from det_keras.master.tasks import allocations
from det_keras.master.tasks.logs import note
from det_keras.master.tasks.task_environment import refuse_impossible_environment, refuse_large_config
from det_keras.master.teams.placing import open_workspace
from det_keras.master.teams.templates import finder
from det_keras.protocol.values import now

#: The types of tasks in the REST API; all but trials are generic jobs.
COMMAND = "COMMAND"
TENSORBOARD = "TENSORBOARD"
TRIAL = "TRIAL"


class Jobs:
    """Creates and ends generic jobs.

    Args:
        store: the database.
        bundles: the store of the jobs' files.
        pool: where jobs run.
        pin_model: returns the reference with a version to the model that a config names, or raises ApiError.
    """

    def __init__(
        self,
        store: Store,
        bundles: ContextStore,
        pool: ResourcePool,
        *,
        pin_model: Callable[[Session, str], str],
    ) -> None:
        self._store = store
        self._bundles = bundles
        self._pool = pool
        self._find_template = finder(store)
        self._pin_model = pin_model

    def create(
        self,
        owner_id: int,
        config: Mapping[str, Any],
        files: Sequence[FileEntry],
        kind: str = COMMAND,
        *,
        provenance: Mapping[str, Any] | None = None,
        workspace_id: int | None = None,
        template: str | None = None,
    ) -> tuple[str, tuple[str, ...]]:
        """Queue a job.

        Args:
            owner_id: number of the user.
            config: the job's config, not validated.
            files: the job's directory; empty for none.
            kind: ``COMMAND`` or ``TENSORBOARD``.
            provenance: where the request comes from; None if it is unknown.
            workspace_id: number of its workspace; None for the first one.
            template: name of a template below the config; None for that of the config, or none.

        Returns:
            The id of the job's task, and notices for the user.

        Raises:
            InvalidArgumentError: the config or the files cannot be used; nothing is stored.
            NotFoundError: the workspace does not exist or is archived, or the model has no such version.
        """
        try:
            layers = (self._find_template(template),) if template else ()
            loaded = load_job_config(config, layers=layers, find_template=self._find_template)
        except ConfigError as error:
            raise InvalidArgumentError(str(error)) from None
        refuse_large_config(loaded.config.to_dict())
        check_record(provenance or {})
        slots = loaded.config.resources.slots
        self._pool.refuse_oversize("resources.slots", slots)
        refuse_impossible_environment(loaded.config.environment, self._pool)
        files = without_copied_secrets(files, secret_values(config))
        context, _ = self._bundles.add(files)
        task_id = str(uuid.uuid4())
        with self._store.writing() as tx:
            # The garbage collector may have deleted the bundle since `add`, together with the last experiment that
            # used it. From here it cannot: it checks in a transaction whether a bundle is used, and this transaction
            # holds the lock of writers until the new row is committed.
            self._bundles.add_missing(context, files)
            job = loaded.config.to_dict()
            if loaded.config.model is not None:
                job["model"] = self._pin_model(tx, loaded.config.model)
            tx.add(
                TaskRow(
                    id=task_id,
                    kind=kind,
                    owner_id=owner_id,
                    workspace_id=open_workspace(tx, workspace_id, loaded.config.workspace),
                    job_id=str(uuid.uuid4()),
                    description=loaded.config.description or loaded.config.name,
                    config=job,
                    context=context,
                    slots=slots,
                    start_time=now(),
                )
            )
            store_record(tx, subject_of("task", task_id), provenance or {})
            tx.notify(WORK)
        return task_id, loaded.notices

    def kill(self, task_id: str, kind: str = COMMAND) -> None:
        """Kill a job; no effect if it has ended.

        Raises:
            NotFoundError: the job does not exist.
        """
        with self._store.writing() as tx:
            kill_job(tx, find_job(tx, task_id, kind))


def kill_job(tx: Transaction, task: TaskRow) -> None:
    """Kill a job; no effect if it has ended."""
    if task.end_time is not None:
        return
    allocation = allocations.live_allocation(tx, task.id)
    if allocation is None:
        _end(tx, task, "killed before it started")
    else:
        allocations.kill(tx, allocation)


def find_job(session: Session, task_id: str, kind: str = COMMAND) -> TaskRow:
    """Return a job's task.

    Args:
        session: to read with.
        task_id: the id of the task.
        kind: ``COMMAND`` or ``TENSORBOARD``.

    Raises:
        NotFoundError: there is no task with this id and kind.
    """
    row = session.get(TaskRow, task_id)
    if row is None or row.kind != kind:
        raise NotFoundError(f"{kind.lower()} '{task_id}' not found")
    return row


def jobs_of(
    kind: str, users: Sequence[str], user_ids: Sequence[int], workspace_id: int, *, is_descending: bool
) -> Select[TaskRow]:
    """Return the query for the jobs of a kind, ordered by start.

    Args:
        kind: ``COMMAND`` or ``TENSORBOARD``.
        users: names of owners; empty for all.
        user_ids: numbers of owners; empty for all.
        workspace_id: number of their workspace; 0 for all.
        is_descending: latest first.
    """
    query = select(TaskRow).join(UserRow, UserRow.id == TaskRow.owner_id).where(TaskRow.kind == kind)
    if users:
        query = query.where(UserRow.username.in_(users))
    if user_ids:
        query = query.where(TaskRow.owner_id.in_(user_ids))
    if workspace_id:
        query = query.where(TaskRow.workspace_id == workspace_id)
    time = TaskRow.start_time
    return query.order_by(time.desc() if is_descending else time.asc(), TaskRow.id)


def command_of(task: TaskRow) -> tuple[JobConfig, list[str]]:
    """Return a job's config and its argument list; a command of one element is run by the shell."""
    assert task.config is not None
    config = JobConfig.from_dict(task.config)
    argv = config.command()
    return config, ["sh", "-c", argv[0]] if len(argv) == 1 else argv


def job_ended(tx: Transaction, task: TaskRow, exit_: Exit) -> None:
    """Record the end of a job's process. A job is never restarted: its command may not be repeatable.

    Args:
        tx: stores the change.
        task: the job's task.
        exit_: how the process ended.
    """
    if exit_.is_killed:
        if by := killer(tx, [("job", task.id)], allocations.last_start(tx, task.id)):
            note(tx, task.id, f"The job was killed by {by}.")
        _end(tx, task, "killed")
    elif exit_.ending is Ending.EXITED:
        _end(tx, task, f"exit code {exit_.code}")
    else:
        note(tx, task.id, f"The job stopped: {exit_.detail}.", "ERROR")
        _end(tx, task, exit_.detail)


def _end(tx: Transaction, task: TaskRow, status: str) -> None:
    task.end_time = now()
    task.exit_status = status
    tx.notify(task_topic(task.id))
