"""Scripts that no master started and that report to one: what it knows of them, and how they resume."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import numpy as np
import pytest
import warm

from det_keras.client import Session
from det_keras.config import CheckpointStorage, load_experiment_config
from det_keras.config.secrets import masked
from det_keras.connection.settings import Settings
from det_keras.core.backend.base import ENGINE_FORMAT, CheckpointRecord
from det_keras.core.backend.output import OutputCopier
from det_keras.core.context import Context
from det_keras.core.script_end import ExitListener
from det_keras.errors import DetError, MasterUnavailableError
from master.detached_runs import open_detached
from master.fakes import eventually

SCRIPT = """
import sys, time
import keras
import numpy as np
import det_keras as det

target, batches = sys.argv[1], 48
ending = sys.argv[2] if len(sys.argv) > 2 else ""
config = {"scheduling_unit": 2, "min_checkpoint_period": {"batches": 5}, "min_validation_period": {"batches": 7},
          "labels": ["outside"], "searcher": {"name": "single", "metric": "val_loss"}}
context = det.keras.init(config=config, hparams={"units": 4}, project="team/digits", name="elsewhere",
                         external_id="mine")
print("run of trial", context.training.trial_id, "with seed", context.training.seed, flush=True)
keras.utils.set_random_seed(context.training.seed)
x = np.random.default_rng(0).normal(size=(96, 8)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(context.training.hparams["units"]),
                          keras.layers.Dropout(0.2), keras.layers.Dense(1)])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.01)), loss="mse")

class Slowly(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.03)

validation = context.wrap_data(x[:16], y[:16])
x, y = context.wrap_data(x, y)
context.fit(model, x=x, y=y, validation_data=validation, batch_size=8, epochs=4, callbacks=[Slowly()], verbose=0)
if ending == "badly":
    raise RuntimeError("it went wrong")
if ending == "exit":
    sys.exit(3)
