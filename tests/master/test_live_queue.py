"""The queue in memory is what the database says, whatever happened and however it was written."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, update

from det_keras.master.database.context_store import ContextStore
from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, TrialRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import open_store
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.experiments import Draft, Experiments
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.registry.versions import pinned
from det_keras.master.tasks import allocations, jobs
from det_keras.master.tasks.jobs import Jobs
from det_keras.master.tasks.live_queue import LiveQueue
from det_keras.master.tasks.scheduling import PriorityPolicy
from det_keras.master.teams.projects import ensure_first
from det_keras.protocol import states
from master.fakes import FakePool
from master.plain_queue import lent_slots, running_tasks, waiting_tasks

CONFIG = """entrypoint: a
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
searcher: {{name: random, metric: loss, max_trials: {trials}, max_concurrent_trials: 3}}
resources: {{slots_per_trial: {slots}, priority: {priority}, weight: {weight}, max_slots: {limit}}}
"""


class Office:
    """Writes what users, tasks and the dispatcher write, without a dispatcher.

    Args:
        home: a data root.
        seed: of what happens.
    """

    def __init__(self, home, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = open_store(home, Notifier(), {})
        with self.store.writing() as tx:
            ensure_first(tx, 1)
        self.pool = FakePool(2, 2, 4)
        bundles = ContextStore(home.root / "contexts")
        self.experiments = Experiments(
            self.store, bundles, {"type": "directory", "container_path": "/x"}, self.pool
        )
        self.jobs = Jobs(self.store, bundles, self.pool, pin_model=pinned)
        self.queue = LiveQueue(self.store, self.pool, PriorityPolicy())

    def rows(self, row_class, *conditions):
        with self.store.reading() as session:
            return session.scalars(select(row_class).where(*conditions)).all()

    def one(self, row_class, *conditions):
        rows = self.rows(row_class, *conditions)
        return self.random.choice(rows) if rows else None

    def create(self) -> None:
        slots = self.random.choice([0, 1, 1, 2, 3])
        config = CONFIG.format(
            trials=self.random.randint(1, 6),
            slots=slots,
            priority=self.random.choice(["null", 1, 50]),
            weight=self.random.choice([1, 2.5]),
            limit=self.random.choice(["null", 4]),
        )
        self.experiments.create(2, Draft(config, activate=self.random.random() < 0.7))

    def create_job(self) -> None:
        resources = {"slots": self.random.randint(0, 3), "priority": self.random.choice([None, 7])}
        self.jobs.create(2, {"entrypoint": ["a"], "resources": resources}, ())

    def kill_job(self) -> None:
        task = self.one(TaskRow, TaskRow.kind == jobs.COMMAND)
        if task is not None:
            self.jobs.kill(task.id)

    def change(self) -> None:
        experiment = self.one(ExperimentRow, ExperimentRow.state.in_((states.ACTIVE, states.PAUSED)))
        if experiment is not None:
            changes = {"priority": self.random.randint(1, 99), "weight": 4.0}
            self.experiments.change(experiment.id, {"resources": changes})

    def move(self) -> None:
        row = self.one(ExperimentRow)
        if row is None:
            return
        with self.store.writing() as tx:
            controller = ExperimentController(tx, tx.get(ExperimentRow, row.id))
            verb = self.random.choice(["activate", "pause", "cancel", "kill"])
            if verb in ("activate", "pause") and row.state in (states.ACTIVE, states.PAUSED):
                getattr(controller, verb)()
            elif verb in ("cancel", "kill"):
                controller.stop(states.STOPPING_CANCELED if verb == "cancel" else states.STOPPING_KILLED)

    def launch(self) -> None:
        """Start what the scheduler starts; sometimes a part of it, as when a user pauses meanwhile."""
        plan, _ = self.queue.plan(5)
        for grant in plan.grants:
            self.queue.note(changes_of(grant.task_id))
            if self.random.random() < 0.8:
                with self.store.writing() as tx:
                    task = tx.get(TaskRow, grant.task_id)
                    trial = tx.scalar(select(TrialRow).where(TrialRow.task_id == task.id))
                    run_id = 1
                    if trial is not None:
                        trial.run_id += 1
                        run_id = trial.run_id
                    allocations.open_allocation(tx, task, run_id, grant.shares, "http://x")

    def preempt(self) -> None:
        row = self.one(AllocationRow, AllocationRow.end_time.is_(None))
        if row is not None:
            with self.store.writing() as tx:
                allocations.preempt(tx, tx.get(AllocationRow, row.id), None)

    def end(self) -> None:
        row = self.one(AllocationRow, AllocationRow.end_time.is_(None))
        if row is None:
            return
        with self.store.writing() as tx:
            allocation, task = tx.get(AllocationRow, row.id), tx.get(TaskRow, row.task_id)
            allocation.is_acknowledged = allocation.is_preempted
            known = allocations.close_allocation(
                tx, allocation, Exit(Ending.EXITED, self.random.choice([0, 1]))
            )
            if task.kind != jobs.TRIAL:
                jobs.job_ended(tx, task, known)
                return
            trial = tx.scalars(select(TrialRow).where(TrialRow.task_id == task.id)).one()
            ExperimentController(tx, tx.get(ExperimentRow, trial.experiment_id)).run_ended(trial, known)

    def pass_by(self) -> None:
        """Change rows by a statement."""
        with self.store.writing() as tx:
            tx.execute(
                update(TrialRow).where(TrialRow.id % 3 == 0).values(has_work=self.random.random() < 0.7)
            )

    def replace_machines(self) -> None:
        count = self.random.randint(1, 3)
        self.pool.machines = FakePool(4, *self.random.choices([1, 2, 4], k=count)).machines

    def compare(self) -> None:
        with self.queue.view() as queue, self.store.reading() as session:
            waiting = {
                task.task_id: (
                    job.id,
                    job.facts.slots,
                    task.order,
                    job.facts.priority,
                    job.facts.weight,
                    job.facts.max_slots,
                )
                for job in queue.jobs.values()
                for task in job.waiting.values()
            }
            assert waiting == waiting_tasks(session)
            running = {
                task.task_id: (
                    job.id,
                    sorted((share.node, slot) for share in task.shares for slot in share.slot_ids),
                    task.is_stopping,
                )
                for job in queue.jobs.values()
                for task in job.running.values()
            }
            known = running_tasks(session)
            assert running == known
            taken = {slot for _, slots, _ in known.values() for slot in slots}
            for node in self.pool.machines:
                free = [slot.id for slot in node.slots if (node.id, slot.id) not in taken]
                assert list(queue.cluster.unused(node.id)) == free
            for job in queue.jobs.values():
                for task in job.waiting.values():
                    assert queue.overtaken_slots(task) == lent_slots(session, task.task_id)
                assert job.in_use == sum(len(slots) for owner, slots, _ in known.values() if owner == job.id)
            assert {job.id for job in queue.jobs.values() if job.waiting or job.running} == {
                entry[0] for entry in (*waiting.values(), *running.values())
            }


def changes_of(task_id: str):
    from det_keras.master.database.changes import QueueChanges

    return QueueChanges(tasks={task_id})


EVENTS = ["create", "create_job", "kill_job", "change", "move", "preempt", "pass_by", "replace_machines"]
EVENTS += ["launch", "end"] * 3


@settings(
    deadline=None,
    max_examples=12,
    # Each example has a database: finding a smaller one takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(events=st.lists(st.sampled_from(EVENTS), min_size=20, max_size=60), seed=st.integers(0, 1000))
def test_queue_in_memory_is_that_of_the_database(make_home, events, seed):
    office = Office(make_home(), seed)
    try:
        office.create()
        for event in events:
            getattr(office, event)()
            if office.random.random() < 0.7:
                office.compare()
            if office.random.random() < 0.05:
                # A master that was killed here reads everything again.
                office.queue = LiveQueue(office.store, office.pool, PriorityPolicy())
        office.compare()
        assert office.queue.check()
    finally:
        office.store.close()


@pytest.fixture
def make_home(tmp_path_factory, use_home):
    from det_keras.home import Home

    def make():
        home = Home(tmp_path_factory.mktemp("queue")).create()
        use_home(home)
        return home

    return make


def test_change_that_was_not_announced_is_found_and_logged(make_home, caplog):
    office = Office(make_home(), 1)
    office.experiments.create(2, Draft(CONFIG.format(trials=3, slots=1, priority=1, weight=1, limit="null")))
    with office.queue.view() as queue:
        assert len(queue.lacking(10)) == 3
    with office.store.engine.begin() as connection:
        connection.execute(update(TrialRow).values(has_work=False))
    with office.queue.view() as queue:
        assert len(queue.lacking(10)) == 3
    assert not office.queue.check()
    assert "differed from the database in 3 tasks" in caplog.text
    with office.queue.view() as queue:
        assert queue.lacking(10) == []
    assert office.queue.check()
    office.store.close()


def test_report_of_progress_reads_nothing_again(make_home):
    office = Office(make_home(), 1)
    office.experiments.create(2, Draft(CONFIG.format(trials=3, slots=1, priority=1, weight=1, limit="null")))
    with office.queue.view():
        pass
    with office.store.writing() as tx:
        trial = tx.scalars(select(TrialRow)).first()
        trial.progress, trial.total_batches = 0.5, 7
        tx.get(ExperimentRow, trial.experiment_id).progress = 0.2
        tx.flush()
        assert not tx.queue_changes
    office.store.close()
