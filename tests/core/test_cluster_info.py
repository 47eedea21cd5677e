"""What the launcher says is read once, and anything missing is named."""

from __future__ import annotations

import json

import pytest

from det_keras.cluster_info import WorkerInfo, read_cluster_info
from det_keras.errors import ClusterInfoError

TRIAL = {
    "DET_TASK_TYPE": "TRIAL",
    "DET_MASTER": "http://127.0.0.1:8080",
    "DET_CLUSTER_ID": "c",
    "DET_AGENT_ID": "agent1",
    "DET_SLOT_IDS": "[0,1]",
    "DET_TASK_ID": "1.5f0e",
    "DET_ALLOCATION_ID": "1.5f0e.2",
    "DET_SESSION_TOKEN": "secret",
    "DET_USER": "determined",
    "DET_EXPERIMENT_ID": "1",
    "DET_TRIAL_ID": "7",
    "DET_TRIAL_RUN_ID": "2",
    "DET_TRIAL_SEED": "42",
    "DET_EXPERIMENT_CONFIG": '{"debug": true}',
    "DET_HPARAMS": '{"lr": 0.1}',
    "DET_STEPS_COMPLETED": "30",
    "DET_LATEST_CHECKPOINT": "u",
}


def test_process_alone_has_no_cluster(tmp_path):
    assert read_cluster_info({}, tmp_path) is None


def test_trial_is_read_from_variables(tmp_path):
    info = read_cluster_info(TRIAL, tmp_path)
    assert info.slot_ids == (0, 1)
    assert info.latest_checkpoint == "u"
    assert (info.trial.trial_id, info.trial.trial_run_id, info.trial.steps_completed) == (7, 2, 30)
    assert info.trial.hparams == {"lr": 0.1}
    assert info.trial.debug


def test_job_has_its_config_and_no_trial(tmp_path):
    names = ("DET_MASTER", "DET_SLOT_IDS", "DET_TASK_ID", "DET_ALLOCATION_ID", "DET_SESSION_TOKEN")
    environ = {name: TRIAL[name] for name in names}
    info = read_cluster_info(
        {**environ, "DET_TASK_TYPE": "COMMAND", "DET_TASK_CONFIG": '{"data": {}}'}, tmp_path
    )
    assert info.trial is None
    assert info.task_config == {"data": {}}


@pytest.mark.parametrize(
    "name",
    [
        "DET_MASTER",
        "DET_SLOT_IDS",
        "DET_SESSION_TOKEN",
        "DET_TRIAL_ID",
        "DET_HPARAMS",
        "DET_EXPERIMENT_CONFIG",
    ],
)
def test_missing_variable_is_named(name, tmp_path):
    environ = {key: value for key, value in TRIAL.items() if key != name}
    with pytest.raises(ClusterInfoError, match=f"`{name}` is missing; expected"):
        read_cluster_info(environ, tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DET_TRIAL_ID", "seven"),
        ("DET_HPARAMS", "[1]"),
        ("DET_TRIAL_ID", "-3"),
        ("DET_SLOT_IDS", "0,1"),
        ("DET_SLOT_IDS", "[true]"),
        ("DET_MASTER", "localhost:8080"),
        ("DET_MASTER", "http://"),
        ("DET_TRIAL_SEED", "-1"),
        ("DET_TRIAL_SEED", "4294967296"),
        ("DET_STEPS_COMPLETED", "-1"),
    ],
)
def test_malformed_variable_is_named_with_its_value(name, value, tmp_path):
    with pytest.raises(ClusterInfoError, match=f"`{name}` is .*expected"):
        read_cluster_info({**TRIAL, name: value}, tmp_path)


def test_info_files_of_a_real_cluster_are_read(tmp_path):
    cluster = {
        "master_url": "http://m:8080", "cluster_id": "c", "agent_id": "a", "slot_ids": [0], "task_id": "1.x",
        "allocation_id": "1.x.1", "session_token": "t", "task_type": "TRIAL", "latest_checkpoint": None,
    }  # fmt: skip
    trial = {
        "trial_id": 1, "experiment_id": 2, "trial_seed": 3, "hparams": {}, "config": {}, "steps_completed": 0,
        "trial_run_id": 1, "debug": False, "inter_node_network_interface": None,
    }  # fmt: skip
    (tmp_path / "cluster.json").write_text(json.dumps(cluster))
    (tmp_path / "trial.json").write_text(json.dumps(trial))
    info = read_cluster_info({"DET_SESSION_TOKEN": "newer"}, tmp_path)
    assert info.session_token == "newer"
    assert info.trial.experiment_id == 2
    (tmp_path / "trial.json").write_text(json.dumps({**trial, "trial_seed": 2**32}))
    with pytest.raises(ClusterInfoError, match="4294967296, which is not a seed"):
        read_cluster_info({}, tmp_path)


def write_rendezvous(directory, **changes):
    usual = {
        "container_addrs": ["10.0.0.1", "10.0.0.2"],
        "container_rank": 1,
        "container_slot_counts": [2, 1],
    }
    (directory / "rendezvous.json").write_text(json.dumps({**usual, **changes}))


def test_machines_of_a_task_are_read_from_the_rendezvous(tmp_path):
    info = read_cluster_info(TRIAL, tmp_path)
    assert (info.container_addrs, info.container_rank, info.container_slot_counts) == (
        ("127.0.0.1",),
        0,
        (2,),
    )
    write_rendezvous(tmp_path)
    info = read_cluster_info(TRIAL, tmp_path)
    assert (info.container_addrs, info.container_rank) == (("10.0.0.1", "10.0.0.2"), 1)
    assert info.container_slot_counts == (2, 1)


@pytest.mark.parametrize(
    "changes",
    [{"container_rank": 2}, {"container_slot_counts": [1]}, {"container_addrs": "10.0.0.1"}],
    ids=str,
)
def test_rendezvous_that_contradicts_itself_is_refused(changes, tmp_path):
    write_rendezvous(tmp_path, **changes)
    with pytest.raises(ClusterInfoError, match=r"rendezvous\.json"):
        read_cluster_info(TRIAL, tmp_path)


def test_broken_info_file_is_named(tmp_path):
    (tmp_path / "cluster.json").write_text("{}")
    with pytest.raises(ClusterInfoError, match="master_url"):
        read_cluster_info({}, tmp_path)


def test_tokens_do_not_show_in_logs(tmp_path):
    assert "secret" not in repr(read_cluster_info(TRIAL, tmp_path))


def test_worker_is_alone_unless_a_launcher_says_otherwise():
    assert WorkerInfo.from_environment({}) == WorkerInfo()
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
    environ = {f"HOROVOD_{name}": str(index) for index, name in enumerate(names)}
    assert WorkerInfo.from_environment(environ) == WorkerInfo(0, 1, 2, 3, 4, 5)
    with pytest.raises(ClusterInfoError, match="HOROVOD_SIZE"):
        WorkerInfo.from_environment({"HOROVOD_RANK": "0"})
