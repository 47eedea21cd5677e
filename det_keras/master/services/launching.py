"""Prepares the launch of a task: its program, environment and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select

from det_keras.master.accounts.auth import Accounts
from det_keras.master.checkpoints.records import latest_checkpoint
from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import AllocationRow, TaskRow, TrialRow, UserRow
from det_keras.master.database.store import Transaction
from det_keras.master.resources import Launch, ResourcePool
from det_keras.master.tasks import allocations, jobs
from det_keras.master.tasks.task_environment import (
    Identity,
    TaskFacts,
    common_variables,
    job_variables,
    trial_variables,
)

__all__ = ["Launcher"]


class Launcher:
    """Prepares launches.

    Args:
        identity: the facts about the master for tasks.
        pool: the pool that will run the tasks.
        bundles: the tasks' files.
        accounts: issues the tasks' tokens.
        inherited: the inherited environment, which the tasks' own variables override.
    """

    def __init__(
        self,
        identity: Identity,
        pool: ResourcePool,
        bundles: ContextStore,
        accounts: Accounts,
        inherited: Mapping[str, str],
    ) -> None:
        self.identity = identity
        self._pool = pool
        self._bundles = bundles
        self._accounts = accounts
        self._inherited = inherited

    def prepare(self, tx: Transaction, task: TaskRow, slot_ids: Sequence[int]) -> Launch:
        """Record the next attempt of a task, and return how to start it.

        Args:
            tx: stores the allocation and its tokens.
            task: a trial's task or a job.
            slot_ids: the slots that it gets.
        """
        trial = None
        run_id = 1
        if task.kind == jobs.TRIAL:
            trial = tx.scalars(select(TrialRow).where(TrialRow.task_id == task.id)).one()
            trial.run_id += 1
            run_id = trial.run_id
        allocation = allocations.open_allocation(tx, task, run_id, slot_ids, self.identity.url)
        variables = common_variables(self.identity, self._facts(tx, task, allocation), self._inherited)
        device = self._device(slot_ids)
        if trial is None:
            job, argv = jobs.command_of(task)
            own = job_variables(job.to_dict())
            chosen = job.environment.environment_variables_for(device)
        else:
            config = config_of(find_experiment(tx, trial.experiment_id))
            argv = config.command()
            own = self._trial_variables(tx, trial, config.to_dict())
            chosen = config.environment.environment_variables_for(device)
        return Launch(
            allocation_id=allocation.id,
            argv=argv,
            variables={**variables, **own, **chosen},
            context=None if task.context is None else self._bundles.path(task.context),
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

    def _facts(self, tx: Transaction, task: TaskRow, allocation: AllocationRow) -> TaskFacts:
        owner = tx.get(UserRow, task.owner_id)
        assert owner is not None
        return TaskFacts(
            task_id=task.id,
            allocation_id=allocation.id,
            task_type=task.kind,
            resources_id=allocation.resources_id,
            slot_ids=allocation.slot_ids,
            gpus=self._gpus(allocation.slot_ids),
            threads=self._pool.threads_per_slot,
            directory=self._pool.working_directory(allocation.id),
            username=owner.username,
            task_token=self._accounts.issue(tx, owner, is_task=True, allocation_id=allocation.id),
            user_token=self._accounts.issue(tx, owner, allocation_id=allocation.id),
        )

    def _device(self, slot_ids: Sequence[int]) -> str:
        devices = {slot.device for slot in self._pool.slots if slot.id in slot_ids}
        return devices.pop() if devices else "cpu"

    def _gpus(self, slot_ids: Sequence[int]) -> list[str] | None:
        if all(slot.device == "cpu" for slot in self._pool.slots):
            return None
        return [slot.uuid for slot in self._pool.slots if slot.id in slot_ids]