np.savez(target, *model.get_weights())
"""


class Detached:
    """Starts the script as a user of a master does."""

    def __init__(self, root: Path, master) -> None:
        self.root, self.master = root, master
        (root / "train.py").write_text(SCRIPT)
        self.environment = {
            **os.environ,
            "DET_KERAS_HOME": str(master.home.root),
            "DET_KERAS_DETACHED": "1",
            "DET_MASTER": master.running.url,
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self.processes: list[warm.Popen] = []

    def start(self, *arguments: str, launcher: tuple[str, ...] = ()) -> warm.Popen:
        process = warm.Popen(
            [sys.executable, *launcher, str(self.root / "train.py"), *arguments],
            env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, *arguments: str, code: int = 0) -> str:
        output, _ = self.start(*arguments).communicate(timeout=120)
        assert self.processes[-1].returncode == code, output
        return output

    @property
    def experiment(self):
        found = self.master.client.get("/api/v1/experiments", params={"name": "elsewhere"})["experiments"]
        return found[-1] if found else None

    @property
    def trial(self):
        trials = self.master.client.trials(self.experiment["id"]) if self.experiment else []
        return self.master.client.trial(trials[0]["id"]) if trials else None

    def metrics(self, trial_id):
        """Return (group, batches, metrics) of all reports that count, in the order of batches."""
        found = []
        with Session(self.master.running.url, self.master.home.token_file.read_text()) as session:
            for group in ("training", "validation"):
                params = {"trialIds": trial_id, "group": group}
                for row in session.stream("/api/v1/trials/metrics/trial_metrics", params=params):
                    found += [(group, one["totalBatches"], one["metrics"]) for one in row["metrics"]]
        return found


@pytest.fixture
def detached(real, tmp_path):
    found = Detached(tmp_path, real)
    yield found
    for process in found.processes:
        process.kill()
        process.wait()


def weights(path):
    with np.load(path) as arrays:
        return [arrays[name] for name in arrays.files]


def has_trained(detached, batches):
    trial = detached.trial
    return trial is not None and trial["totalBatchesProcessed"] >= batches


@pytest.mark.process
@pytest.mark.kill
def test_killed_run_is_resumed_with_no_metric_doubled_or_lost(detached, tmp_path):
    detached.run(str(tmp_path / "undisturbed.npz"))
    reference = detached.experiment
    expected = detached.metrics(detached.trial["id"])
    assert [steps for group, steps, _ in expected if group == "training"] == list(range(2, 49, 2))
    client = detached.master.client
    client.call("DELETE", f"/api/v1/experiments/{reference['id']}")
    eventually(lambda: detached.experiment is None)

    seed = reference["config"]["reproducibility"]["experiment_seed"]
    moments = sorted(random.Random(seed).sample(range(3, 46), 2))
    source = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(
        source.replace('external_id="mine")', f'external_id="mine", seed={seed})')
    )
    for moment in moments:
        killed = detached.start(str(tmp_path / "never.npz"))
        eventually(functools.partial(has_trained, detached, moment), 60)
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    output = detached.run(str(tmp_path / "resumed.npz"))
    assert "Training continues from checkpoint" in output, (moments, output)
    trial = detached.trial
    assert detached.metrics(trial["id"]) == expected, moments
    assert (detached.experiment["state"], trial["state"]) == ("STATE_COMPLETED", "STATE_COMPLETED")
    assert len(client.trials(detached.experiment["id"])) == 1
    for ours, theirs in zip(
        weights(tmp_path / "resumed.npz"), weights(tmp_path / "undisturbed.npz"), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.process
def test_run_is_shown_with_its_names_hyperparameters_log_and_end(detached, tmp_path):
    detached.run(str(tmp_path / "weights.npz"), "badly", code=1)
    experiment, trial = detached.experiment, detached.trial
    assert (experiment["state"], experiment["unmanaged"]) == ("STATE_ERROR", True)
    assert experiment["labels"] == ["outside"]
    assert (experiment["workspaceName"], experiment["projectName"]) == ("team", "digits")
    assert trial["hparams"] == {"units": 4}
    assert trial["totalBatchesProcessed"] == 48
    log = [line["log"] for line in detached.master.client.log(trial["id"])]
    assert any(line.startswith(f"run of trial {trial['id']} with seed") for line in log)
    assert "RuntimeError: it went wrong\n" in log
    # Started again, it knows that it had been trained to the end.
    assert "Training continues from" in detached.run(str(tmp_path / "weights.npz"), "exit", code=3)
    assert detached.experiment["state"] == "STATE_ERROR"
    detached.run(str(tmp_path / "weights.npz"))
    assert detached.experiment["state"] == "STATE_COMPLETED"
    kept = detached.master.client.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    files = [one["uuid"] for one in kept if one["state"] == "STATE_COMPLETED"]
    assert 2 <= len(files) <= 3
    runs = detached.master.home.runs
    assert sorted(path.parent.name for path in runs.glob("*/checkpoints/*/manifest.json")) == sorted(files)


@pytest.mark.process
def test_of_several_workers_the_chief_reports(detached, tmp_path):
    launcher = ("-m", "det_keras.launch.distributed", "--np", "2", "--", sys.executable)
    process = detached.start(str(tmp_path / "weights.npz"), launcher=launcher)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    trial = detached.trial
    assert (trial["state"], trial["totalBatchesProcessed"]) == ("STATE_COMPLETED", 24)
    assert len(detached.master.client.trials(detached.experiment["id"])) == 1
    training = [steps for group, steps, _ in detached.metrics(trial["id"]) if group == "training"]
    assert training == list(range(2, 25, 2))
    own = [line for line in detached.master.client.log(trial["id"]) if line["log"].startswith("run of trial")]
    assert [line["rankId"] for line in own] == [0]


# What a user is told who cannot be served.


@pytest.fixture
def attempt(shared, tmp_path, monkeypatch):
    """Open a run on a real master as a user of it."""
    from det_keras.keras import detached

    def make(*, project=None, external_id=None, seed=None, session=None, **environ):
        environ = {"DET_KERAS_HOME": str(shared.home.root), "DET_MASTER": shared.running.url, **environ}
        request = detached.DetachedRequest(Settings.from_environment(environ), project, "name", external_id)
        if session is not None:
            monkeypatch.setattr(detached, "open_session", lambda _: session)
        config = load_experiment_config({}, alone=True).config
        return detached.open_run(
            request, config, {}, run_dir=tmp_path / "run", seed=seed, sample=lambda _: {}, rank=None
        )

    return make


@pytest.mark.process
def test_user_without_a_login_is_told_the_command(attempt, shared, tmp_path):
    url = shared.running.url
    other = {"DET_KERAS_HOME": str(tmp_path / "other")}
    with pytest.raises(DetError, match=f"Log in with `det -m {url} user login`"):
        attempt(**other)
    with pytest.raises(DetError, match="does not accept the stored login"):
        attempt(**other, DET_USER="determined", DET_USER_TOKEN="stale")
    # What failed left the run directory to the next attempt.
    attempt().backend.close()


@pytest.mark.process
def test_master_that_does_not_answer_is_named(attempt):
    with pytest.raises(MasterUnavailableError, match=r"No answer from the master at http://127\.0\.0\.1:1"):
        attempt(DET_MASTER="http://127.0.0.1:1", DET_USER="a", DET_USER_TOKEN="b")


@pytest.mark.process
def test_external_id_of_another_user_is_refused(attempt, shared):
    password = shared.home.admin_password_file.read_text()
    attempt(external_id="theirs", DET_USER="admin", DET_PASS=password).backend.close()
    with pytest.raises(
        DetError, match=r"'theirs' belongs to experiment .* of user 'admin', and you are 'determined'"
    ):
        attempt(external_id="theirs")


@pytest.mark.process
def test_seed_of_the_first_start_holds_and_another_is_refused(attempt):
    first = attempt(external_id="seeded")
    first.backend.close()
    again = attempt(external_id="seeded")
    again.backend.close()
    assert again.seed == first.seed
    with pytest.raises(DetError, match=f"was begun with seed {first.seed}, not {first.seed + 1}"):
        attempt(external_id="seeded", seed=first.seed + 1)


@pytest.mark.process
def test_run_that_is_open_is_not_opened_twice(attempt):
    run = attempt(external_id="open")
    with pytest.raises(DetError, match=f"in use by process {os.getpid()}"):
        attempt(external_id="open")
    run.backend.close()


@pytest.mark.process
def test_project_that_the_master_does_not_know_is_named(attempt):
    """A Determined master refuses it; ours creates it."""
    answer = httpx.Response(404, json={"error": {"code": 5, "error": "workspace 'w' not found"}})
    refusing = Session("http://m", "token", transport=httpx.MockTransport(lambda _: answer))
    with pytest.raises(DetError, match=r"workspace 'w' not found\. Is there a project 'w/p'"):
        attempt(project="w/p", session=refusing)


# The backend itself, on a master in this process.


@pytest.fixture
def open_backend(world, tmp_path):
    opened = []

    def make(external_id="mine", **options):
        opened.append(open_detached(world, tmp_path, external_id, **options))
        return opened[-1]

    yield make
    for backend in opened:
        backend.close()


def leave(*code):
    """Do what ends a script that is no test."""
    with pytest.raises(SystemExit):
        sys.exit(*code)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda backend: None, "COMPLETED"),
        (lambda backend: backend.note_error(ValueError("wrong")), "ERROR"),
        (lambda backend: backend.note_error(SystemExit(0)), "COMPLETED"),
        (lambda backend: backend.note_error(SystemExit("why")), "ERROR"),
        (lambda backend: leave(3), "ERROR"),
        (lambda backend: leave(), "COMPLETED"),
        (lambda backend: backend.report_early_exit("EXITED_REASON_INVALID_HP"), "ERROR"),
        # SIGTERM, after whose checkpoint `fit` raises SystemExit.
        (lambda backend: (backend.acknowledge_preemption(), backend.note_error(SystemExit(143))), "CANCELED"),
        (lambda backend: backend.note_error(KeyboardInterrupt()), "CANCELED"),
    ],
    ids=[
        "end",
        "error",
        "exit 0",
        "exit text",
        "sys.exit(3)",
        "sys.exit()",
        "invalid",
        "terminated",
        "Ctrl-C",
    ],
)
def test_how_the_script_ends_is_the_state(open_backend, client, end, state):
    backend = open_backend()
    assert client.trial(backend.run.trial_id)["state"] == "STATE_RUNNING"
    end(backend)
    backend.close()
    assert client.trial(backend.run.trial_id)["state"] == f"STATE_{state}"


@pytest.mark.parametrize("kind", ["core", "keras"])
def test_exception_that_leaves_a_with_block_is_a_failure(open_backend, client, kind):
    backend = open_backend()
    context = Context(backend, backend._place.storage)
    if kind == "keras":
        settings = pytest.importorskip("det_keras.keras.training.settings").FitSettings()
        from det_keras.keras.context import KerasContext
        from det_keras.keras.script import Script

        script = Script(context, settings, seed=0)
        context = KerasContext(script, None, config_data={}, on_close=lambda: None)
    with pytest.raises(ValueError, match="wrong"), context:
        raise ValueError("wrong")
    assert client.trial(backend.run.trial_id)["state"] == "STATE_ERROR"


def test_external_id_leads_to_the_same_trial_and_none_to_a_new_one(open_backend):
    runs = [open_backend(name).run for name in ("mine", "mine", None, None)]
    assert len({run.trial_id for run in runs}) == 3
    assert [run.run_id for run in runs] == [1, 2, 1, 1]


def test_heartbeats_are_sent_and_a_user_who_ends_the_experiment_stops_the_script(open_backend, client, world):
    backend = open_backend(heartbeat_s=0.02)
    assert backend.wait_for_preemption(0.0) is False
    client.move(backend.run.experiment_id, "kill")
    assert backend.wait_for_preemption(10.0) is True
    backend.acknowledge_preemption()
    backend.close()
    assert client.experiment(backend.run.experiment_id)["state"] == "STATE_CANCELED"


def test_superfluous_checkpoints_are_deleted_once_a_newer_one_is_reported(open_backend, client):
    backend = open_backend()
    storage = backend._place.storage
    names = []
    for steps in (1, 2, 3, 4):
        names.append(f"00000000-0000-4000-8000-00000000000{steps}")
        with storage.store_path(names[-1]) as folder:
            (folder / "state").write_text("x")
        # The second is the best.
        metadata = {"format": ENGINE_FORMAT, "phase": 0, "searcher_metric": abs(steps - 2)}
        backend.report_checkpoint(CheckpointRecord(names[-1], steps, storage.list_files(names[-1]), metadata))
    assert [record.uuid for record in backend.checkpoints()] == [names[3], names[2], names[1]]
    assert [storage.exists(name) for name in names] == [False, True, True, True]


def test_run_metadata_stay_here_so_that_a_determined_master_can_start_the_trial_again(open_backend, client):
    backend = open_backend()
    assert backend.set_run_metadata({"a": 1}) == backend.run_metadata() == {"a": 1}
    assert not client.get(f"/api/v1/runs/{backend.run.trial_id}/metadata")["metadata"]


def test_no_secret_of_a_storage_is_in_the_log():
    places = pytest.importorskip("det_keras.keras.detached")._PLACE_FIELDS
    hidden = masked({"checkpoint_storage": dict.fromkeys(CheckpointStorage.names(), "x")})[
        "checkpoint_storage"
    ]
    assert {name for name, value in hidden.items() if value != "x"}.isdisjoint(places)


def test_only_the_exit_of_the_script_counts():
    listener = ExitListener()
    try:
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
        assert listener.code is None
        with pytest.raises(SystemExit):
            sys.exit(4)
        assert listener.code == 4
    finally:
        listener.remove()


# Copies of the output.


class Lines:
    """Receives lines, and fails on request."""

    def __init__(self) -> None:
        self.received: list[dict] = []
        self.failures: list[Exception] = []

    def __call__(self, lines) -> None:
        if self.failures:
            raise self.failures.pop()
        self.received += lines

    @property
    def texts(self):
        return [(line["stdtype"], line["log"]) for line in self.received]


def test_printed_lines_are_copied_and_still_printed(capsys):
    send, stream, write = Lines(), sys.stdout, sys.stdout.write
    copier = OutputCopier("task", None, send, period_s=0.01)
    assert sys.stdout is stream
    print("one\ntwo")
    print("WARNING: three", file=sys.stderr)
    print("10%\r20%\rdone")
    print("no newline", end="")
    copier.close()
    print("after")
    assert [text for name, text in send.texts if name == "stdout"] == [
        "one\n",
        "two\n",
        "done\n",
        "no newline\n",
    ]
    assert [(line["level"], line["log"]) for line in send.received if line["stdtype"] == "stderr"] == [
        ("LOG_LEVEL_WARNING", "three\n")
    ]
    assert capsys.readouterr().out == "one\ntwo\n10%\r20%\rdone\nno newlineafter\n"
    assert sys.stdout.write == write


def test_lines_wait_for_a_master_that_does_not_answer(capsys):
    send = Lines()
    send.failures = [MasterUnavailableError("away"), MasterUnavailableError("away")]
    copier = OutputCopier("task", 2, send, period_s=0.01)
    print("one")
    print("two")
    eventually(lambda: len(send.received) == 2)
    copier.close()
    assert [(line["log"], line["rank_id"]) for line in send.received] == [("one\n", 2), ("two\n", 2)]


def test_each_line_has_a_time_of_its_own(capsys):
    send = Lines()
    copier = OutputCopier("task", None, send, period_s=0.01)
    print("same\n" * 1500)
    copier.close()
    times = [line["timestamp"] for line in send.received]
    assert len(times) == 1501
    assert sorted(set(times)) == times


# What the arguments mean.


def test_environment_and_arguments_decide_whether_a_run_is_detached(monkeypatch):
    request = pytest.importorskip("det_keras.keras.detached").DetachedRequest
    nothing = {"master": None, "project": None, "name": None, "external_id": None}
    assert request.read({"DET_MASTER": "http://m"}, **nothing) is None
    assert request.read({"DET_MASTER": "http://m", "DET_KERAS_DETACHED": "0"}, **nothing) is None
    found = request.read({"DET_MASTER": "http://m", "DET_KERAS_DETACHED": "1"}, **nothing)
    assert found.settings.master == "http://m"
    assert request.read({}, **{**nothing, "master": "http://n"}).settings.master == "http://n"


@pytest.mark.parametrize("project", ["alone", "a/b/c", "/b", "a/", ""])
def test_project_that_is_no_path_is_refused(project):
    request = pytest.importorskip("det_keras.keras.detached").DetachedRequest
    with pytest.raises(ValueError, match="must be 'workspace/project'"):
        request.read({}, master="m", project=project, name=None, external_id=None)


def test_names_without_a_master_are_told_to_have_no_effect(caplog):
    request = pytest.importorskip("det_keras.keras.detached").DetachedRequest
    assert request.read({}, master=None, project=None, name=None, external_id="mine") is None
    assert "have no effect: this script reports to no master" in caplog.text
