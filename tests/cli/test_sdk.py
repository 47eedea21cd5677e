"""Scripts with the names of Determined's SDK: they submit, read and download, or say what is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from det_keras.compat import with_determined

pytestmark = pytest.mark.process

TRAIN = """\
    import det_keras as det

    with det.core.init() as core:
        for step in (1, 2):
            core.train.report_validation_metrics(step, {"loss": 1.0 / step})
        with core.checkpoint.store_path({"steps_completed": 2}) as (path, _):
            (path / "weights.bin").write_bytes(b"abc")
    """
CONFIG = {
    "name": "of the SDK",
    "entrypoint": "python3 train.py",
    "searcher": {"name": "single", "metric": "loss"},
    "resources": {"slots_per_trial": 0},
    "labels": ["mine"],
}
# Of `determined.experimental` and its client in 0.38.1.
NAMES = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentReference",
    "Model",
    "ModelOrderBy",
    "ModelSortBy",
    "ModelVersion",
    "OrderBy",
    "Project",
    "Trial",
    "TrialOrderBy",
    "TrialReference",
    "TrialSortBy",
    "client",
]
CLIENT_NAMES = [
    "Checkpoint",
    "Determined",
    "Experiment",
    "ExperimentState",
    "Model",
    "Project",
    "Trial",
    "TrialMetrics",
    "User",
    "Workspace",
    "add_oauth_client",
    "create_experiment",
    "create_model",
    "create_user",
    "create_workspace",
    "delete_workspace",
    "get_checkpoint",
    "get_experiment",
    "get_model",
    "get_model_by_id",
    "get_model_labels",
    "get_models",
    "get_session_username",
    "get_trial",
    "get_user_by_id",
    "get_user_by_name",
    "get_workspace",
    "iter_trials_metrics",
    "list_experiments",
    "list_models",
    "list_oauth_clients",
    "list_users",
    "list_workspaces",
    "login",
    "logout",
    "remove_oauth_client",
    "stream_trials_metrics",
    "stream_trials_training_metrics",
    "stream_trials_validation_metrics",
    "whoami",
]


@pytest.fixture(scope="module")
def run(cluster):
    """Run Python code as a script of Determined beside a running master."""
    cluster.write("context/train.py", TRAIN)

    def run(code, **environ):
        environ = with_determined({**os.environ, "DET_KERAS_HOME": str(cluster.home), **environ}, first=True)
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=cluster.directory, env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return run


def test_script_submits_waits_reads_and_downloads(run):
    done = run(
        f"""
from determined.experimental import Determined, ExperimentReference, Model, client
determined = Determined()
experiment = determined.create_experiment({CONFIG}, "context")
assert isinstance(experiment, ExperimentReference)
assert experiment.wait() == "COMPLETED"
found = determined.list_experiments(labels=["mine"], states=["COMPLETED"])
assert [one.id for one in found] == [experiment.id] and not determined.list_experiments(labels=["other"])
trial, = determined.get_experiment(experiment.id).list_trials()
reports = list(client.iter_trials_metrics([trial.id]))
print([(report.steps_completed, report.metrics["loss"]) for report in reports])
checkpoint = determined.get_checkpoint(experiment.top_checkpoint().uuid)
path = checkpoint.download("downloaded")
print(open(path + "/weights.bin").read(), client.get_trial(trial.id).id == trial.id)
"""
    )
    assert done.stdout == "[(1, 1.0), (2, 0.5)]\nabc True\n", done.stderr


def test_config_that_is_wrong_is_named_in_one_line(run):
    wrong = {**CONFIG, "max_restarts": -1}
    done = run(
        f"""
import det_keras.errors
from determined.experimental import client
try:
    client.create_experiment({wrong}, "context")
except det_keras.errors.DetError as error:
    print(error)
