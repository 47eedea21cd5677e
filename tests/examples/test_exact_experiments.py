"""Through the master: whatever is killed or paused, the final weights are those of the undisturbed trial."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
import yaml

from det_keras.master import process

pytestmark = [pytest.mark.process, pytest.mark.kill]

EPOCHS, STEPS = 8, 18
CONFIG = {
    "name": "exact",
    "entrypoint": "python3 slow_train.py",
    "hyperparameters": {"learning_rate": 0.01},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": EPOCHS}},
    "checkpoint_policy": "all",
    "reproducibility": {"experiment_seed": 5},
    "max_restarts": 3,
}


@pytest.fixture(scope="module")
def create(cluster, tmp_path_factory):
    """Create the experiment again and return its trial."""
    folder = tmp_path_factory.mktemp("context")
    (folder / "slow_train.py").write_bytes((Path(__file__).parent / "slow_train.py").read_bytes())

    def make(**changes):
        config = tmp_path_factory.mktemp("config") / "exact.yaml"
        config.write_text(yaml.safe_dump({**CONFIG, "environment": cluster.environment(), **changes}))
        experiment = cluster.create(config, folder)
        return experiment, cluster.trial(experiment)

    return make


@pytest.fixture(scope="module")
def undisturbed(cluster, create):
    experiment, trial = create()
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    return cluster.final_digest(trial), cluster.metrics(trial, "validation")


def test_undisturbed_trial_validates_each_epoch(cluster, undisturbed):
    (steps, _), validations = undisturbed
    assert steps == EPOCHS * STEPS
    assert [batches for batches, _ in validations] == [STEPS * (epoch + 1) for epoch in range(EPOCHS)]


def test_paused_and_activated_trial_ends_the_same(cluster, create, undisturbed, tmp_path):
    gate = tmp_path / "gate"
    experiment, trial = create(environment=cluster.environment(f"GATE={gate}"))
    cluster.wait_for_epoch(trial, 2)
    cluster.det("experiment", "pause", experiment)
    gate.touch()
    cluster.until(lambda: not cluster.processes(trial))
    assert cluster.get(f"/api/v1/experiments/{experiment}")["experiment"]["state"] == "STATE_PAUSED"
    cluster.det("experiment", "activate", experiment)
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == undisturbed[0]
    assert cluster.metrics(trial, "validation") == undisturbed[1]
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0


def test_killed_training_process_is_restarted_and_ends_the_same(cluster, create, undisturbed):
    experiment, trial = create()
    killed = set()
    # On a busy machine the fourth epoch may have been reported when the second one is seen.
    for epochs in (2, 4):
        cluster.wait_for_epoch(trial, epochs)
        for one in cluster.processes(trial).values():
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
                killed.add(one.pid)
                one.wait(60)
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == undisturbed[0]
    assert cluster.metrics(trial, "validation") == undisturbed[1]
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == len(killed) > 0


@pytest.mark.parametrize(
    ("entrypoint", "receiver"),
    [("python3 slow_train.py", "training"), ("cd . && python3 slow_train.py; exit $?", "all")],
    ids=["simple-command", "shell"],
)
def test_sigterm_saves_and_the_trial_goes_on_without_a_restart(
    cluster, create, undisturbed, entrypoint, receiver
):
    experiment, trial = create(entrypoint=entrypoint, max_restarts=0)
    cluster.wait_for_epoch(trial, 2)
    training = list(cluster.processes(trial).values())
    if receiver == "training":
        training[-1].terminate()
    else:
        # As a machine that shuts down does: the supervisor, the shell and the training.
        os.kill(psutil.Process(os.getpgid(training[-1].pid)).ppid(), signal.SIGTERM)
        os.killpg(os.getpgid(training[-1].pid), signal.SIGTERM)
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == undisturbed[0]
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0


def test_killed_supervisor_takes_its_trial_along_and_counts_no_restart(cluster, create, undisturbed):
    experiment, trial = create()
    cluster.wait_for_epoch(trial, 2)
    (supervisor,) = {one.parent() for one in cluster.processes(trial).values()}
    # It leads its session, and so does the training, which is no child of a shell.
    assert os.getsid(supervisor.pid) == supervisor.pid
    supervisor.kill()
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == undisturbed[0]
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0


def test_killed_master_comes_back_to_a_trial_that_went_on(cluster, create, undisturbed):
    experiment, trial = create()
    cluster.wait_for_epoch(trial, 2)
    pids = {one.pid for one in cluster.processes(trial).values()}
    os.kill(process.find(cluster.home).pid, signal.SIGKILL)
    assert {one.pid for one in cluster.processes(trial).values()} == pids
    cluster.start()
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == undisturbed[0]
    assert cluster.metrics(trial, "validation") == undisturbed[1]
    steps = [batches for batches, _ in cluster.metrics(trial, "training")]
    assert steps == sorted(set(steps))
    assert len(steps) == EPOCHS
    lines = cluster.logs(trial)
    assert sum("trained to the end" in line for line in lines) == 1
    assert [line for line in lines if line.startswith("Epoch ")] == [
        f"Epoch {epoch + 1}/{EPOCHS}\n" for epoch in range(EPOCHS)
    ]


def test_length_in_batches_stops_at_that_very_batch(cluster, create):
    searcher = {"name": "single", "metric": "val_loss", "max_length": {"batches": 40}}
    experiment, trial = create(searcher=searcher, min_validation_period={"batches": 10})
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    steps, _ = cluster.final_digest(trial)
    assert steps == 40
    assert {10, 40} <= {batches for batches, _ in cluster.metrics(trial, "validation")}
