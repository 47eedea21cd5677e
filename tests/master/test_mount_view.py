"""Tasks find the info files of Determined's own package, each its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.cluster_info import read_cluster_info
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.resources import Launch, LocalPool, State, mount_view
from det_keras.master.resources.slots import find_slots
from master.fakes import SINGLE, eventually

INFO = Path("/run/determined/info")
READ = f"import pathlib; print(pathlib.Path('{INFO}/cluster.json').read_text())"


def is_possible() -> bool:
    probe = "import sys; sys.path.insert(0, sys.argv[1]); import mount_view; mount_view._unshare()"
    folder = str(Path(mount_view.__file__).parent)
    return subprocess.run([sys.executable, "-c", probe, folder], capture_output=True).returncode == 0


def variables(**changes: str) -> dict[str, str]:
    usual = {
        "DET_MASTER": "http://127.0.0.1:8080",
        "DET_CLUSTER_ID": "c",
        "DET_AGENT_ID": "a",
        "DET_SLOT_IDS": "[0]",
        "DET_TASK_ID": "t",
        "DET_ALLOCATION_ID": "t.1",
        "DET_SESSION_TOKEN": "secret",
        "DET_TASK_TYPE": "COMMAND",
    }
    return {**usual, **changes}


def run(
    home: Home, name: str, code: str, environment: dict[str, str], *, info_mounts: bool = True
) -> tuple[int | None, str]:
    """Run a line of Python as a task; return its exit code and what it printed."""
    pool = LocalPool(home, find_slots(1), {}, info_mounts=info_mounts)
    pool.launch(Launch(name, [sys.executable, "-c", code], environment))
    ended = eventually(lambda: (state := pool.look(name)).state is State.ENDED and state.exit)
    return ended.code, "".join(entry.text for entry in pool.read_log(name, 0)[0])


@pytest.mark.process
@pytest.mark.skipif(not is_possible(), reason="this kernel lets nobody make mount namespaces")
def test_each_task_finds_info_files_of_its_own_and_the_machine_has_none(home):
    for task_id in ("one", "two"):
        code, text = run(home, task_id, READ, variables(DET_TASK_ID=task_id))
        assert code == 0, text
        assert json.loads(text)["task_id"] == task_id
    assert not (INFO / "cluster.json").exists()


@pytest.mark.process
def test_task_that_wants_no_info_files_runs_without(home):
    code, text = run(home, "t", READ, variables(DET_KERAS_INFO_FILES="0"))
    assert code == 1
    assert "FileNotFoundError" in text


@pytest.mark.process
def test_without_the_option_a_task_stays_in_the_namespaces_of_the_machine(home):
    code = "import os; print(*(os.readlink(f'/proc/self/ns/{name}') for name in ('user', 'mnt')))"
    status, text = run(home, "t", code, variables(), info_mounts=False)
    assert status == 0, text
    assert text.split() == [str(Path(f"/proc/self/ns/{name}").readlink()) for name in ("user", "mnt")]


@pytest.mark.process
def test_option_is_kept_for_a_master_that_is_started_again(home):
    def arguments(running: process.RunningMaster) -> list[str]:
        return Path(f"/proc/{running.pid}/cmdline").read_text().split("\0")

    first = process.start(home, slots=1, options=process.MasterOptions(info_mounts=True))
    try:
        assert "--info-mounts" in arguments(first)
        os.kill(first.pid, signal.SIGKILL)
        eventually(lambda: process.find(home) is None)
        assert "--info-mounts" in arguments(process.start(home, slots=1))
        process.stop(home)
        process.forget(home)
        assert "--info-mounts" not in arguments(process.start(home, slots=1))
    finally:
        process.stop(home, kill_tasks=True)


@pytest.mark.process
def test_program_that_does_not_exist_is_not_tried_again(home):
    pool = LocalPool(home, find_slots(1), {}, info_mounts=True)
    pool.launch(Launch("t", ["no-such-program"], variables()))
    ended = eventually(lambda: (state := pool.look("t")).state is State.ENDED and state.exit)
    assert ended.ending.value == "not launched"


def test_program_that_is_not_there_is_named(monkeypatch, capsys):
    monkeypatch.setattr(mount_view, "_make_view", lambda: None)
    with pytest.raises(SystemExit) as ended:
        mount_view.main(["no-such-program"])
    assert ended.value.code == 127
    assert "Could not start `no-such-program`: No such file or directory." in capsys.readouterr().err


def test_files_say_what_the_variables_say(world, tmp_path):
    config = SINGLE + "hyperparameters: {a: {b: 1.5}}\n"
    _, _, allocation_id = world.launch(config)
    environment = world.pool.launched[allocation_id].variables
    for name, content in mount_view.info_files(environment).items():
        (tmp_path / name).write_text(json.dumps(content))
    told = read_cluster_info(environment, Path("/nowhere"))
    secrets = {name: environment[name] for name in ("DET_USER", "DET_USER_TOKEN")}
    assert read_cluster_info(secrets, tmp_path) == told
