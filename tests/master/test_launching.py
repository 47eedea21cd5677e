"""What a task finds in its environment, on CPUs and on GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.cluster_info import read_cluster_info
from det_keras.home import Home
from det_keras.master.resources import Launch, LocalPool, Node, Share, Slot, State
from det_keras.master.resources import slots as slots_module
from det_keras.master.resources.node_variables import node_variables
from det_keras.master.resources.slots import find_slots
from det_keras.master.tasks.task_environment import Identity, TaskFacts, common_variables
from master.fakes import SINGLE, FakePool, eventually

GPUS = """GPU 0: NVIDIA A100 (UUID: GPU-aaaa)
GPU 1: NVIDIA A100 (UUID: GPU-bbbb)
"""


CPUS = [Slot(0, "cpu", "CPU"), Slot(1, "cpu", "CPU")]
CUDA = [Slot(0, "cuda", "NVIDIA", "GPU-aaaa"), Slot(1, "cuda", "NVIDIA", "GPU-bbbb")]


def variables(slot_ids: tuple[int, ...], slots: list[Slot], **inherited: str) -> dict[str, str]:
    return node_variables(
        shares=[Share("here", slot_ids)] if slot_ids else [],
        index=0,
        node="here",
        slots=slots,
        threads=3,
        directory=Path("/work"),
        home=Path("/home"),
        inherited=inherited,
    )


IDENTITY = Identity("http://127.0.0.1:8081", "master-id", "cluster-id")
FACTS = TaskFacts("t", "t.1", "COMMAND", "r", "me", task_token="secret-token", user_token="secret-too")


def test_tokens_are_not_shown():
    assert "secret" not in repr(FACTS)
    assert common_variables(IDENTITY, FACTS)["DET_SESSION_TOKEN"] == "secret-token"


def test_each_node_of_a_task_is_told_where_the_others_are():
    shares = [Share("a", (0, 1), "10.0.0.1"), Share("b", (3,), "10.0.0.2")]
    made = node_variables(
        shares=shares,
        index=1,
        node="b",
        slots=CPUS,
        threads=1,
        directory=Path("/w"),
        home=Path("/h"),
        inherited={},
    )
    task = {**common_variables(IDENTITY, FACTS), **made}
    info = read_cluster_info(task, Path("/nowhere"))
    assert info.slot_ids == (3,)
    assert (info.container_addrs, info.container_rank) == (("10.0.0.1", "10.0.0.2"), 1)
    assert info.container_slot_counts == (2, 1)


def test_trial_reads_its_whole_story_from_its_variables(world):
    config = SINGLE + "hyperparameters: {a: {b: 1.5}}\nreproducibility: {experiment_seed: 42}\n"
    experiment_id, trial, allocation_id = world.launch(config)
    info = read_cluster_info(world.pool.launched[allocation_id].variables, Path("/nowhere"))
    assert info is not None
    assert info.master_url == "http://127.0.0.1:8080"
    assert (info.task_id, info.allocation_id) == (trial["taskId"], allocation_id)
    assert (info.task_type, info.user, len(info.slot_ids)) == ("TRIAL", "determined", 1)
    assert info.latest_checkpoint is None
    assert info.trial is not None
    assert info.trial.hparams == {"a": {"b": 1.5}}
    assert (info.trial.experiment_id, info.trial.trial_run_id, info.trial.steps_completed) == (
        experiment_id,
        1,
        0,
    )
    assert info.trial.trial_seed == 996406378
    assert info.trial.config["searcher"]["metric"] == "loss"


def test_threads_are_shared_out_unless_the_user_chose(world):
    names = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
    assert [variables((0,), CPUS)[name] for name in names] == ["3", "3", "3"]
    assert "OMP_NUM_THREADS" not in variables((0,), CPUS, OMP_NUM_THREADS="9")


def test_tasks_on_different_slots_use_different_ports():
    assert variables((0,), CPUS)["C10D_PORT"] != variables((1,), CPUS)["C10D_PORT"]


def test_gpus_are_pinned_and_hidden_from_tasks_without_any():
    assert variables((1,), CUDA)["CUDA_VISIBLE_DEVICES"] == "GPU-bbbb"
    assert variables((), CUDA)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in variables((0,), CPUS)


def test_trial_on_a_gpu_gets_the_variables_for_gpus(make_world):
    pool = FakePool()
    pool.machines = [Node("machine", "127.0.0.1", CUDA[:1])]
    config = SINGLE + "environment: {environment_variables: {cpu: [A=cpu], gpu: [A=gpu]}}\n"
    _, _, allocation_id = make_world(pool).launch(config)
    launched = pool.launched[allocation_id].variables
    assert (launched["A"], launched["CUDA_VISIBLE_DEVICES"]) == ("gpu", "GPU-aaaa")


@pytest.mark.parametrize(
    ("count", "expected"), [(None, ["GPU-aaaa", "GPU-bbbb"]), (1, ["GPU-aaaa"]), (3, ["", "", ""])]
)
def test_gpus_are_the_slots_where_there_are_any(monkeypatch, count, expected):
    monkeypatch.setattr(slots_module.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    done = subprocess.CompletedProcess([], 0, stdout=GPUS)
    monkeypatch.setattr(slots_module.subprocess, "run", lambda *_, **__: done)
    assert [slot.uuid for slot in find_slots(count)] == expected


def test_gpus_whose_driver_fails_are_no_slots(monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{GPUS}\nEND\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert {slot.device for slot in find_slots(1)} == {"cpu"}


def test_cores_are_the_slots_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(slots_module.shutil, "which", lambda _: None)
    assert len(find_slots()) == len(os.sched_getaffinity(0))
    assert [slot.device for slot in find_slots(3)] == ["cpu"] * 3
    assert find_slots(0) == []


@pytest.mark.process
def test_process_inherits_finds_its_interpreter_first_and_can_import_the_package(home):
    pool = LocalPool(Home(home.root), find_slots(1), {"INHERITED": "yes", "PATH": "/usr/bin:/bin"})
    code = "import os, sys, json, det_keras; print(json.dumps(dict(os.environ)))"
    launch = Launch("1.x.1", ["python", "-c", code], {"MINE": "1", "DET_ALLOCATION_ID": "1.x.1"})
    pool.launch(launch)
    exit_ = eventually(lambda: (state := pool.look("1.x.1")).state is State.ENDED and state.exit)
    entries, _ = pool.read_log("1.x.1", 0)
    assert exit_.code == 0, entries
    environment = json.loads(entries[0].text)
    assert environment["INHERITED"] == "yes"
    assert environment["MINE"] == "1"
    assert environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)
    assert environment["PYTHONUNBUFFERED"] == "1"
    assert list(pool.kept()) == ["1.x.1"]
    pool.remove("1.x.1")
    assert not (home.logs / "1.x.1").exists()
    assert list(pool.kept()) == []
