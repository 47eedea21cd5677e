"""Prepares the launch of a task: its program, environment and tokens."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sqlalchemy import select

from det_keras.cluster_info import CopyInfo
from det_keras.master.accounts.auth import Accounts
from det_keras.master.checkpoints.records import latest_checkpoint
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import TaskRow, TrialRow, UserRow, VerificationRow
from det_keras.master.database.store import Transaction
from det_keras.master.resources import Launch, ResourcePool, Share
from det_keras.master.tasks import allocations, jobs
from det_keras.master.tasks.task_environment import (
    Identity,
    TaskFacts,
    common_variables,
    job_variables,
    requested_environment,
    trial_variables,
)


class Launcher:
    """Prepares launches.

    Args:
        identity: the facts about the master for tasks.
        pool: the pool that will run the tasks.
        bundles: the tasks' files.
        accounts: issues the tasks' tokens.
    """

    def __init__(
        self,
        identity: Identity,
        pool: ResourcePool,
        bundles: ContextStore,
        accounts: Accounts,
    ) -> None:
        self.identity = identity
        self._pool = pool
        self._bundles = bundles
        self._accounts = accounts

    def prepare(self, tx: Transaction, task: TaskRow, shares: Sequence[Share]) -> Launch:
        """Record the next attempt of a task, and return how to start it.

        Args:
            tx: stores the allocation and its tokens.
            task: a trial's task or a job.
            shares: the slots that it gets, by node.
        """
        trial = None
        run_id = 1
        if task.kind == jobs.TRIAL:
            trial = tx.scalars(select(TrialRow).where(TrialRow.task_id == task.id)).one()
            trial.run_id += 1
            run_id = trial.run_id
        allocation = allocations.open_allocation(tx, task, run_id, shares, self.identity.url)
        variables = common_variables(
            self.identity, self._facts(tx, task, allocation.id, allocation.resources_id)
        )
        device = self._pool.device if shares else "cpu"
        if trial is None:
            job, argv = jobs.command_of(task)
            own = job_variables(job.to_dict())
            environment = job.environment
        else:
            config = config_of(find_experiment(tx, trial.experiment_id))
            argv = config.command()
            own = self._trial_variables(tx, trial, config.to_dict())
            environment = config.environment
        return Launch(
            allocation_id=allocation.id,
            argv=argv,
            variables={**variables, **own, **environment.environment_variables_for(device)},
            context=None if task.context is None else self._bundles.path(task.context),
            shares=tuple(shares),
            python_environment=requested_environment(environment),
        )

    def prepare_copy(
        self, tx: Transaction, row: VerificationRow, attempt_id: str, shares: Sequence[Share], folder: Path
    ) -> Launch:
        """Return how to start a copy of a trial that resumes and is compared; it has no allocation of its own.

        Args:
            tx: stores its tokens.
            row: says what is compared.
            attempt_id: in the place of an allocation's id.
            shares: the slots that it uses.
            folder: for its files and for the result, see `result_file`.
        """
        trial = find_trial(tx, row.trial_id)
        task = tx.get(TaskRow, trial.task_id)
        assert task is not None
        config = config_of(find_experiment(tx, row.experiment_id))
        variables = common_variables(self.identity, self._facts(tx, task, attempt_id, str(uuid.uuid4())))
        own = trial_variables(
            experiment_id=trial.experiment_id,
            trial_id=trial.id,
            run_id=trial.run_id,
            seed=trial.seed,
            hparams=trial.hparams,
            config=config.to_dict(),
            latest_checkpoint=row.checkpoints[-1],
            steps_completed=row.first_batch,
        )
        copy = CopyInfo(
            storage=config.checkpoint_storage.to_dict(),
            checkpoints=tuple(row.checkpoints),
            expected=row.expected,
            folder=str(folder / "copy"),
            result=str(result_file(folder)),
        )
        given = config.environment.environment_variables_for(self._pool.device if shares else "cpu")
        return Launch(
            allocation_id=attempt_id,
            argv=config.command(),
            variables={**variables, **own, **given, **copy.to_environment()},
            context=None if task.context is None else self._bundles.path(task.context),
            shares=tuple(shares),
            python_environment=requested_environment(config.environment),
        )

    def _trial_variables(
        self, tx: Transaction, trial: TrialRow, config: Mapping[str, object]
    ) -> dict[str, str]:
        latest = latest_checkpoint(tx, trial.id)
        return trial_variables(
            experiment_id=trial.experiment_id,
            trial_id=trial.id,
            run_id=trial.run_id,
            seed=trial.seed,
            hparams=trial.hparams,
            config=config,
            latest_checkpoint=trial.warm_start_uuid if latest is None else latest.uuid,
            steps_completed=0 if latest is None else latest.steps_completed,
        )

    def _facts(self, tx: Transaction, task: TaskRow, allocation_id: str, resources_id: str) -> TaskFacts:
        owner = tx.get(UserRow, task.owner_id)
        assert owner is not None
        return TaskFacts(
            task_id=task.id,
            allocation_id=allocation_id,
            task_type=task.kind,
            resources_id=resources_id,
            username=owner.username,
            task_token=self._accounts.issue(tx, owner, is_task=True, allocation_id=allocation_id),
            user_token=self._accounts.issue(tx, owner, allocation_id=allocation_id),
        )


def result_file(folder: Path) -> Path:
    """Return the file into which a copy writes its result.

    Args:
        folder: the folder of its launch.
    """
    return folder / "verification.json"
