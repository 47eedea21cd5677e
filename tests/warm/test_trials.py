"""Tasks of an embedded master in forks: what its fork server starts is warm, and otherwise as usual."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

import warm
from det_keras.launch.fork_server import ForkServer
from det_keras.launch.importable import importable
from warm.program import READ_EARLY
from warm.trials import variables

pytestmark = pytest.mark.process

#: What a task needs to be a fork, as far as this machine sets it.
KEPT = {"TF_CPP_MIN_LOG_LEVEL", *READ_EARLY} & set(os.environ)

SCRIPT = """
import json, os, sys, time
print(json.dumps({
    "warm": "tensorflow" in sys.modules, "argv": sys.argv, "path": sys.path[0], "folder": os.getcwd(),
    "leads": os.getsid(0) == os.getpid(), "parent": os.getppid(), "python path": os.environ.get("PYTHONPATH"),
    "variables": sorted(set(os.environ) - {"LC_CTYPE", "PYTHONPATH"}),
}), flush=True)
if sys.argv[1:] == ["wait"]:
    time.sleep(600)
sys.exit(5)
"""


@pytest.fixture(scope="module")
def server():
    with warm.warm_trials():
        environment = importable(os.environ)
    assert warm.SITE not in os.environ.get("PYTHONPATH", "")
    server = ForkServer(environment)
    yield server, environment
    server.close()


@pytest.fixture
def start(server, tmp_path):
    """Start a command, by the warm server or by another one, and return the directory of its supervisor."""

    def start_command(argv, by=server):
        fork_server, environment = by
        directory, work = tmp_path / "allocation", tmp_path / "work"
        directory.mkdir()
        work.mkdir()
        (work / "task.py").write_text(SCRIPT)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        kept = {name: environment[name] for name in ("PYTHONPATH", *KEPT)}
        spec = {
            "argv": argv,
            "environment": {**kept, "PATH": path},
            "directory": str(work),
            "context": None,
        }
        (directory / "spec.json").write_text(json.dumps(spec))
        with (directory / "supervisor.log").open("wb") as output, Path(os.devnull).open("rb") as stdin:
            fork_server.start_supervisor(
                directory / "spec.json", stdin=stdin.fileno(), output=output.fileno()
            )
        return directory

    return start_command


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def entries(directory):
    return [json.loads(line)["m"] for line in (directory / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("argv", "is_warm"),
    [
        (["sh", "-c", "python3 task.py a"], True),
        ([sys.executable, "task.py", "a"], True),
        (["python3", "-m", "determined.launch.tensorflow", "--", "python3", "task.py", "a"], True),
        (["sh", "-c", "cd . && python3 task.py a"], False),
        (["sh", "-c", "python3 task.py $SHLVL a"], False),
        ([sys.executable, "-u", "task.py", "a"], False),
    ],
    ids=["command", "program", "replaced launcher", "list", "variable", "option"],
)
def test_task_is_a_fork_if_it_is_a_program_alone(argv, is_warm, start, tmp_path):
    directory = start(argv)
    wait_for(directory / "exit.json")
    assert json.loads((directory / "exit.json").read_text())["exit_code"] == 5
    found = json.loads(entries(directory)[0])
    assert found["warm"] == is_warm
    assert (found["argv"][0], found["argv"][-1]) == ("task.py", "a")
    assert found["path"] == found["folder"] == str(tmp_path / "work")
    assert found["leads"] == (argv[-1] != "cd . && python3 task.py a")
    assert warm.SITE not in (found["python path"] or "")
    # A launcher has our `determined` come first.
    own = {"DET_KERAS_COMPAT"} if "determined.launch.tensorflow" in argv else set()
    assert set(found["variables"]) - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", *KEPT, *own}


def test_where_no_door_is_open_the_fork_server_is_a_usual_one(start, tmp_path):
    environment = importable({**os.environ, **variables(tmp_path / "none")})
    usual = ForkServer(environment)
    try:
        directory = start(["python3", "task.py"], by=(usual, environment))
        wait_for(directory / "exit.json")
    finally:
        usual.close()
    assert not json.loads(entries(directory)[0])["warm"]


def test_killed_supervisor_takes_a_forked_task_along(start):
    directory = start(["sh", "-c", "python3 task.py wait"])
    wait_for(directory / "log.jsonl")
    found = json.loads(entries(directory)[0])
    supervisor = psutil.Process(found["parent"])
    assert supervisor.pid == int((directory / "supervisor.lock").read_text())
    assert found["warm"]
    tasks = [one for one in supervisor.children() if os.getpgid(one.pid) == one.pid]
    supervisor.kill()
    assert psutil.wait_procs(tasks, timeout=20)[1] == []
