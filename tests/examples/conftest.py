"""A master, the `det` command, and what a test asks about experiments."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import forked_masters
import numpy as np
import psutil
import pytest
import warm

from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.home import Home
from det_keras.launch.network import free_port
from det_keras.master import process

EXAMPLES = Path(__file__).parents[2] / "examples"
TERMINAL = {"STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR"}


class Cluster:
    """An embedded master with a data root of its own, and the command line pointed at it."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root)
        self.storage = self.home.checkpoints
        self._processes = root / "processes"
        # Its own: while a master is down, another one may take the usual port, and trials that know only that address
        # are started again.
        self.port = free_port("127.0.0.1")
        self.environ = {**os.environ, "DET_KERAS_HOME": str(root), "DET_KERAS_SLOTS": "2"}
        for name in ("DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN"):
            self.environ.pop(name, None)

    def start(self):
        """Start the master."""
        with warm.warm_trials():
            forked_masters.start(self.home, port=self.port, slots=2)

    def det(self, *arguments, check=True):
        """Run `det` and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "det_keras.cli", *map(str, arguments)],
            capture_output=True, text=True, env=self.environ, timeout=300, check=False,
        )  # fmt: skip
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    def create(self, config, context, *options):
        """Create and activate an experiment and return its id."""
        printed = self.det("experiment", "create", config, context, *options).stdout
        return int(printed.split("Created experiment ")[1].split()[0])

    def get(self, path, **params):
        """Ask the master, wherever it runs now."""
        with open_session(Settings(self.home), patience_s=60) as session:
            return session.get(path, params=params)

    def trial(self, experiment):
        """Return the experiment's only trial, once it exists."""
        return self.until(lambda: self.get(f"/api/v1/experiments/{experiment}/trials")["trials"])[0]

    def metrics(self, trial, group):
        """Return (steps, metrics) of every live report of a group."""
        with open_session(Settings(self.home), patience_s=60) as session:
            stream = session.stream(
                "/api/v1/trials/metrics/trial_metrics", params={"group": group, "trialIds": trial["id"]}
            )
            rows = [row for part in stream for row in part["metrics"]]
        return [
            (row["totalBatches"], next(v for k, v in row["metrics"].items() if k != "batch_metrics"))
            for row in rows
        ]

    def environment(self, *variables):
        """Return the config's section with these variables and what `processes` needs."""
        self._processes.mkdir(parents=True, exist_ok=True)
        return {"environment_variables": [f"PROCESSES={self._processes}", *variables]}

    def processes(self, trial):
        """Return the live processes that train a trial of `slow_train.py` with such an `environment`, by rank."""
        found = {}
        for file in self._processes.glob(f"{trial['id']}-*"):
            with contextlib.suppress(psutil.NoSuchProcess):
                one = psutil.Process(int(file.read_text()))
                if one.status() != psutil.STATUS_ZOMBIE:
                    found[int(file.name.split("-")[1])] = one
        return found

    def wait_for_epoch(self, trial, epochs):
        """Return once the trial has validated so many epochs."""
        self.until(lambda: len(self.metrics(trial, "validation")) >= epochs)

    def wait(self, experiment):
        """Return the experiment's final state."""
        path = f"/api/v1/experiments/{experiment}"

        def ended():
            state = self.get(path)["experiment"]["state"]
            return state if state in TERMINAL else None

        return self.until(ended, timeout_s=300)

    def until(self, condition, timeout_s=120):
        """Poll until `condition` gives something true, and return that."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.1)
        raise AssertionError("what the test waits for did not happen")

    def final_digest(self, trial):
        """Return the SHA-256 of everything in the last checkpoint that training decided."""
        found = self.get(
            f"/api/v1/trials/{trial['id']}/checkpoints",
            states="STATE_COMPLETED", sortByAttr="SORT_BY_BATCH_NUMBER", orderBy="ORDER_BY_DESC",
        )["checkpoints"]  # fmt: skip
        # Of two at the same batch the later one is kept.
        last = max(found, key=lambda one: (one["metadata"]["steps_completed"], one["reportTime"]))
        directory = self.storage / last["uuid"]
        content = hashlib.sha256((directory / "training_state" / "variables.bin").read_bytes())
        with zipfile.ZipFile(directory / "model.keras") as archive:
            content.update(archive.read("model.weights.h5"))
        return last["metadata"]["steps_completed"], content.hexdigest()

    def logs(self, trial):
        """Return the trial's log lines."""
        with open_session(Settings(self.home), patience_s=60) as session:
            return [line["log"] for line in session.stream(f"/api/v1/trials/{trial['id']}/logs")]


def small_data(path, shape, samples):
    """Write a file like Keras's data sets, with few and simple pictures, and return its path."""
    rng = np.random.RandomState(0)
    labels = rng.randint(0, 10, samples).astype("uint8")
    images = rng.randint(0, 60, (samples, *shape)).astype("uint8")
    images[np.arange(samples), labels] += 150
    test = samples // 5
    np.savez(path, x_train=images, y_train=labels, x_test=images[:test], y_test=labels[:test])
    return path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory, give_database):
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    give_database(cluster.home)
    cluster.start()
    yield cluster
    process.stop(cluster.home, kill_tasks=True)
