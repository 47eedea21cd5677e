"""Real commands against a real master that runs small scripts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import textwrap
import time

import pytest

from det_keras.home import Home

pytestmark = pytest.mark.process

TRAIN = """\
    import time
    from pathlib import Path
    import det_keras as det

    with det.core.init() as core:
        hparams = core.info.trial.hparams if core.info else {}
        for epoch in range(1, 4):
            counters = {"epochs": epoch, "batches": epoch * 10}
            core.train.report_training_metrics(epoch * 10, {"loss": 1 / epoch, **counters})
            core.train.report_validation_metrics(epoch * 10, {"val_loss": 1.5 / epoch, **counters})
            core.train.report_progress(epoch / 3)
            print("epoch", epoch, flush=True)
            gate = Path(hparams.get("gate", "/"))
            while not gate.exists():
                time.sleep(0.05)
        with core.checkpoint.store_path({"steps_completed": 30}) as (path, _):
            (path / "weights.bin").write_bytes(b"abc" * 100)
            (path / "code").mkdir()
            (path / "code" / "train.py").write_text("x")
    """
CONFIG = """\
    name: tiny
    entrypoint: python3 train.py
    hyperparameters: {learning_rate: 0.01}
    searcher: {name: single, metric: val_loss, max_length: {epochs: 3}}
    max_restarts: 0
    """


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("context/train.py", TRAIN)
    cluster.write("const.yaml", CONFIG)
    return cluster


@pytest.fixture(scope="module")
def finished(det):
    """The number of an experiment that completed, and what was printed meanwhile."""
    done = det("experiment", "create", "const.yaml", "context", "--follow")
    assert done.returncode == 0, done.stderr + done.stdout
    return int(done.stdout.split("Created experiment ")[1].split()[0]), done.stdout


@pytest.fixture
def held(det, tmp_path):
    """The number of an experiment that goes on only when its gate is opened, and the gate."""
    gate = tmp_path / "gate"
    printed = det.out(
        "experiment", "create", "const.yaml", "context", "--config", f"hyperparameters.gate={gate}"
    )
    number = int(printed.split("Created experiment ")[1].split()[0])
    yield number, gate
    det("experiment", "kill", str(number))


def until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def test_create_and_follow_tell_the_story(det, finished):
    number, printed = finished
    lines = printed.splitlines()

    assert lines[0].startswith("Preparing files (")
    size = len(textwrap.dedent(TRAIN))
    assert lines[0].endswith(f"context) to send to master... {size}B and 1 file")
    assert lines[1:3] == [f"Created experiment {number}", f"Activated experiment {number}"]
    assert lines[3:6] == [
        "epoch 1  training  loss 1.0  validation  val_loss 1.5",
        "epoch 2  training  loss 0.5  validation  val_loss 0.75",
        "epoch 3  training  loss 0.3333  validation  val_loss 0.5",
    ]
    assert lines[6] == f"Experiment {number} completed."
    assert lines[7].startswith("Best val_loss: 0.5 (trial ")
    assert lines[8].startswith("Best checkpoint: ")
    url = json.loads((det.home / "master.json").read_text())["url"]
    assert lines[9:] == [f"Its page: {url}/experiments/{number} (`det web {number}` logs a browser in)"]


def test_an_experiment_is_listed_described_and_logged(det, finished):
    number = str(finished[0])

    (listed,) = [one for one in det.json("experiment", "list") if str(one["id"]) == number]
    assert listed["state"] == "STATE_COMPLETED"
    assert det.json("e", "describe", number)["id"] == int(number)
    described = det.out("experiment", "describe", number)
    assert "learning_rate=0.01" in described
    assert "val_loss 0.5" in described
    log = det.out("experiment", "logs", number).splitlines()
    assert [line.rsplit("|| ", 1)[1] for line in log if "epoch" in line] == ["epoch 1", "epoch 2", "epoch 3"]
    assert det.out("experiment", "wait", number) == f"Experiment {number} is COMPLETED\n"
    assert json.loads(det.out("experiment", "config", number, "--json"))["name"] == "tiny"
    assert det.out("experiment", "config", number).startswith("name: tiny\n")


def test_a_trial_is_described_and_its_log_cut(det, finished):
    (trial,) = det.json("experiment", "list-trials", str(finished[0]))
    number = str(trial["id"])

    assert det.json("trial", "describe", number)["state"] == "STATE_COMPLETED"
    assert "State:           COMPLETED" in det.out("t", "describe", number)
    assert det.out("trial", "logs", number, "--head", "1").rstrip().endswith("epoch 1")
    for arguments in ([], ["--follow"]):
        (last,) = det.out("trial", "logs", number, "--tail", "1", *arguments).splitlines()
        assert last.endswith("epoch 3")


def test_of_many_reports_the_last_are_described(det):
    det.write(
        "many/train.py",
        """\
        import det_keras as det

        with det.core.init() as core:
            for step in range(1, 1001):
                core.train.report_training_metrics(step, {"loss": 1 / step})
            core.train.report_validation_metrics(1000, {"val_loss": 0.5})
        """,
    )
    printed = det.out("experiment", "create", "const.yaml", "many")
    number = printed.split("Created experiment ")[1].split()[0]
    det.out("experiment", "wait", number)
    (trial,) = det.json("experiment", "list-trials", number)
    for command in (["experiment", "describe", number], ["trial", "describe", str(trial["id"])]):
        described = det.out(*command)
        table, left = described.split("Batch ")[1].split("\n\n")[:2]
        lines = table.splitlines()[1:]
        assert [int(line.split()[0]) for line in lines] == [*range(803, 1001)]
        assert "val_loss 0.5" in lines[-1]
        assert (
            left.strip() == f"801 earlier reports: `det trial describe {trial['id']} --all` prints them too."
        )
    described = det.out("trial", "describe", str(trial["id"]), "--all")
    assert len(described.split("Batch ")[1].splitlines()) == 1001


def test_checkpoints_are_listed_described_and_downloaded(det, finished):
    number = str(finished[0])
    (record,) = det.json("experiment", "list-checkpoints", number, "--best", "1")
    uuid = record["uuid"]

    assert [one["uuid"] for one in det.json("checkpoint", "list", "--experiment", number)] == [uuid]
    assert uuid in det.out("checkpoint", "list", str(record["training"]["trialId"]))
    assert "weights.bin" in det.out("checkpoint", "describe", uuid)
    for name, arguments in {
        "a": ("checkpoint", "download", uuid, "-o", "a"),
        "b": ("checkpoint", "download", uuid, "-o", "b", "--mode", "master"),
        "c": ("trial", "download", str(record["training"]["trialId"]), "--latest", "-o", "c"),
        f"d/{uuid}": ("experiment", "download", number, "-o", "d"),
    }.items():
        target = det.directory / name
        assert det.out(*arguments) == f"{target}\n"
        assert (target / "weights.bin").read_bytes() == b"abc" * 100
        assert (target / "code" / "train.py").is_file()


def test_an_altered_checkpoint_is_not_downloaded(det, finished):
    (record,) = det.json("experiment", "list-checkpoints", str(finished[0]))
    path = det.home / "checkpoints" / record["uuid"] / "weights.bin"
    content = path.read_bytes()
    path.write_bytes(b"X" + content[1:])
    try:
        done = [
            det("c", "download", record["uuid"], "-o", "x", "--mode", mode) for mode in ("auto", "master")
        ]
    finally:
        path.write_bytes(content)

    assert all(one.returncode == 1 and "does not match its SHA-256" in one.stderr for one in done)
    assert not (det.directory / "x").exists()


def test_a_failing_script_shows_its_last_words(det):
    done = det(
        "experiment", "create", "const.yaml", "context", "-f", "--config", "entrypoint=python3 nowhere.py"
    )

    assert done.returncode == 1
    assert "nowhere.py': [Errno 2] No such file or directory" in done.stdout
    outcome, page = done.stdout.splitlines()[-2:]
    assert outcome.endswith("failed.")
    assert page.startswith("Its page: http://127.0.0.1:")


def test_pause_activate_and_cancel(det, held):
    number = str(held[0])

    assert det.out("experiment", "pause", number) == f"Paused experiment {number}\n"
    waited = det("experiment", "wait", number)
    assert (waited.returncode, waited.stdout) == (1, f"Experiment {number} is PAUSED\n")
    assert det.out("experiment", "activate", number) == f"Activated experiment {number}\n"
    assert det.out("experiment", "kill", number) == f"Killed experiment {number}\n"
    assert det("experiment", "wait", number).stdout == f"Experiment {number} is CANCELED\n"
    for verb in ("kill", "cancel"):
        again = det.out("experiment", verb, number)
        assert again == f"Experiment {number} has already ended: CANCELED\n"


def test_continue_changes_the_config_and_watches(det, tmp_path):
    printed = det.out("experiment", "create", "const.yaml", "context", "--follow")
    number = printed.split("Created experiment ")[1].split()[0]
    (tmp_path / "changes.yaml").write_text("description: twice\n")

    options = ["--config-file", str(tmp_path / "changes.yaml"), "--config", "max_restarts=2", "--follow"]
    printed = det.out("experiment", "continue", number, *options)

    assert printed.startswith(f"Continued experiment {number}\n")
    described = det.json("experiment", "describe", number)
    assert described["state"] == "STATE_COMPLETED"
    assert (described["config"]["description"], described["config"]["max_restarts"]) == ("twice", 2)
    refused = det("experiment", "continue", number, "--config", "searcher.name")
    assert (refused.returncode, refused.stderr.count("is invalid")) == (1, 1)


def test_a_paused_experiment_is_not_activated(det):
    printed = det.out("experiment", "create", "const.yaml", "context", "--paused")
    number = printed.split("Created experiment ")[1].split()[0]

    assert "Activated" not in printed
    assert det.json("experiment", "describe", number)["state"] == "STATE_PAUSED"


def test_an_interrupt_leaves_the_experiment_running(det, held):
    gate = held[1]
    process = det.start(
        "experiment", "create", "const.yaml", "context", "-f", "--config", f"hyperparameters.gate={gate}"
    )
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    created = next(line for line in lines if line.startswith("Created")).split()[2]
    next(line for line in lines if line.startswith("epoch 1"))

    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert (
        said == f"Experiment {created} continues. Follow it again with `det experiment logs -f {created}`.\n"
    )
    gate.touch()
    assert det.out("experiment", "wait", created) == f"Experiment {created} is COMPLETED\n"


@pytest.mark.kill
def test_following_survives_a_master_that_is_killed_and_comes_back(det, held):
    number, gate = held
    following = [
        det.start("experiment", "logs", "-f", str(number)),
        det.start("experiment", "wait", str(number)),
    ]
    assert following[0].stdout is not None
    assert following[0].stdout.readline().rstrip().endswith("epoch 1")

    os.kill(json.loads((det.home / "master.json").read_text())["pid"], signal.SIGKILL)
    det.out("deploy", "local", "cluster-up", "--slots", "4")
    gate.touch()

    log, state = (process.communicate(timeout=40)[0] for process in following)
    assert [line.rsplit("|| ", 1)[1] for line in log.splitlines() if "epoch" in line] == [
        "epoch 2",
        "epoch 3",
    ]
    assert state == f"Experiment {number} is COMPLETED\n"


def test_archive_and_delete(det):
    printed = det.out("experiment", "create", "const.yaml", "context", "--paused")
    number = printed.split("Created experiment ")[1].split()[0]
    det.out("experiment", "kill", number)
    until(lambda: det.rest(f"/api/v1/experiments/{number}")["experiment"]["state"] == "STATE_CANCELED")

    det.out("experiment", "archive", number)
    assert int(number) not in [one["id"] for one in det.json("experiment", "list")]
    assert int(number) in [one["id"] for one in det.json("experiment", "list", "--all")]
    det.out("experiment", "unarchive", number)
    assert det.out("experiment", "delete", number, "--yes") == f"Deleting experiment {number}\n"
    until(lambda: number not in [str(one["id"]) for one in det.rest("/api/v1/experiments")["experiments"]])
    assert det("experiment", "describe", number).stderr == f"experiment '{number}' not found\n"


def test_a_jobs_exit_code_is_that_of_the_command(det):
    det.write("job.yaml", "entrypoint: cat note.txt; exit 7\n")
    det.write("files/note.txt", "from the context\n")

    done = det("job", "run", "job.yaml", "files")

    assert done.returncode == 7
    assert "|| from the context\n" in done.stdout
    assert done.stderr.endswith("failed: exit code 7\n")
    assert det("job", "run", "job.yaml", "files", "--config", "entrypoint=cat note.txt").returncode == 0


def test_a_detached_job_is_listed_and_killed(det):
    det.write("long.yaml", "name: long\nentrypoint: echo begun; sleep 60\n")
    job_id = det.out("job", "run", "long.yaml", "--detach").split()[-1]

    until(lambda: det.rest(f"/api/v1/commands/{job_id}")["command"]["state"] == "STATE_RUNNING")
    following = det.start("job", "logs", "-f", job_id[:8])
    assert following.stdout is not None
    assert "begun" in following.stdout.readline()
    assert job_id in det.out("job", "list")
    assert det.out("job", "kill", job_id[:8]) == f"Killed job {job_id}\n"
    assert following.wait(timeout=60) == 0
    until(lambda: det.rest(f"/api/v1/commands/{job_id}")["command"]["state"] == "STATE_TERMINATED")
    assert [one["exitStatus"] for one in det.json("job", "list") if one["id"] == job_id] == ["killed"]


def test_a_script_runs_locally_without_a_master(det, tmp_path):
    det.write(
        "local/train.py",
        """\
        import os
        print(open(os.environ["DET_KERAS_LOCAL_CONFIG"]).read())
        print("over", os.environ["DET_KERAS_ENGINE"])
        print(sorted(name for name in os.environ if name.startswith("DET_") and not name.startswith("DET_KERAS_")))
        raise SystemExit(5)
        """,
    )
    nowhere = det.with_variables(
        DET_KERAS_HOME=str(tmp_path / "none"), DET_MASTER="http://127.0.0.1:1", DET_USER="x"
    )

    changes = ("--config", "searcher.metric=mine", "--config", "optimizations.collective_engine=builtin")
    done = nowhere("e", "create", "const.yaml", "local", "--local", *changes)

    assert done.returncode == 5
    assert "metric: mine" in done.stdout
    assert "over builtin\n" in done.stdout
    assert done.stdout.rstrip().endswith("[]")
    assert not (tmp_path / "none").exists()


def test_credentials_let_another_client_in(det, tmp_path):
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in det.out("deploy", "local", "credentials").splitlines()
    )
    other = det.with_variables(DET_KERAS_HOME=str(tmp_path / "other"), **exports)

    assert other.out("user", "whoami") == f"You are logged in to {exports['DET_MASTER']} as determined\n"
    assert det("-m", exports["DET_MASTER"], "master", "info").stdout.startswith("Master: ")
    wrong = other.with_variables(DET_PASS="wrong")("experiment", "list")
    assert wrong.returncode == 1
    assert wrong.stderr.startswith("Unauthenticated: ")
    assert wrong.stderr.count("\n") == 1


def test_login_and_logout(det, tmp_path):
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in det.out("deploy", "local", "credentials").splitlines()
    )
    other = det.with_variables(DET_KERAS_HOME=str(tmp_path / "other"), DET_MASTER=exports["DET_MASTER"])

    assert other("user", "login", "determined", input="nonsense\n").returncode == 1
    assert other("user", "login", "determined", input=exports["DET_PASS"] + "\n").returncode == 0
    assert other.json("user", "whoami")["username"] == "determined"
    assert other("user", "logout").returncode == 0
    assert other("user", "whoami").returncode == 1
    assert det("user", "whoami").returncode == 0


def test_a_token_that_the_master_does_not_know_says_what_to_do(det):
    done = det.with_variables(DET_USER_TOKEN="nonsense")("experiment", "list")

    assert done.returncode == 1
    assert done.stderr.startswith("Unauthenticated: the master does not accept the token")
    assert "det user login" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("experiment", "describe", "999"),
        ("experiment", "logs", "999"),
        ("experiment", "kill", "999"),
        ("trial", "describe", "999"),
        ("trial", "logs", "999"),
        ("checkpoint", "describe", "0" * 8),
    ],
    ids=" ".join,
)
def test_what_does_not_exist_is_one_line(det, arguments):
    done = det(*arguments)

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_an_error(det, tmp_path):
    port = json.loads((det.home / "master.json").read_text())["url"].rsplit(":", 1)[1]
    other = det.with_variables(DET_KERAS_HOME=str(tmp_path / "other"))

    done = other("deploy", "local", "cluster-up", "--port", port)

    assert done.returncode == 1
    assert "is taken" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_master_is_started_when_none_runs_and_outlives_the_command(det, tmp_path):
    fresh = det.with_variables(DET_KERAS_HOME=str(tmp_path / "fresh"), DET_KERAS_SLOTS="3")
    try:
        done = fresh("experiment", "list")
        url = json.loads((tmp_path / "fresh" / "master.json").read_text())["url"]

        assert (
            done.stderr == f"Started the embedded master at {url} (det deploy local cluster-down stops it).\n"
        )
        again = fresh("experiment", "list")
        assert (again.returncode, again.stderr) == (0, "")
        assert fresh("deploy", "local", "cluster-up").stdout.startswith(
            f"The embedded master already runs at {url}"
        )
        refused = fresh("deploy", "local", "cluster-up", "--info-mounts")
        assert (refused.returncode, "without --info-mounts" in refused.stderr) == (1, True)
    finally:
        stopped = fresh("deploy", "local", "cluster-down", "--kill")
    assert stopped.stdout == f"Stopped the embedded master at {url}.\n"
    assert fresh("deploy", "local", "cluster-down").stdout == "No embedded master is running.\n"
    with contextlib.suppress(FileNotFoundError):
        assert fresh("deploy", "local", "logs").returncode == 0


def test_a_search_can_be_previewed(det):
    assert "whole length" in det.out("preview-search", "const.yaml")


def test_unfinished_checkpoints_are_listed_and_removed(det):
    left = det.home / "checkpoints" / ".staging-elsewhere-7-1b671a64-40d5-491e-99b0-da01ff1f3341"
    left.mkdir(parents=True)
    assert "No unfinished checkpoints" in det.out("checkpoint", "gc", "--orphans")
    gc = ("checkpoint", "gc", "--orphans", "--older-than", "0")
    assert left.name in det.out(*gc, "--dry-run")
    refused = det(*gc)
    assert (refused.returncode, left.is_dir()) == (1, True)
    assert "Removed 1 unfinished" in det.out(*gc, "--yes")
    assert not left.exists()
    assert det("checkpoint", "gc", "--orphans", "--older-than=-1").returncode == 1


def test_other_files_with_secrets_of_the_config_are_named_and_its_copy_has_none(cluster):
    cluster.write("named/const.yaml", CONFIG + "data: {secrets: {token: hunter2-token, pin: '4711'}}\n")
    cluster.write("named/train.py", "TOKEN = 'hunter2-token'\n")
    cluster.write("named/clean.py", "print(4711)\n")
    done = cluster.start("experiment", "create", "named/const.yaml", "named", "--paused")
    _, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    (line,) = errors.splitlines()
    assert line.startswith(
        "Secrets of the config are also in these files, which are sent as they are: train.py. "
    )


def test_old_things_are_shown_before_they_are_deleted(det):
    run = Home(det.home).runs / "20260101-000000-1-x"
    run.mkdir(parents=True)
    (run / "lock").touch()
    (run / "metrics.jsonl").write_text("x" * 2048)
    shown = det.out("master", "prune")
    assert "runs without a master" in shown
    assert "2.0KB" in shown
    assert shown.endswith("Name what to delete: --logs DAYS, --runs DAYS, --environments, --audit DAYS.\n")
    assert "There is nothing to delete." in det.out("master", "prune", "--runs", "1")
    refused = det("master", "prune", "--runs", "0")
    assert refused.returncode == 1
    assert refused.stdout.endswith("Nothing was deleted.\n")
    assert run.exists()
    assert det.out("master", "prune", "--runs", "0", "--yes").endswith("Deleted 2.0KB.\n")
    assert not run.exists()
    assert "must be a number of days, 0 or more, received '-1'" in det("master", "prune", "--logs=-1").stderr
