"""A trial that another experiment preempts ends with the weights of the undisturbed trial."""

from __future__ import annotations

from pathlib import Path

import forked_masters
import pytest
import yaml
from conftest import Cluster
from test_exact_experiments import CONFIG

from det_keras.master import process

pytestmark = [pytest.mark.process]

URGENT = {
    "name": "urgent",
    "entrypoint": "python3 -c pass",
    "searcher": {"name": "single", "metric": "val_loss"},
    "resources": {"priority": 1},
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master with one slot that preempts by priority."""
    cluster = Cluster(tmp_path_factory.mktemp("preempting"))
    forked_masters.start(cluster.home, slots=1, options=process.MasterOptions(preemption=True))
    yield cluster
    cluster.det("deploy", "local", "cluster-down", "--kill", check=False)


def test_preempted_trial_ends_the_same_and_counts_no_restart(cluster, tmp_path):
    folder = tmp_path / "context"
    folder.mkdir()
    source = (Path(__file__).parent / "slow_train.py").read_bytes()
    (folder / "slow_train.py").write_bytes(source)
    config, urgent = tmp_path / "slow.yaml", tmp_path / "urgent.yaml"
    config.write_text(yaml.safe_dump(CONFIG))
    urgent.write_text(yaml.safe_dump(URGENT))

    undisturbed = cluster.create(config, folder)
    assert cluster.wait(undisturbed) == "STATE_COMPLETED"
    expected = cluster.final_digest(cluster.trial(undisturbed))

    gate = tmp_path / "gate"
    config.write_text(yaml.safe_dump({**CONFIG, "environment": {"environment_variables": [f"GATE={gate}"]}}))
    experiment = cluster.create(config, folder)
    trial = cluster.trial(experiment)
    cluster.wait_for_epoch(trial, 2)
    preemptor = cluster.create(urgent, folder)
    gate.touch()
    assert cluster.wait(preemptor) == "STATE_COMPLETED"
    assert cluster.get(f"/api/v1/experiments/{experiment}")["experiment"]["endTime"] is None
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == expected
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0
    log = "".join(cluster.logs(trial))
    assert f"preempted by experiment {preemptor}, which has priority 1" in log
    assert len(cluster.get(f"/api/v1/tasks/{trial['taskId']}")["task"]["allocations"]) == 2
