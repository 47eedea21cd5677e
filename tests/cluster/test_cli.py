"""Every command of `det` against the double: none makes a call that a real master refuses."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from importing.stores import Written, events, mlflow_files, simple

from cluster import scripts
from det_keras.cli.command_tree import command_tree
from det_keras.cli.commands.tensorboard import events_of
from det_keras.cli.main import command_parser

pytestmark = pytest.mark.process
#: Of this machine alone, or told of by another test.
LOCAL = {
    "agent disable",
    "agent enable",
    "completion",
    "deploy local cluster-down",
    "deploy local cluster-up",
    "deploy local credentials",
    "deploy local logs",
    "master audit",
    "master backup",
    "master check",
    "master copy-database",
    "master prune",
    "master restore",
    "tensorboard start",
    "experiment add-trial",
    "experiment narrow",
    "experiment retain-logs",
    "experiment move",
    "experiment share",
    "experiment unshare",
    "model alias",
    "model archive",
    "model create",
    "model delete",
    "model describe",
    "model download",
    "model edit",
    "model label",
    "model list",
    "model list-versions",
    "model metadata",
    "model move",
    "model register-version",
    "model unarchive",
    "project archive",
    "project create",
    "project delete",
    "project describe",
    "project edit",
    "project list",
    "project move",
    "project note",
    "project unarchive",
    "slot disable",
    "slot enable",
    "template create",
    "template describe",
    "template list",
    "template remove",
    "template set",
    "token create",
    "token describe",
    "token edit",
    "token list",
    "token login",
    "token revoke",
    "trial extend",
    "trial list",
    "trial retain-logs",
    "trial stop",
    "user activate",
    "user change-password",
    "user create",
    "user deactivate",
    "user list",
    "version",
    "webhook create",
    "webhook delete",
    "webhook deliveries",
    "webhook describe",
    "webhook edit",
    "webhook list",
    "webhook test",
    "workspace archive",
    "workspace create",
    "workspace delete",
    "workspace describe",
    "workspace edit",
    "workspace list",
    "workspace pin",
    "workspace unarchive",
    "workspace unpin",
}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def ended(double, submit):
    """An experiment that has ended, with its trial."""
    experiment = submit(scripts.REPORTS, labels=["a"], description="d")
    assert double.wait(experiment) == "STATE_COMPLETED"
    return experiment, double.trial(experiment)


def test_reading_commands_show_what_was_reported(double, ended, tmp_path):
    experiment, trial = ended

    assert "test" in double.det("experiment", "list").stdout
    described = json.loads(double.det("experiment", "describe", experiment, "--json").stdout)
    assert described
    assert "0.25" in double.det("experiment", "list-trials", experiment).stdout
    assert "0.25" in double.det("experiment", "list-checkpoints", experiment).stdout
    assert yaml.safe_load(double.det("experiment", "config", experiment).stdout)["preemption_timeout"] == 3600
    assert double.det("experiment", "wait", experiment).returncode == 0
    double.det("experiment", "logs", experiment)
    assert "makes no reports" in double.det("experiment", "report", experiment, check=False).stderr
    assert "0.25" in double.det("trial", "describe", trial["id"]).stdout
    double.det("trial", "logs", trial["id"])
    assert "determined" in double.det("user", "whoami").stdout
    assert "0.38.1" in double.det("master", "info").stdout
    assert "free" in double.det("slot", "list").stdout
    assert "Slots" in double.det("agent", "list").stdout
    assert double.det("web", experiment).stdout == f"{double.url}/det/experiments/{experiment}\n"


def test_tensorboard_finds_the_trials(double, ended):
    experiment, trial = ended
    with double.session() as session:
        (name,) = events_of(session, [experiment], [])
    assert name == f"experiment-{experiment}-trial-{trial['id']}"


def test_trials_are_listed_best_first(double, submit):
    space = {"learning_rate": {"type": "double", "minval": 0.1, "maxval": 1.0}}
    searcher = {"name": "random", "metric": "val_loss", "max_trials": 3}
    experiment = submit(scripts.REPORTS, hyperparameters=space, searcher=searcher)
    double.wait(experiment)
    listed = json.loads(double.det("experiment", "list-trials", experiment, "--json").stdout)
    best = [trial["bestValidation"]["metrics"]["avgMetrics"]["val_loss"] for trial in listed]
    assert best == sorted(best)
    assert len(set(best)) == 3


def test_checkpoints_are_downloaded_through_the_master_and_removed(double, ended, tmp_path):
    experiment, trial = ended
    double.det("experiment", "download", experiment, "-o", tmp_path / "best")
    assert next((tmp_path / "best").rglob("state")).read_text() == "4"
    double.det("trial", "download", trial["id"], "--best", "-o", tmp_path / "trial")
    listed = json.loads(double.det("checkpoint", "list", "--experiment", experiment, "--json").stdout)
    uuid = next(one["uuid"] for one in listed if one["state"] == "STATE_COMPLETED")
    assert "state" in double.det("checkpoint", "describe", uuid).stdout
    double.det("checkpoint", "download", uuid, "-o", tmp_path / "one")
    assert "only det_keras's own" in double.det("checkpoint", "gc", "--orphans", check=False).stderr
    double.det("checkpoint", "rm", uuid, "--glob", "sta*", "--yes")
    double.det("checkpoint", "delete", uuid, "--yes")
    double.until(lambda: not (double.storage / uuid).exists())


def test_an_experiment_is_moved_through_its_states(double, submit):
    slow = scripts.REPORTS.replace("else 4", "else 400").replace(
        "        if core.preempt", "        time.sleep(0.1)\n        if core.preempt"
    )
    experiment = submit(slow)
    trial = double.trial(experiment)
    double.until(lambda: len(double.metrics(trial, "validation")) > 2)
    double.det("experiment", "pause", experiment)
    double.until(lambda: not double.get("/api/v1/tasks").get("allocationIdToSummary"))
    double.det("experiment", "activate", experiment)
    before = len(double.metrics(trial, "validation"))
    double.until(lambda: len(double.metrics(trial, "validation")) > before)
    double.det("trial", "kill", trial["id"])
    double.wait(experiment)
    double.det("experiment", "cancel", experiment)
    double.det("experiment", "kill", experiment)
    double.det("experiment", "archive", experiment)
    double.det("experiment", "unarchive", experiment)
    double.det("experiment", "delete", experiment, "--yes")


def test_an_experiment_is_continued_with_a_changed_section(double, ended):
    experiment, _ = ended
    double.det("experiment", "continue", experiment, "--config", "searcher.max_length.batches=50", "-f")

    config = double.get(f"/api/v1/experiments/{experiment}")["config"]
    assert config["searcher"]["max_length"] == {"batches": 50}
    assert config["searcher"]["metric"] == "val_loss"


def test_a_search_is_previewed_and_tpe_is_refused_with_the_reason(double):
    assert "16" in double.det("preview-search", ROOT / "configs/random.yaml").stdout
    for command in (["preview-search"], ["experiment", "create"]):
        done = double.det(
            *command,
            ROOT / "configs/tpe.yaml",
            *([ROOT / "configs"] if len(command) > 1 else []),
            check=False,
        )
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "The searcher `tpe` needs the master of det_keras: a Determined master has no such method. Use "
            "`adaptive_asha` or `random` there, or leave out `-m` and DET_MASTER to search on this machine."
        ]


@pytest.mark.parametrize("command", [["experiment", "create"], ["job", "run", "--detach"]], ids=" ".join)
def test_packages_that_a_container_does_not_get_are_named(double, tmp_path, command):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "r.txt").write_text("numpy\n")
    searcher = "searcher: {name: single, metric: m}\nmax_restarts: 0\n" if command[0] == "experiment" else ""
    config = "entrypoint: 'true'\nenvironment: {pip: [numpy], requirements: r.txt}\n"
    (tmp_path / "config.yaml").write_text(config + searcher)
    done = double.det(*command, tmp_path / "config.yaml", tmp_path / "files")

    assert (
        "`environment.pip`, `environment.requirements` have no effect on a Determined cluster: a container has the "
        "packages of its image." in done.stderr
    )


def test_jobs_are_generic_tasks(double, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "predict.py").write_text(
        "import det_keras as det\nprint(det.get_cluster_info().task_config['data'], det.get_cluster_info().task_type)\n"
    )
    (tmp_path / "job.yaml").write_text(
        "name: n\nentrypoint_script: python3 predict.py\ndata: {y: n, z: 1.5}\n"
    )
    done = double.det("job", "run", tmp_path / "job.yaml", tmp_path / "files")
    assert "{'y': 'n', 'z': 1.5} GENERIC" in done.stdout

    (tmp_path / "long.yaml").write_text("entrypoint: sleep 100; exit 3\n")
    job = double.det("job", "run", tmp_path / "long.yaml", "--detach").stdout.split()[-1]
    double.until(lambda: job in double.det("job", "list").stdout)
    queued = json.loads(double.det("job", "queue", "--json").stdout)
    (number,) = [one["jobId"] for one in queued if one["entityId"] == job]
    double.det("job", "update", number, "--priority", 40)
    double.det("job", "kill", job[:8])
    double.until(lambda: job not in double.det("job", "list").stdout)
    double.det("job", "logs", job)

    (tmp_path / "fails.yaml").write_text("entrypoint: exit 7\n")
    assert double.det("job", "run", tmp_path / "fails.yaml", check=False).returncode == 7


def test_a_job_whose_config_fits_no_variable_is_refused(double, tmp_path):
    (tmp_path / "job.yaml").write_text(f"entrypoint: 'true'\ndata: {{x: {'a' * 140_000}}}\n")
    done = double.det("job", "run", tmp_path / "job.yaml", check=False)

    assert done.returncode == 1
    assert "put large `data` into a file" in done.stderr


@pytest.mark.parametrize(
    ("files", "entrypoint", "warned"),
    [
        ({"train.py": "import determined\n"}, "python3 train.py", ["train.py"]),
        (
            {"train.py": "import det_keras\n", "lib.py": "from determined import core\n"},
            "python3 train.py",
            ["lib.py"],
        ),
        ({"train.py": "import det_keras\nimport determined_tools\n"}, "python3 train.py", []),
        (
            {"train.py": "import determined\n"},
            "python3 -m det_keras.launch.tensorflow -- python3 train.py",
            [],
        ),
    ],
)
def test_scripts_of_the_original_package_are_named_before_they_are_submitted(
    double, tmp_path, files, entrypoint, warned
):
    (tmp_path / "context").mkdir()
    for name, text in files.items():
        (tmp_path / "context" / name).write_text(text)
    config = {"entrypoint": entrypoint, "searcher": {"name": "single", "metric": "m"}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    done = double.det("experiment", "create", tmp_path / "config.yaml", tmp_path / "context", "--paused")

    named = re.findall(r"^(\S+) imports `determined`", done.stderr, re.MULTILINE)
    assert named == warned


def test_the_cluster_is_checked_by_a_training_with_a_pause(double):
    printed = double.det("cluster", "check", "--submit").stdout
    outcomes = dict(re.findall(r"^(\w+) +(ok|note|FAILED) ", printed, re.MULTILINE))

    assert outcomes == {
        "master": "ok",
        "login": "ok",
        "slots": "ok",
        "storage": "note",
        "features": "note",
        "submit": "ok",
        "train": "ok",
        "pause": "ok",
        "resume": "ok",
        "log": "ok",
    }, printed
    assert re.search(r"continued at batch \d+ and ended at batch 20; each epoch was reported once", printed)
    assert re.search(r"TensorFlow 2\.\d+\.\d+, Keras 3", printed)


def test_a_check_names_what_fails_and_what_to_do(double):
    done = double.det(
        "cluster",
        "check",
        "--submit",
        "--config",
        'entrypoint=python3 -I -S -c "import det_keras"',
        check=False,
    )

    assert done.returncode == 1
    assert re.search(r"^train +FAILED .*No module named 'det_keras'", done.stdout, re.MULTILINE)
    assert "--config environment.image=IMAGE" in done.stdout.splitlines()[-1]


def test_a_login_is_kept_for_the_cluster(double, monkeypatch):
    for name in ("DET_USER", "DET_USER_TOKEN"):
        monkeypatch.delitem(double.environ, name)
    refused = double.det("user", "whoami", check=False)
    assert f"`det -m {double.url} user login`" in refused.stderr
    monkeypatch.setitem(double.environ, "DET_PASS", double.cluster_home.password_file.read_text().strip())
    double.det("user", "login", "determined")
    monkeypatch.delitem(double.environ, "DET_PASS")
    assert "determined" in double.det("user", "whoami").stdout
    double.det("user", "logout")
    assert double.det("user", "whoami", check=False).returncode == 1


def test_a_check_with_a_wrong_token_says_how_to_log_in(double, monkeypatch):
    monkeypatch.setitem(double.environ, "DET_USER_TOKEN", "wrong")
    done = double.det("cluster", "check", check=False)

    assert done.returncode == 1
    assert re.search(r"^login +FAILED ", done.stdout, re.MULTILINE)
    assert f"`det -m {double.url} user login NAME`" in done.stdout


def test_runs_of_other_trackers_are_not_imported(double, tmp_path):
    folder = tmp_path / "wandb" / "run-20260102_030405-first001"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "tests/importing/files/run-first001.wandb", folder)
    events(tmp_path / "logs", (1, [simple("loss", 1.0)]))
    store = mlflow_files(tmp_path, [Written("a")])
    for tracker, path in (("mlflow", store), ("wandb", folder), ("tensorboard", tmp_path / "logs")):
        refused = double.det("import", tracker, path, check=False)
        assert refused.returncode == 1
        assert "only by det_keras's own master" in refused.stderr


def test_no_command_is_left_out(double):
    commands = command_tree(command_parser()).walk()
    leaves = {command.path.removeprefix("det ") for command in commands if not command.commands}
    called = {" ".join(words[:count]) for words in double.called for count in (1, 2, 3)}

    assert leaves - called == LOCAL
