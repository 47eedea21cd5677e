"""Trials of a real master are compared with copies that resume: what `describe` and the REST API say."""

from __future__ import annotations

import json

import pytest
from conftest import Cluster

pytestmark = pytest.mark.process

SCRIPT = """
import os
import time

import keras
import numpy as np

import det_keras as det


class Clock(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.01 + time.time() % 1.0


class Count(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        self.model.optimizer.learning_rate = 0.1 / self.batches
        with open("batches.txt", "a") as file:
            file.write(f"{self.batches}\\n")


x = np.random.RandomState(0).rand(32, 4).astype("float32")
y = x.sum(axis=1, keepdims=True)
with det.keras.init() as context:
    kind = context.config_data["kind"]
    callbacks = [Clock() if kind == "clock" else Count(), keras.callbacks.CSVLogger("log.csv")]
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    for _ in range(2 if kind == "phases" else 1):
        context.fit(
            model, x, y, epochs=2, batch_size=8, validation_data=(x, y), callbacks=callbacks, verbose=0
        )
"""


def config(kind, period=3):
    return {
        "name": kind,
        "entrypoint": "python3 train.py",
        "searcher": {"name": "single", "metric": "val_loss"},
        "data": {"kind": kind},
        "min_checkpoint_period": {"batches": period},
        "checkpoint_policy": "none",
        "max_restarts": 0,
        # The copy of the first gets a slot; the others wait for none.
        "resources": {"slots_per_trial": int(kind == "exact")},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    found = Cluster(tmp_path_factory.mktemp("copies"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DET_KERAS_VERIFY_RESUME", "always")
        found.start()
    yield found
    found.det("deploy", "local", "cluster-down", "--kill")


def verified(cluster, number):
    """Return what the master says of an experiment once it was compared."""

    def ended():
        found = cluster.get(f"/api/v1/experiments/{number}/verification")["verification"]
        return found if found and found["state"] not in ("WAITING", "RUNNING") else None

    return cluster.until(ended, timeout_s=300)


def test_exact_script_is_told_from_one_that_reads_a_clock(cluster, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    numbers = {}
    # The copy of the third resumes at the end of its first training, of 8 batches, and goes on to the second.
    for kind, period in (("exact", 3), ("clock", 3), ("phases", 8)):
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps(config(kind, period)), encoding="utf-8")
        numbers[kind] = cluster.create(file, tmp_path)
    exact, clock, phases = (verified(cluster, numbers[kind]) for kind in ("exact", "clock", "phases"))

    assert exact["text"] == "resumes exactly (verified at batches 3 to 6)", exact
    described = cluster.det("experiment", "describe", numbers["exact"]).stdout
    assert "resumes exactly (verified at batches 3 to 6)" in described

    assert clock["state"] == "DIFFERENT", clock
    assert "the optimizer variable `adam/learning_rate`" in clock["differences"]
    described = cluster.det("experiment", "describe", numbers["clock"]).stdout
    assert "does NOT resume exactly" in described
    assert "adam/learning_rate" in described
    trial = cluster.trial(numbers["clock"])
    assert any("NOT resume exactly" in line for line in cluster.logs(trial))

    assert phases["state"] == "EXACT", phases
    assert phases["secondBatch"] > 8 == phases["firstBatch"], phases

    for number in numbers.values():
        assert cluster.wait(number) == "STATE_COMPLETED"
        # A copy reports nothing: each batch was validated once.
        reported = [steps for steps, _ in cluster.metrics(cluster.trial(number), "validation")]
        assert len(reported) == len(set(reported))
