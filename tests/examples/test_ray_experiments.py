"""Training on machines of a Ray cluster that die: the weights are those of the undisturbed trial."""

from __future__ import annotations

import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from amount import AMOUNT
from conftest import Cluster

from det_keras.master import process

pytestmark = [pytest.mark.process, pytest.mark.kill]

EPOCHS = 5
CONFIG = {
    "name": "on Ray",
    "entrypoint": "python3 slow_train.py",
    "hyperparameters": {"learning_rate": 0.01},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": EPOCHS}},
    "checkpoint_policy": "all",
    "reproducibility": {"experiment_seed": 5},
    "max_restarts": 0,
}
TEAM = {
    "entrypoint": "python3 -m det_keras.launch.distributed -- python3 slow_train.py",
    "resources": {"slots_per_trial": 4},
    "optimizations": {"collective_engine": "builtin"},
}


@pytest.fixture(scope="module")
def on_ray(machines, tmp_path_factory):
    cluster = Cluster(tmp_path_factory.mktemp("on-ray"))
    process.start(cluster.home, options=process.MasterOptions(ray=machines.address))
    with machines.warm_tasks():
        yield cluster
    cluster.det("deploy", "local", "cluster-down", "--kill", check=False)


@pytest.fixture(scope="module")
def create(on_ray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("context")
    (folder / "slow_train.py").write_bytes((Path(__file__).parent / "slow_train.py").read_bytes())

    def make(**changes):
        config = tmp_path_factory.mktemp("config") / "ray.yaml"
        config.write_text(yaml.safe_dump({**CONFIG, **changes}))
        experiment = on_ray.create(config, folder)
        return experiment, on_ray.trial(experiment)

    return make


def nodes_of(cluster, trial):
    """Return the machines of the trial's run."""
    summaries = cluster.get("/api/v1/tasks")["allocationIdToSummary"].values()
    return [
        name
        for summary in summaries
        if summary["taskId"] == trial["taskId"]
        for name in summary["resources"][0]["agentDevices"]
    ]


def weights_of(cluster, trial):
    steps, _ = cluster.final_digest(trial)
    found = cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    uuid = next(one["uuid"] for one in found if one["metadata"]["steps_completed"] == steps)
    values = []
    with (
        zipfile.ZipFile(cluster.storage / uuid / "model.keras") as archive,
        archive.open("model.weights.h5") as file,
    ):
        h5py.File(file).visititems(
            lambda _, item: values.append(item[()]) if isinstance(item, h5py.Dataset) else None
        )
    return values


def test_trial_whose_machine_dies_ends_the_same(on_ray, create, machines):
    experiment, undisturbed = create()
    assert on_ray.wait(experiment) == "STATE_COMPLETED"
    experiment, trial = create()
    on_ray.wait_for_epoch(trial, 2)
    (name,) = nodes_of(on_ray, trial)
    machines.kill(name)
    assert on_ray.wait(experiment) == "STATE_COMPLETED"
    machines.add()
    assert on_ray.final_digest(trial) == on_ray.final_digest(undisturbed)
    assert on_ray.metrics(trial, "validation") == on_ray.metrics(undisturbed, "validation")
    assert on_ray.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0


@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")
def test_trial_over_two_machines_ends_as_on_one_process_whichever_dies(on_ray, create, machines):
    # Dropout draws another stream on each rank.
    hyperparameters = {"learning_rate": 0.01, "dropout": 0.0, "global_batch_size": 32}
    experiment, alone = create(hyperparameters=hyperparameters)
    assert on_ray.wait(experiment) == "STATE_COMPLETED"
    experiment, team = create(hyperparameters=hyperparameters, **TEAM)
    on_ray.wait_for_epoch(team, 1)
    assert len(nodes_of(on_ray, team)) == 2
    assert on_ray.wait(experiment) == "STATE_COMPLETED"
    for ours, theirs in zip(weights_of(on_ray, team), weights_of(on_ray, alone), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    experiment, trial = create(hyperparameters=hyperparameters, **TEAM)
    on_ray.wait_for_epoch(trial, 2)
    machines.kill(nodes_of(on_ray, trial)[-1])
    machines.add()
    assert on_ray.wait(experiment) == "STATE_COMPLETED"
    assert on_ray.final_digest(trial) == on_ray.final_digest(team)
    assert on_ray.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0
