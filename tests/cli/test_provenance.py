"""What real commands and a real trial record, and that nothing of it is sent to a Determined master."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

import pytest
from provenance.git_repository import NOBODY, Repository

from det_keras.provenance.process import installed_packages

pytestmark = pytest.mark.process

TRAIN = """\
    import det_keras as det

    with det.core.init() as core:
        core.train.report_validation_metrics(1, {"val_loss": 1.0})
    """
CONFIG = """\
    name: tiny
    entrypoint: python3 train.py --token hunter2
    searcher: {name: single, metric: val_loss}
    max_restarts: 0
    """


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("repository/context/train.py", TRAIN)
    cluster.write("repository/const.yaml", CONFIG)
    Repository(cluster.directory / "repository").write("train.py", "changed\n")
    return type(cluster)(
        cluster.home,
        cluster.directory / "repository",
        {**NOBODY, "HUNTER": "hunter2-variable", "API_TOKEN": "hunter2-token"},
    )


def recorded(det, path):
    return det.rest(f"/api/v1/{path}/provenance")["provenance"]


def test_submission_and_trial_are_recorded(det):
    printed = det.out(
        "experiment", "create", "const.yaml", "context", "-f", "--config", "data.secret=hunter2"
    )
    number = int(printed.split("Created experiment ")[1].split()[0])
    record = recorded(det, f"experiments/{number}")
    assert record["command"] == (
        "det experiment create const.yaml context -f --config 'data.secret=********'"
    )
    assert (record["host"], record["directory"]) == (socket.gethostname(), str(det.directory))
    git = Repository.git
    at = type("At", (), {"root": det.directory})
    assert record["repository"]["commit"] == git(at, "rev-parse", "HEAD").strip()
    assert record["repository"]["diff"] == git(at, "diff", "HEAD") != ""
    assert record["packages"] == installed_packages()

    trial = det.rest(f"/api/v1/experiments/{number}/trials")["trials"][0]["id"]
    trained = recorded(det, f"trials/{trial}")
    assert trained["command"] == "python3 train.py --token '********'"
    assert Path(trained["directory"]).parent == det.home / "work"
    assert trained["packages"] == installed_packages()
    assert trained["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert "repository" not in trained
    # The master's and the user's variables are in neither.
    assert "hunter2" not in json.dumps([record, trained])


def test_job_is_recorded(det):
    det.write("job.yaml", "entrypoint: 'true'\n")
    job = det.out("job", "run", "job.yaml", "--detach").split()[-1]
    record = recorded(det, f"commands/{job}")
    assert record["command"] == "det job run job.yaml --detach"
    assert record["repository"]["branch"] == "trunk"


def test_submission_without_git_is_recorded_without_a_repository(det):
    printed = det.with_variables(PATH="/nowhere").out(
        "experiment", "create", "const.yaml", "context", "--paused"
    )
    record = recorded(det, f"experiments/{printed.split('Created experiment ')[1].split()[0]}")
    assert record["packages"]
    assert "repository" not in record


def test_variable_turns_it_off(det):
    printed = det.with_variables(DET_KERAS_PROVENANCE="0").out(
        "experiment", "create", "const.yaml", "context", "--paused"
    )
    assert recorded(det, f"experiments/{printed.split('Created experiment ')[1].split()[0]}") is None


def test_determined_master_receives_nothing_of_it(det, stub, monkeypatch):
    bodies = []
    answer = stub.answer

    def remember(request):
        length = int(request.headers.get("Content-Length") or 0)
        content = request.rfile.read(length)
        bodies.append((request.path, content))
        request.headers.replace_header("Content-Length", "0") if length else None
        answer(request)

    stub.answer = remember
    stub.answers |= {"/info": {"version": "0.38.1"}, "/api/v1/experiments": {"experiment": {"id": 3}}}
    away = det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="t")
    away.out("experiment", "create", "const.yaml", "context")
    (sent,) = [json.loads(content) for path, content in bodies if path == "/api/v1/experiments"]
    assert sent.keys() == {"config", "modelDefinition", "activate"}
