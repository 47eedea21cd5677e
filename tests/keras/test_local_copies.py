"""`init(verify_resume=True)`: a local run is compared with a copy of it that resumes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.keras.verification import _mirror, _moved

SCRIPT = """
import sys

import keras
import numpy as np
import tensorflow as tf

import det_keras as det


class Noisy(keras.layers.Layer):
    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


class Falling(keras.callbacks.Callback):
    def __init__(self, numbers):
        super().__init__()
        self.numbers = numbers

    def on_train_batch_end(self, batch, logs=None):
        self.model.optimizer.learning_rate = 0.1 / (1 + self.numbers())
        with open("out/batches.txt", "a") as file:
            file.write("one more\\n")


class Count:
    def __init__(self):
        self.number = 0

    def __call__(self):
        self.number += 1
        return self.number


config = {"min_checkpoint_period": {"batches": 3}}
with det.keras.init(run_dir="run", verify_resume=True, config=config) as context:
    # A generator is lost with its process.
    numbers = Count() if sys.argv[1] == "exact" else (each for each in range(10**6)).__next__
    x = np.random.RandomState(0).rand(32, 4).astype("float32")
    model = keras.Sequential([keras.layers.Dense(4), Noisy(), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
    context.fit(
        model, x, x.sum(axis=1), epochs=3, batch_size=8, callbacks=[Falling(numbers)], validate=False, verbose=0
    )
"""


@pytest.mark.process
def test_copy_of_a_local_run_is_compared_and_leaves_its_files_alone(tmp_path):
    started = {}
    for kind in ("exact", "lost"):
        directory = tmp_path / kind
        (directory / "out").mkdir(parents=True)
        (directory / "train.py").write_text(SCRIPT, encoding="utf-8")
        # Started as a user does: a copy is the same command.
        started[kind] = subprocess.Popen(
            [sys.executable, "train.py", kind],
            cwd=directory,
            env=os.environ,
            stderr=subprocess.PIPE,
            text=True,
        )
    said = {kind: process.communicate()[1] for kind, process in started.items()}

    assert [process.returncode for process in started.values()] == [0, 0], said
    # On a busy machine a checkpoint that is still to be written gives way to the next one.
    assert re.search(r"The script resumes exactly \(verified at batches \d to \d\)\.", said["exact"]), said
    differs = r"The script does NOT resume exactly: resumed from batch \d, it differs at batch \d in"
    assert re.search(differs, said["lost"]), said
    assert "the optimizer variable `adam/learning_rate`" in said["lost"]
    for kind in started:
        lines = (tmp_path / kind / "out" / "batches.txt").read_text(encoding="utf-8").splitlines()
        assert len(lines) == 12
        assert not (tmp_path / kind / "run" / "verification").exists()


def test_files_of_the_run_are_copied_and_others_are_links(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder").mkdir(parents=True)
    (source / "run").mkdir()
    (source / "run" / "checkpoint").write_text("large")
    (source / "folder" / "data.csv").write_text("data")
    os.utime(source / "folder" / "data.csv", (1, 1))
    (source / "log.csv").write_text("log")
    target.mkdir()
    assert _mirror(source, target, since=2.0, without=source / "run")
    assert (target / "folder" / "data.csv").is_symlink()
    assert not (target / "log.csv").is_symlink()
    assert (target / "log.csv").read_text() == "log"
    assert not (target / "run").exists()


def test_paths_of_the_working_directory_name_the_copy_of_it(tmp_path):
    (tmp_path / "train.py").touch()
    assert _moved(str(tmp_path / "train.py"), tmp_path, Path("/copy")) == "/copy/train.py"
    for word in ("train.py", "--epochs=3", sys.executable, str(tmp_path / "missing.py")):
        assert _moved(word, tmp_path, Path("/copy")) == word
