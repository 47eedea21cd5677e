"""A training that is killed, anywhere and again, ends with the weights and the history of one that was not.

Kills are real: SIGKILL, of processes. The kill points where trainings are known to lose their place stand
here by name; `benchmarks/kills.py` draws many more.
"""

from __future__ import annotations

import os
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import keras
import pytest
from amount import chosen
from kill_harness import Kill, Killer, Reference, Story, draw_sure_kills
from kinds import KINDS

from det_keras.keras.checkpoint.reached import ReachedState

pytestmark = [pytest.mark.process, pytest.mark.kill]

SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))


@dataclass(frozen=True)
class Plan:
    """A training to be told: its kind, and the kills; none for three that are drawn."""

    name: str
    kind: str
    kills: tuple[Kill, ...] = ()
    in_process: bool = False

    def draw(self) -> Story:
        drawn = draw_sure_kills(random.Random(f"{SEED} {self.name}"), self.kind)
        return Story(self.kind, self.kills or drawn, self.in_process)


@dataclass(frozen=True)
class Told:
    """A story at its end; `waits` is what `EarlyStopping` had counted in the newest checkpoint after each kill."""

    story: Story
    reference: Reference
    run_dir: Path
    waits: list[int]


#: Killed anywhere only where all are asked for: they differ from `arrays` in what the model and the optimizer hold.
ALIKE = frozenset({"class_weights", "dict_with_sample_weights", "ema", "mixed_float16", "two_optimizers"})
ANYWHERE = [Plan(kind, kind) for kind in chosen(KINDS, ALIKE, pilots=("arrays", "pydataset", "tf_data"))]
SAVES = [
    Plan(name, "arrays", (Kill(moment, count),))
    for name, moment, count in [
        ("copy", "copy", 2),
        ("file opened", "write", 8),
        ("files written but not flushed", "flush", 6),
        ("before the rename", "rename", 2),
        ("after the rename", "renamed", 2),
        ("removing the oldest", "prune", 1),
    ]
]
OTHER_PROCESS = Plan(
    "other process", "arrays", (Kill("epoch end", 2, 0.02), Kill("train end", 1, 0.01)), in_process=True
)
SECOND_KILL = Plan("second kill in one epoch", "arrays", (Kill("batch begin", 6), Kill("batch begin", 3)))
LATE = Plan("later epochs", "tf_data", (Kill("batch begin", 15), Kill("batch begin", 12)))
VALIDATION = Plan("validation", "pydataset", (Kill("validation", 1), Kill("validation", 2)))
STOPPING = Plan("early stopping", "class_weights", (Kill("batch begin", 28, when_saved=True),))
PHASES = [
    Plan(f"between phases: {moment}", "two_phases", (Kill(moment, count),))
    for moment, count in [("train end", 1), ("set up", 2), ("train begin", 2)]
]


@pytest.fixture(scope="module")
def told(request, tmp_path_factory):
    """Tell the stories of all tests that were asked for, two at a time, and return one when it is told."""
    killer = Killer()
    folder = tmp_path_factory.mktemp("kills")

    def tell(plan: Plan) -> Told:
        run_dir = folder / plan.name.replace(" ", "-").replace(":", "")
        waits: list[int] = []
        reference = killer.reference(plan.kind, folder)
        story = killer.tell(plan.draw(), run_dir, after_kill=lambda: waits.extend(newest_wait(run_dir)))
        return Told(story, reference, run_dir, waits)

    items = [item for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        futures = {
            plan.name: pool.submit(tell, plan) for item in items for plan in [item.callspec.params["plan"]]
        }
        yield lambda plan: futures[plan.name].result()
        pool.shutdown(cancel_futures=True)


def newest_wait(run_dir: Path) -> list[int]:
    """Return what `EarlyStopping` had counted in the newest whole checkpoint, nothing without it."""
    pickles = list((run_dir / "checkpoints").glob("[!.]*/training_state/callbacks/*.pkl"))
    newest = sorted(pickles, key=lambda path: path.stat().st_mtime_ns)[-1:]
    # Whichever it is among the callbacks.
    stopping = tuple(keras.callbacks.EarlyStopping() for _ in range(4))
    for path in newest:
        ReachedState({"callbacks": stopping}).load(pickle.loads(path.read_bytes()), has_begun=False)
    return [max(each.wait for each in stopping) for _ in newest]


def assert_unchanged(told: Told) -> None:
    assert told.story.digest == told.reference.digest, f"Another end with seed {SEED}: {told.story}"


@pytest.mark.parametrize("plan", ANYWHERE, ids=lambda plan: plan.name)
def test_kills_anywhere_change_nothing(plan, told):
    result = told(plan)
    assert len(result.story.killed) >= 3, result.story.runs
    assert_unchanged(result)


@pytest.mark.parametrize("plan", SAVES, ids=lambda plan: plan.name)
def test_kill_while_a_checkpoint_is_saved_changes_nothing(plan, told):
    result = told(plan)
    assert len(result.story.killed) == 1
    assert not list((result.run_dir / "checkpoints").glob(".staging-*")), (
        "an unfinished checkpoint was left behind"
    )
    assert_unchanged(result)


@pytest.mark.parametrize("plan", [OTHER_PROCESS], ids=lambda plan: plan.name)
def test_kill_while_another_process_writes_changes_nothing(plan, told):
    result = told(plan)
    assert len(result.story.killed) == 2
    assert_unchanged(result)


@pytest.mark.parametrize("plan", [SECOND_KILL], ids=lambda plan: plan.name)
def test_second_kill_in_one_epoch_changes_nothing(plan, told):
    result = told(plan)
    assert [run.epoch for run in result.story.killed] == [0, 0]
    assert_unchanged(result)


@pytest.mark.parametrize("plan", [LATE], ids=lambda plan: plan.name)
def test_kills_in_later_epochs_change_nothing(plan, told):
    result = told(plan)
    # How far the second run gets depends on which checkpoint the first one had finished.
    assert len(result.story.killed) == 2
    assert all(run.epoch is not None and run.epoch >= 1 for run in result.story.killed)
    assert_unchanged(result)


@pytest.mark.parametrize("plan", [VALIDATION], ids=lambda plan: plan.name)
def test_kill_while_validation_runs_changes_nothing(plan, told):
    result = told(plan)
    assert len(result.story.killed) == 2
    assert_unchanged(result)


@pytest.mark.parametrize("plan", [STOPPING], ids=lambda plan: plan.name)
def test_kill_while_early_stopping_counts_changes_nothing(plan, told):
    result = told(plan)
    assert result.waits == [1]
    assert_unchanged(result)


@pytest.mark.parametrize("plan", PHASES, ids=lambda plan: plan.name)
def test_kill_between_two_phases_changes_nothing(plan, told):
    result = told(plan)
    assert len(result.story.killed) == 1
    assert_unchanged(result)
