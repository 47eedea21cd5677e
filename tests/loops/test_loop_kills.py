"""Loops written by hand end the same wherever they are killed, on one worker and on two."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import loop_kinds
import numpy as np
import pytest
import warm
from amount import AMOUNT
from child_runs import Runner

SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))
STORIES = range(8 if AMOUNT == "all" else 1)
pytestmark = [pytest.mark.process, pytest.mark.kill]


def run_kind(send, name, directory, kill_after):
    # The batches are known to the runner before the kill.
    if kill_after is not None:
        send({"batches": kill_after})
    loop_kinds.make_deterministic()
    found = loop_kinds.run(name, Path(directory), kill_after)
    return {"batches": found["batches"], "values": {"made": found["made"], "reports": found["reports"]}}


class LoopRunner(Runner):
    """Runs the kinds of loops below `folder`, on one worker."""

    period = loop_kinds.PERIOD

    def _call(self, name, story, directory):
        return run_kind, name, str(directory)


@pytest.fixture(scope="module")
def results(request, tmp_path_factory):
    """Run the kinds of all tests that were asked for, two at a time; the results, by test name."""
    runner = LoopRunner(tmp_path_factory.mktemp("loops"), loop_kinds.KINDS)

    def killed(name, story):
        return runner.kill_twice(name, random.Random(f"{SEED} {name} {story}"), f"killed {story}")

    items = [
        item for item in request.session.items if item.path == request.path and "result" in item.fixturenames
    ]
    with ThreadPoolExecutor(2) as pool:
        yield {item.name: pool.submit(killed, **item.callspec.params) for item in items}
        pool.shutdown(cancel_futures=True)


@pytest.fixture
def result(request, results):
    return results[request.node.name].result


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("name", loop_kinds.KINDS)
def test_killed_loop_ends_the_same(name, story, result):
    kills, reference, resumed = result()
    assert len(reference.values["reports"]) > 4
    assert resumed.values == reference.values, f"Another end after kills at {kills}, seed {SEED}."


ON_WORKERS = ["supervised", "gan", "reinforcement", "untracked"]
# Late enough that a checkpoint was written before: every third batch, or every fifth in the loop without data. The last
# kind is killed inside of an epoch of each of its two loops.
SPANS = {
    "supervised": [(8, 11)] * 2,
    "gan": [(8, 11)] * 2,
    "reinforcement": [(12, 16)] * 2,
    "untracked": [(10, 11), (14, 15)],
}
KILLS = {
    name: [
        random.Random(f"{SEED} {name} {number} on two").randint(*span)
        for number, span in enumerate(SPANS[name], 1)
    ]
    for name in ON_WORKERS
}


def launch(folder, *stories):
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--", sys.executable]
    done = warm.run(
        [*command, loop_kinds.__file__, str(folder), *stories],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout


def result_of(folder, name, rank):
    return json.loads((folder / name / f"rank-{rank}.json").read_text())


@pytest.fixture(scope="module")
def on_two(tmp_path_factory):
    """The folders of undisturbed loops on two workers, and of those that were killed twice each."""
    undisturbed, killed = tmp_path_factory.mktemp("undisturbed"), tmp_path_factory.mktemp("killed")
    code, output = launch(undisturbed, *ON_WORKERS, "without_draws")
    assert code == 0, output[-4000:]
    for name in ON_WORKERS:
        for batches in KILLS[name]:
            before = ON_WORKERS[: ON_WORKERS.index(name)]
            code, output = launch(killed, *before, f"{name}:{batches}")
            assert code != 0, f"{name} was not killed after {batches} batches"
    code, output = launch(killed, *ON_WORKERS)
    assert code == 0, output[-4000:]
    return undisturbed, killed


@pytest.mark.parametrize("name", ON_WORKERS)
def test_killed_loop_on_two_workers_ends_the_same(name, on_two):
    for rank in (0, 1):
        undisturbed, killed = (result_of(folder, name, rank) for folder in on_two)
        assert killed["made"] == undisturbed["made"], f"after kills at {KILLS[name]}, seed {SEED}"
        assert killed["reports"] == undisturbed["reports"]
        assert killed["batches"] < undisturbed["batches"], "it was not resumed"


@pytest.mark.parametrize("name", ON_WORKERS)
def test_workers_of_a_loop_end_with_the_same_model(name, on_two):
    first, second = (result_of(on_two[0], name, rank) for rank in (0, 1))
    assert first["weights"] == second["weights"]


def test_workers_of_a_loop_train_the_model_of_one(on_two, tmp_path):
    alone, together = loop_kinds.run("without_draws", tmp_path), result_of(on_two[0], "without_draws", 0)
    # The order in which floats are added differs.
    for ours, theirs in zip(together["numbers"], alone["numbers"], strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert len(alone["reports"]) > 6
    for ours, theirs in zip(together["reports"], alone["reports"], strict=True):
        assert (ours["group"], ours["steps_completed"]) == (theirs["group"], theirs["steps_completed"])
        assert ours["metrics"] == pytest.approx(theirs["metrics"], rel=1e-5)
