"""A double of a Determined 0.38.1 cluster, and `det` as its user has it: on another machine, with another data root."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warm
import yaml
from examples.conftest import Cluster
from stock.conftest import stock_python  # noqa: F401 - a fixture

from det_keras.client import Session
from det_keras.home import Home
from det_keras.master import process

TESTS = Path(__file__).parents[1]


class Double(Cluster):
    """A cluster of four agents with one slot each, so that two slots are two containers.

    Args:
        root: what this test run keeps of it.
        determined: a folder with Determined's own package, which each container has; None for none.
    """

    def __init__(self, root: Path, determined: str | None = None) -> None:
        super().__init__(root / "user")
        self.cluster_home = Home(root / "cluster")
        self.called: list[list[str]] = []
        self.violations = self.cluster_home.root / "violations.jsonl"
        self.storage = self.cluster_home.root / "storage"
        with warm.warm_trials():
            path = [os.environ["PYTHONPATH"], str(TESTS.parent), str(TESTS)]
            environ = {**os.environ, **self.environ, "PYTHONPATH": os.pathsep.join(path)}
            environ["DOUBLE_DETERMINED"] = determined or ""
        self.log = (root / "double.log").open("wb")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "cluster.double",
                str(self.cluster_home.root),
                "--slots-per-agent",
                "1",
            ],
            env=environ,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        running = self.until(lambda: process.find(self.cluster_home) or self.process.poll())
        assert not isinstance(running, int), (root / "double.log").read_text()
        self.url = running.url
        self.token = self.cluster_home.token_file.read_text().strip()
        self.environ |= {"DET_MASTER": self.url, "DET_USER": "determined", "DET_USER_TOKEN": self.token}

    def det(self, *arguments: Any, check: bool = True) -> subprocess.CompletedProcess[str]:
        self.called.append([str(argument) for argument in arguments])
        return super().det(*arguments, check=check)

    def session(self) -> Session:
        """Return a session of the user."""
        return Session(self.url, self.token, patience_s=60)

    def get(self, path: str, **params: Any) -> Any:
        with self.session() as session:
            return session.get(path, params=params)

    def logs(self, trial: Any) -> list[str]:
        with self.session() as session:
            return [line["log"] for line in session.stream(f"/api/v1/trials/{trial['id']}/logs")]

    def metrics(self, trial: Any, group: str) -> list[tuple[int, dict[str, Any]]]:
        params = {"group": group, "trialIds": trial["id"]}
        with self.session() as session:
            stream = session.stream("/api/v1/trials/metrics/trial_metrics", params=params)
            rows = [row for part in stream for row in part["metrics"]]
        return (
            [(row["totalBatches"], row["metrics"]["avg_metrics"]) for row in rows]
            if group != "validation"
            else [(row["totalBatches"], row["metrics"]["validation_metrics"]) for row in rows]
        )

    def refused(self) -> list[Any]:
        """Return the calls that the real master would have refused, and forget them."""
        if not self.violations.exists():
            return []
        found = [json.loads(line) for line in self.violations.read_text().splitlines()]
        self.violations.unlink()
        return found

    def close(self) -> None:
        process.stop(self.cluster_home, kill_tasks=True)
        self.process.wait()
        self.log.close()


def _packages_beside(packages: Path, folder: Path) -> Path:
    """Link those of other packages into a folder that this environment does not have; return the folder."""
    for path in packages.iterdir():
        name = path.name.partition(".")[0]
        if path.suffix in ("", ".py") and name.isidentifier() and importlib.util.find_spec(name) is None:
            (folder / path.name).symlink_to(path)
    assert (folder / "determined").exists()
    return folder


@pytest.fixture(scope="session")
def running_double(tmp_path_factory, request) -> Iterator[Double]:
    if shutil.which("unshare") and subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0:
        pytest.skip(
            "this machine's kernel gives ordinary users no mount namespaces, of which containers are made"
        )
    determined = None
    if sys.version_info >= (3, 11):
        python = request.getfixturevalue("stock_python")
        (packages,) = python.parents[1].glob("lib/python*/site-packages")
        determined = str(_packages_beside(packages, tmp_path_factory.mktemp("determined")))
    double = Double(tmp_path_factory.mktemp("double"), determined)
    yield double
    double.close()


@pytest.fixture
def double(running_double) -> Iterator[Double]:
    """The double; the test fails if anything made a call that the real master would refuse."""
    running_double.refused()
    yield running_double
    assert not running_double.refused()


@pytest.fixture
def submit(double, tmp_path):
    """Submit a script with a config; return the experiment's id."""

    def submit_script(script: str, **config: Any) -> int:
        (tmp_path / "context").mkdir(exist_ok=True)
        (tmp_path / "context" / "train.py").write_text(script)
        whole = {
            "name": "test",
            "entrypoint": "python3 train.py",
            "hyperparameters": {"global_batch_size": 8},
            "searcher": {"name": "single", "metric": "val_loss"},
            "max_restarts": 0,
            **config,
        }
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(whole))
        return double.create(tmp_path / "config.yaml", tmp_path / "context")

    return submit_script
