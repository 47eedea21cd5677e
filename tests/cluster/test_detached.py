"""A plain script that no cluster started, and that reports to one."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys

import numpy as np
import pytest
import warm

pytestmark = [pytest.mark.process, pytest.mark.kill]

SCRIPT = """
import sys, time
import keras, numpy as np
import det_keras as det

class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.02)

context = det.keras.init(
    project="team/digits", name="outside", external_id=sys.argv[2], seed=7, hparams={"units": 4},
    config={
        "scheduling_unit": 2,
        "min_checkpoint_period": {"batches": 5},
        "reproducibility": {"deterministic_ops": True},
        "searcher": {"name": "single", "metric": "val_loss"},
    },
)
rng = np.random.RandomState(0)
x, y = context.wrap_data(rng.rand(96, 8).astype("float32"), rng.rand(96, 1).astype("float32"))
context.core.train.set_metadata({"a": 1})
units = context.training.hparams["units"]
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), keras.layers.Dense(1)])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)), loss="mse")
context.fit(model, x, y, batch_size=8, epochs=5, validation_split=0.25, verbose=0, callbacks=[Slow()])
np.savez(sys.argv[1], *model.get_weights())
print("trained to the end")
"""


@pytest.fixture
def start(double, tmp_path):
    """Start the script under a name, with a file for its weights."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environ = {**double.environ, "DET_KERAS_DETACHED": "1", "DET_KERAS_HOME": str(tmp_path / "home")}

    def start_script(name, output):
        command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / output), name]
        return warm.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    return start_script


@pytest.fixture
def trial_of(double):
    """Return the trial of a script by its name; None before there is one."""

    def find(name):
        every = double.get("/api/v1/experiments")["experiments"]
        found = [one for one in every if one.get("externalExperimentId") == name]
        trials = double.get(f"/api/v1/experiments/{found[0]['id']}/trials")["trials"] if found else []
        return trials[0] if trials else None

    return find


@pytest.fixture
def has_trained(trial_of):
    """Return whether a script has reported so many batches."""

    def ask(name, batches):
        trial = trial_of(name)
        return trial is not None and trial["totalBatchesProcessed"] >= batches

    return ask


def test_a_terminated_script_leaves_no_experiment_that_waits_for_ever(double, start, trial_of, has_trained):
    stopped = start("stopped", "never.npz")
    double.until(functools.partial(has_trained, "stopped", 12))
    stopped.send_signal(signal.SIGTERM)
    output, _ = stopped.communicate(timeout=120)
    number = trial_of("stopped")["experimentId"]
    assert double.get(f"/api/v1/experiments/{number}")["experiment"]["state"] == "STATE_ERROR", output
    last = start("stopped", "whole.npz")
    output, _ = last.communicate(timeout=120)
    assert "Training continues from checkpoint" in output
    assert double.get(f"/api/v1/experiments/{number}")["experiment"]["state"] == "STATE_COMPLETED"


def test_a_killed_script_continues_its_run_and_ends_with_the_same_weights(
    double, tmp_path, start, trial_of, has_trained
):
    undisturbed = start("undisturbed", "a.npz")
    output, _ = undisturbed.communicate(timeout=120)
    assert undisturbed.returncode == 0, output
    for batches in (12, 24):
        killed = start("killed", "never.npz")
        double.until(functools.partial(has_trained, "killed", batches))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    last = start("killed", "b.npz")
    output, _ = last.communicate(timeout=120)

    assert last.returncode == 0, output
    assert "Training continues from checkpoint" in output
    first, second = trial_of("undisturbed"), trial_of("killed")
    for group in ("training", "validation"):
        assert double.metrics(second, group) == double.metrics(first, group)
    assert second["state"] == "STATE_COMPLETED"
    assert any("trained to the end" in line for line in double.logs(second))
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])
