"""A TFKerasTrial on two workers is the one of one worker."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import warm
import yaml
from amount import chosen

pytestmark = pytest.mark.process

MODEL_DEF = """
import keras
import numpy as np
import tensorflow as tf
from sklearn.datasets import load_digits
import det_keras as det

data = load_digits()
x, y = (data.data / 16).astype("float32"), data.target.astype("int64")

class Arrays(det.keras.TFKerasTrial):
    def __init__(self, context):
        self.context = context

    def build_model(self):
        hidden, out = keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10, activation="softmax")
        model = keras.Sequential([keras.Input((64,)), hidden, out])
        model = self.context.wrap_model(model)
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    def build_training_data_loader(self):
        return x, y

    def build_validation_data_loader(self):
        return x[:500], y[:500]

class PerSlot(Arrays):
    size = property(lambda self: self.context.get_per_slot_batch_size())

    def build_training_data_loader(self):
        # A whole number of global batches: what two workers take in one step, one worker takes in one batch.
        return det.keras.InMemorySequence(x[:1792], y[:1792], self.size)

class Global(PerSlot):
    size = property(lambda self: self.context.get_global_batch_size())

    def build_training_data_loader(self):
        return det.keras.InMemorySequence(x, y, self.size)

class Dataset(Arrays):
    def build_training_data_loader(self):
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000, seed=self.context.get_trial_seed())
        return self.context.wrap_dataset(dataset).batch(self.context.get_per_slot_batch_size())

class WrongSize(PerSlot):
    size = 7
"""

CONFIG = {
    "entrypoint": "model_def:Arrays",
    "hyperparameters": {"global_batch_size": 64},
    "searcher": {"name": "single", "metric": "val_accuracy", "max_length": {"batches": 40}},
    "min_validation_period": {"batches": 20},
    "reproducibility": {"experiment_seed": 1},
}


def run(folder, trial, workers):
    """Train a class of `MODEL_DEF` alone on a number of workers; return exit code, output and run directory."""
    (folder / "model_def.py").write_text(MODEL_DEF)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    run_dir = folder / f"{trial}-{workers}"
    launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(workers)]
    environ = {
        **os.environ, "DET_KERAS_LOCAL_CONFIG": str(folder / "config.yaml"), "DET_KERAS_LOCAL_RUN_DIR": str(run_dir),
    }  # fmt: skip
    done = warm.run(
        [*launcher, "--trial", f"model_def:{trial}"], cwd=folder, env=environ, timeout=300, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    return done.returncode, done.stdout, run_dir


def weights_of(run_dir):
    """Return the weights of the newest checkpoint."""
    newest = max((run_dir / "checkpoints").glob("*/model.keras"), key=lambda path: path.stat().st_mtime_ns)
    found = []
    with zipfile.ZipFile(newest) as archive, archive.open("model.weights.h5") as file, h5py.File(file) as h5:
        h5.visititems(
            lambda _, item: found.append(np.array(item)) if isinstance(item, h5py.Dataset) else None
        )
    return found


@pytest.mark.parametrize("trial", chosen(["Arrays", "Global", "Dataset"], alike={"Arrays", "Global"}))
def test_two_workers_train_the_model_of_one(tmp_path, trial):
    trained = []
    for workers in (1, 2):
        code, output, run_dir = run(tmp_path, trial, workers)
        assert code == 0, output[-3000:]
        trained.append(weights_of(run_dir))
        assert sum("batch 40: validation" in line for line in output.splitlines()) == 1, (
            "the chief alone prints"
        )
    for one, two in zip(*trained, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_batches_of_one_slot_are_shared_out(tmp_path):
    code, output, run_dir = run(tmp_path, "PerSlot", 2)
    assert code == 0, output[-3000:]
    assert '"records": 2560' in Path(run_dir / "metrics.jsonl").read_text(), "40 batches of 64"


def test_batches_of_neither_size_are_refused(tmp_path):
    code, output, _ = run(tmp_path, "WrongSize", 2)
    assert code != 0
    assert "The first training batch has 7 samples. On 2 workers it must have 32" in output
    assert "or 64 (`context.get_global_batch_size()`)" in output
