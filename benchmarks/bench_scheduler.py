"""What the scheduler costs: a thousand nodes without processes, and up to ten thousand waiting trials.

Waiting trials are rows of the database; the dispatcher's own transactions start and end them. Then whole searches, by
the master's own transactions for each report and each end.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from measure import report
from sqlalchemy import event, select

from det_keras.config import load_experiment_config
from det_keras.home import Home
from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, TrialRow, UserRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store, Transaction
from det_keras.master.embedded import open_store
from det_keras.master.experiments.controller import ExperimentController
from det_keras.master.experiments.search_state import read_searcher
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources import Launch, LogEntry, Node, ResourcePool, Slot, State, TaskState
from det_keras.master.tasks import allocations
from det_keras.master.tasks.live_queue import LiveQueue
from det_keras.master.tasks.scheduling import make_policy
from det_keras.protocol import states
from det_keras.protocol.values import now

NODES = 1000
SLOTS = 1
COUNTS = (100, 1000, 10_000)
SHAPES = ("one search", "single trials", "mixed sizes")
SEARCH = "a whole search"
DECISIONS = 300
EPOCHS = 8
# The growth of the total time, for n decisions among n trials: n log n between 1,000 and 10,000 is n to this power.
GOAL = 1 + math.log10(math.log(10_000) / math.log(1000))


class Nowhere(ResourcePool):
    """A pool that answers without processes."""

    def __init__(self, slots: int) -> None:
        one = [Slot(index, "cpu") for index in range(slots)]
        self._nodes = [Node(f"node-{number:04}", "127.0.0.1", one) for number in range(NODES)]

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    def launch(self, launch: Launch) -> None:
        raise NotImplementedError

    def look(self, allocation_id: str) -> TaskState:
        return TaskState(State.RUNNING)

    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        return [], offset

    def kill(self, allocation_id: str, *, force: bool) -> None:
        raise NotImplementedError

    def remove(self, allocation_id: str) -> None:
        raise NotImplementedError


def experiment(text: str, number: int) -> ExperimentRow:
    """Return an experiment with a config."""
    return ExperimentRow(
        owner_id=1, job_id=f"job-{number}", name="bench", labels=[], original_config=text,
        config=load_experiment_config(text).config.to_dict(), start_time=now(), state=states.ACTIVE,
    )  # fmt: skip


def add(tx: Transaction, number: int, slots: int, trials: int) -> None:
    """Add an experiment with trials that wait."""
    text = (
        f"entrypoint: a\nsearcher: {{name: single, metric: loss}}\nresources: {{slots_per_trial: {slots}}}\n"
    )
    row = experiment(text, number)
    tx.add(row)
    tx.flush()
    for trial in range(trials):
        task = f"{number}.{trial}"
        tx.add(TaskRow(id=task, kind="TRIAL", owner_id=1, job_id=row.job_id, slots=slots, start_time=now()))
        tx.flush()
        tx.add(
            TrialRow(
                experiment_id=row.id,
                task_id=task,
                request_id=task,
                state=states.ACTIVE,
                hparams={},
                seed=0,
                summary_metrics={},
                start_time=now(),
            )
        )


def fill(store: Store, shape: str, count: int, offset: int = 0) -> None:
    """Add `count` waiting trials in a shape."""
    chance = random.Random(offset)
    with store.writing() as tx:
        if tx.get(UserRow, 1) is None:
            tx.add(UserRow(id=1, username="bench", modified_at=now()))
            tx.flush()
        if shape == "one search":
            add(tx, offset, 1, count)
        else:
            for number in range(count):
                add(tx, offset + number, 1 if shape == "single trials" else chance.randint(1, 16), 1)


def start(store: Store, task_id: str, shares: Sequence[object]) -> None:
    """Start a task as the dispatcher does."""
    with store.writing() as tx:
        task = tx.get(TaskRow, task_id)
        assert task is not None
        allocations.open_allocation(tx, task, 1, shares, "http://x")  # type: ignore[arg-type]


def end(store: Store, task_id: str) -> None:
    """End a task, and its trial."""
    with store.writing() as tx:
        allocation = tx.get(AllocationRow, f"{task_id}.1")
        assert allocation is not None
        allocations.close_allocation(tx, allocation, Exit(Ending.EXITED, 0))
        trial = tx.query(TrialRow).filter(TrialRow.task_id == task_id).one()
        trial.state = states.COMPLETED


def measure(shape: str, count: int, policy: str) -> dict[str, float]:
    """Return what the ends of tasks cost while `count` trials wait."""
    with tempfile.TemporaryDirectory() as folder:
        store = without_disk(open_store(Home(Path(folder)).create(), Notifier(), {}))
        pool = Nowhere(16 if shape == "mixed sizes" else SLOTS)
        # All slots are in use, then `count` trials wait.
        fill(
            store,
            "single trials" if shape != "mixed sizes" else shape,
            1800 if shape == "mixed sizes" else NODES,
            10**6,
        )
        queue = LiveQueue(store, pool, make_policy(policy))
        running = []
        for grant in queue.plan(0)[0].grants:
            start(store, grant.task_id, grant.shares)
            running.append(grant.task_id)
        fill(store, shape, count)
        gc.collect()
        before = resident()
        queue = LiveQueue(store, pool, make_policy(policy))
        began = time.perf_counter()
        queue.plan(1000)
        read = time.perf_counter() - began
        grown = resident() - before
        chance, seconds, placed = random.Random(1), [], 0
        for _ in range(DECISIONS):
            task_id = running.pop(chance.randrange(len(running)))
            end(store, task_id)
            began = time.perf_counter()
            plan, _ = queue.plan(1000 if pool.max_slots is None else 0)
            for grant in plan.grants:
                start(store, grant.task_id, grant.shares)
                running.append(grant.task_id)
            seconds.append(time.perf_counter() - began)
            placed += len(plan.grants)
        store.close()
    return {**summary(seconds), "read": read, "memory": grown, "placed": placed}


def summary(seconds: list[float]) -> dict[str, float]:
    """Return what is reported of a list of durations."""
    return {
        "median": statistics.median(seconds),
        "p99": sorted(seconds)[int(len(seconds) * 0.99)],
        "mean": statistics.mean(seconds),
    }


def search(count: int) -> dict[str, float]:
    """Return what the reports and ends of a search with `count` trials cost, a tenth of them at once."""
    text = (
        "entrypoint: a\nhyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
        f"searcher: {{name: async_halving, metric: loss, max_trials: {count}, max_concurrent_trials: {count // 10}, "
        f"time_metric: epochs, max_time: {EPOCHS}, num_rungs: 4, divisor: 2}}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        store = without_disk(open_store(Home(Path(folder)).create(), Notifier(), {}))
        with store.writing() as tx:
            tx.add(UserRow(id=1, username="bench", modified_at=now()))
            tx.flush()
            row = experiment(text, 1)
            tx.add(row)
            tx.flush()
            ExperimentController(tx, row).begin()
        epochs: Counter[int] = Counter()
        seconds: list[float] = []
        unfinished = select(TrialRow.id).where(TrialRow.state.not_in(states.TERMINAL)).limit(100)
        before = resident()
        while True:
            with store.reading() as session:
                trial_ids = session.scalars(unfinished).all()
            if not trial_ids:
                break
            for trial_id in trial_ids:
                epochs[trial_id] += 1
                began = time.perf_counter()
                happen(store, trial_id, epochs[trial_id])
                seconds.append(time.perf_counter() - began)
        grown = resident() - before
        began = time.perf_counter()
        with store.reading() as session:
            read_searcher(session, session.get_one(ExperimentRow, row.id))
        read = time.perf_counter() - began
        store.close()
    return {**summary(seconds), "read": read, "memory": grown, "total": sum(seconds)}


def happen(store: Store, trial_id: int, epoch: int) -> None:
    """Let a trial report an epoch, and end after its last one or when the search stops it."""
    with store.writing() as tx:
        trial = tx.get_one(TrialRow, trial_id)
        controller = ExperimentController(tx, tx.get_one(ExperimentRow, trial.experiment_id))
        if trial.state == states.ACTIVE:
            trial.searcher_metric_value = loss = (trial.hparams["lr"] - 0.3) ** 2 + 1 / epoch
            controller.validated(trial, {"loss": loss, "epochs": epoch})
        if epoch == EPOCHS and trial.state not in states.TERMINAL:
            controller.run_ended(trial, Exit(Ending.EXITED, 0))


def without_disk(store: Store) -> Store:
    """Let a database not wait for the disk, which takes the same for every number of trials, and hides the rest."""
    event.listen(store.engine, "connect", lambda raw, _: raw.execute("PRAGMA synchronous=OFF"))
    store.engine.dispose()
    return store


def resident() -> float:
    """Return the memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    """Measure every shape, each number of trials in a process of its own."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", nargs=3, metavar=("SHAPE", "COUNT", "POLICY"))
    parser.add_argument("--policy", default="priority")
    options = parser.parse_args()
    if options.one:
        shape, count, policy = options.one
        print(json.dumps(search(int(count)) if shape == SEARCH else measure(shape, int(count), policy)))
        return
    for shape in (*SHAPES, SEARCH):
        rows = {}
        for count in COUNTS:
            command = [sys.executable, __file__, "--one", shape, str(count), options.policy]
            rows[count] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
            row = rows[count]
            what = "an event" if shape == SEARCH else "a decision"
            extent = f"in all {row['total']:.0f} s" if shape == SEARCH else f"{row['placed']:.0f} placed"
            report(
                f"{what}, {shape}, {count:,} trials", row["median"] * 1000, unit="ms",
                detail=f"99 %: {row['p99'] * 1000:.1f} ms; {1 / row['mean']:,.0f} a second; "
                f"read at the start in {row['read']:.2f} s; memory {row['memory']:.0f} MB; {extent}",
            )  # fmt: skip
        # n events take n times as long as one.
        power = 1 + math.log10(rows[10_000]["mean"] / rows[1000]["mean"])
        report(f"growth of the time for n trials, {shape}", power, unit="power", goal=round(GOAL, 2))


if __name__ == "__main__":
    main()