"""
    )
    assert "max_restarts" in done.stdout, done.stderr
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("determined.experimental", NAMES),
        ("determined.experimental.client", CLIENT_NAMES),
        ("det_keras.experimental", NAMES),
    ],
)
def test_every_name_can_be_imported(run, module, names):
    done = run(f"from {module} import {', '.join(names)}")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("used", "name"),
    [
        ("TrialSortBy.ID", "client.TrialSortBy"),
        ("client.list_oauth_clients()", "client.list_oauth_clients"),
        ("Determined().list_oauth_clients()", "Determined.list_oauth_clients"),
        ("isinstance(1, TrialSortBy)", "client.TrialSortBy"),
    ],
)
def test_what_is_not_there_says_what_to_do(run, used, name):
    done = run(
        f"from determined.experimental.client import Determined, TrialSortBy; "
        f"from determined.experimental import client; {used}"
    )
    last = done.stderr.splitlines()[-1]
    assert f"det_keras has no `determined.experimental.{name}`. Install the original" in last
    assert "det deploy local credentials" in last


def test_workspaces_projects_and_users_are_those_of_the_commands(run):
    done = run(
        """
from determined.experimental import client
workspace = client.create_workspace("sdk")
project = workspace.create_project("digits", "Handwriting")
project.set_key("DIG")
project.add_note("Baseline", "SGD")
project.add_note("Other", "Adam")
project.remove_note("Other")
project.archive()
found = client.get_workspace("sdk").get_project("digits")
print(found.key, found.description, found.archived, found.notes, found.list_experiments())
project.unarchive()
workspace.delete_project("digits")
print([one.name for one in workspace.list_projects()], "sdk" in [one.name for one in client.list_workspaces()])
client.delete_workspace("sdk")
me = client.whoami()
print(me.username == client.get_session_username(), client.get_user_by_id(me.user_id).username == me.username)
print(client.get_user_by_name("admin").admin, len(client.list_users(active=True)) > 1)
client.get_workspace("sdk")
"""
    )
    assert done.stdout.splitlines() == [
        "DIG Handwriting True [{'name': 'Baseline', 'contents': 'SGD'}] []",
        "[] True",
        "True True",
        "True True",
    ], done.stderr
    assert done.stderr.splitlines()[-1].endswith("There is no workspace 'sdk'.")


def test_argument_that_is_not_there_is_named(run):
    done = run("from determined.experimental import client; client.list_experiments(sort_by='x', users=None)")
    assert done.stderr.splitlines()[-1].endswith("`list_experiments` of det_keras has no `sort_by`.")


def test_password_of_the_environment_is_only_for_its_user(run, cluster):
    """Another user needs a password, or an earlier login."""
    code = "from determined.experimental import Determined; Determined(user='bob')"
    done = run(code, DET_USER="alice", DET_PASS="secret of alice")
    assert "there is no token of user 'bob'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    "line",
    [
        "import determined.pytorch",
        "from determined.pytorch import PyTorchTrial",
        "from determined.common import api",
        "import determined.transformers",
    ],
)
def test_other_parts_of_the_package_are_named(run, line):
    done = run(line)
    assert "det_keras provides `determined` here" in done.stderr.splitlines()[-1]
    assert run(f"try:\n    {line}\nexcept ImportError: pass").returncode == 0


def test_what_is_not_there_may_be_written_in_annotations(run):
    done = run(
        """
from determined.experimental import Model, client
def use(model: Model | None, other: None | client.User) -> "client.Workspace": ...
"""
    )
    assert done.returncode == 0, done.stderr


def test_name_that_nobody_has_is_a_mistake(run):
    assert "ImportError: cannot import name 'Modl'" in run("from determined.experimental import Modl").stderr


def test_login_connects_the_functions(run, cluster):
    url = json.loads((cluster.home / "master.json").read_text())["url"]
    done = run(
        f"""
import det_keras.errors
from determined.experimental import client
client.login({url!r})
print(client.list_experiments(name="nobody"))
client.logout()
print(client.list_experiments(name="nobody"))
client.login("http://127.0.0.1:1")
"""
    )
    assert done.stdout == "[]\n[]\n"
    assert "there is no token for the master" in done.stderr or "nothing listens" in done.stderr
    # The token of the machine's account is still good.
    assert cluster("user", "whoami").returncode == 0
