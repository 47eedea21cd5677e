"""Scripts of the older generations through the master: a TFKerasTrial tutorial, and one with DeterminedCallback."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import warm
import yaml
from conftest import small_data

from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"


def create(cluster, tmp_path, example, file="const.yaml", **changes):
    """Create the experiment of an example with a changed config."""
    config = yaml.safe_load((EXAMPLES / example / file).read_text())
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**config, **changes}))
    experiment = cluster.create(path, EXAMPLES / example)
    return experiment, cluster.trial(experiment)


def ended(cluster, experiment, trial):
    """Return the log of an experiment that has to end well."""
    state = cluster.wait(experiment)
    log = "".join(cluster.logs(trial))
    assert state == "STATE_COMPLETED", log[-3000:]
    return log


def test_mnist_tutorial_trains_its_4000_batches_with_4_validations(cluster, tmp_path):
    data = small_data(tmp_path / "mnist.npz", (28, 28), 6400)
    experiment, trial = create(cluster, tmp_path, "mnist_trial", data={"path": str(data)})
    log = ended(cluster, experiment, trial)
    validations = cluster.metrics(trial, "validation")
    assert [batches for batches, _ in validations] == [1000, 2000, 3000, 4000]
    assert validations[-1][1]["val_accuracy"] > 0.9
    assert [batches for batches, _ in cluster.metrics(trial, "training")] == [
        100 * step for step in range(1, 41)
    ]
    assert cluster.final_digest(trial)[0] == 4000
    assert "batch 4000: validation val_accuracy: " in log


@pytest.mark.parametrize(
    ("example", "shape", "changes"),
    [
        ("fashion_mnist", (28, 28), {"records_per_epoch": 320, "searcher_length": {"epochs": 2}}),
        (
            "cifar10",
            (32, 32, 3),
            {"searcher_length": {"batches": 12}, "min_validation_period": {"batches": 5}},
        ),
    ],
)
def test_other_trials_train_on_small_data(cluster, tmp_path, example, shape, changes):
    data = small_data(tmp_path / f"{example}.npz", shape, 320)
    searcher = {
        "name": "single", "metric": "val_accuracy", "smaller_is_better": False,
        "max_length": changes.pop("searcher_length"),
    }  # fmt: skip
    experiment, trial = create(
        cluster, tmp_path, example, data={"path": str(data)}, searcher=searcher, **changes
    )
    ended(cluster, experiment, trial)
    expected = [10, 20] if example == "fashion_mnist" else [5, 10, 12]
    assert [batches for batches, _ in cluster.metrics(trial, "validation")] == expected


EPOCHS = 80


@pytest.fixture(scope="module")
def iris(cluster, tmp_path_factory):
    """Return the iris experiment, paused in the middle and gone on to its end, with the log."""
    hparams = {"learning_rate": 0.01, "batch_size": 4, "epochs": EPOCHS}
    folder = tmp_path_factory.mktemp("iris")
    experiment, trial = create(cluster, folder, "iris", hyperparameters=hparams)
    cluster.wait_for_epoch(trial, 3)
    cluster.det("experiment", "pause", experiment)
    # The state says that a pause was asked for; the checkpoint, that the process is done with its epoch.
    path = f"/api/v1/trials/{trial['id']}/checkpoints"
    before = cluster.until(lambda: cluster.get(path)["checkpoints"])[0]["metadata"]["epoch"]
    cluster.det("experiment", "activate", experiment)
    return experiment, trial, before, ended(cluster, experiment, trial)


def test_determined_callback_goes_on_with_the_right_epoch(cluster, iris):
    _, trial, before, log = iris
    assert 3 <= before < EPOCHS, "the pause came too late to show anything"
    assert f"ends after epoch {before} and continues from there" in log
    assert re.search(rf"Training continues from checkpoint \S+ after epoch {before}\.", log)
    for group in ("training", "validation"):
        rows = cluster.metrics(trial, group)
        assert [metrics["epochs"] for _, metrics in rows] == list(range(1, EPOCHS + 1))
        assert [batches for batches, _ in rows] == [30 * epoch for epoch in range(1, EPOCHS + 1)]
    # `checkpoint_epochs=0`: at the pause and at the end.
    found = cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    assert sorted(one["metadata"]["epoch"] for one in found) == [before, EPOCHS]


def test_another_trials_checkpoint_is_a_warm_start_at_epoch_0(cluster, iris, tmp_path):
    _, trial, _, _ = iris
    searcher = {
        "name": "single", "metric": "val_accuracy", "smaller_is_better": False, "source_trial_id": trial["id"],
    }  # fmt: skip
    hparams = {"learning_rate": 0.01, "batch_size": 4, "epochs": 1}
    experiment, warm = create(cluster, tmp_path, "iris", searcher=searcher, hyperparameters=hparams)
    log = ended(cluster, experiment, warm)
    assert "training begins at epoch 0" in log
    fresh, first = cluster.metrics(trial, "validation")[0][1], cluster.metrics(warm, "validation")
    assert [metrics["epochs"] for _, metrics in first] == [1]
    # After one epoch it is where a training from the beginning is not.
    assert first[0][1]["val_loss"] < fresh["val_loss"] / 2


def test_events_are_kept_and_tensorboard_shows_them(cluster, iris):
    pytest.importorskip("tensorboard")
    experiment, trial, _, _ = iris
    cluster_id = cluster.get("/api/v1/master")["clusterId"]
    stored = (
        cluster.home.checkpoints
        / cluster_id
        / "tensorboard/experiment"
        / str(experiment)
        / f"trial/{trial['id']}"
    )
    assert {path.parent.name for path in stored.rglob("events*")} >= {"train", "validation", "training"}
    process = subprocess.Popen(
        [sys.executable, "-m", "det_keras.cli", "tensorboard", "start", str(experiment), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cluster.environ,
    )  # fmt: skip
    try:
        line = next(line for line in process.stdout if "http://" in line)
        address = re.search(r"http://\S+", line).group().rstrip("/")

        def runs():
            with urllib.request.urlopen(f"{address}/data/runs") as answer:
                found = yaml.safe_load(answer.read())
            return found if any(name.endswith("/validation") for name in found) else None

        assert any(
            name.startswith(f"experiment-{experiment}-trial-{trial['id']}") for name in cluster.until(runs)
        )
    finally:
        process.send_signal(2)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((), "Nothing to show"), (("999",), "999"), (("--run-dir", "nowhere"), "no run directory nowhere")],
    ids=["nothing", "unknown", "no_run"],
)
def test_tensorboard_over_nothing_is_an_error(cluster, arguments, message):
    done = cluster.det("tensorboard", "start", *arguments, check=False)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


OLD = """
import keras
import determined as det
import determined.keras

core_context = det.core.init()
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.Adam(lr=0.1), "mse")
"""


def test_habit_of_keras_2_is_named_at_the_end_of_the_log(cluster, tmp_path):
    (tmp_path / "old.py").write_text(OLD)
    config = tmp_path / "old.yaml"
    config.write_text(yaml.safe_dump({
        "name": "old", "entrypoint": "python3 old.py", "max_restarts": 0,
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 1}},
    }))  # fmt: skip
    experiment = cluster.create(config, tmp_path)
    assert cluster.wait(experiment) == "STATE_ERROR"
    log = "".join(cluster.logs(cluster.trial(experiment)))
    hint = log[log.rindex("Hint: ") :]
    assert 'old.py, line 8: model.compile(keras.optimizers.Adam(lr=0.1), "mse")' in hint
    assert "`lr` is called `learning_rate` in Keras 3." in hint


CORE = """
import pathlib
import determined as det

def main(core_context):
    assert core_context.train.get_metadata() == {}
    core_context.train.set_metadata({"lot": {"size": 3}})
    batches = 0
    for operation in core_context.searcher.operations():
        while batches < operation.length:
            batches += 1
            core_context.train.report_training_metrics(batches, {"loss": 1 / batches})
            operation.report_progress(batches)
        core_context.train.report_validation_metrics(batches, {"val_loss": 1 / batches})
        folder = pathlib.Path("out")
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(str(batches))
        uuid = core_context.checkpoint.upload(folder, {"steps_completed": batches, "note": "x"})
        operation.report_completed(1 / batches)
    (core_context.train.get_tensorboard_path() / "events.mine").write_text("e")
    core_context.train.upload_tensorboard_files()
    core_context.backend.flush()
    assert core_context.checkpoint.get_metadata(uuid)["note"] == "x"
    core_context.checkpoint.download(uuid, "again")
    assert pathlib.Path("again/weights").read_text() == "7"
    with core_context.checkpoint.store_path({"steps_completed": batches}) as (path, doomed):
        (path / "a").write_text("b")
    core_context.checkpoint.delete(doomed)
    print("doomed", doomed)

mode = det.core.TensorboardMode.MANUAL
with det.core.init(preempt_mode=det.core.PreemptMode.ChiefOnly, tensorboard_mode=mode) as core_context:
    main(core_context)
"""


def test_core_script_of_the_original_does_everything(cluster, tmp_path):
    (tmp_path / "script.py").write_text(CORE)
    config = tmp_path / "core.yaml"
    config.write_text(yaml.safe_dump({
        "name": "core", "entrypoint": "python3 script.py", "max_restarts": 0,
        "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 7}},
    }))  # fmt: skip
    experiment = cluster.create(config, tmp_path)
    trial = cluster.trial(experiment)
    log = ended(cluster, experiment, trial)
    assert [batches for batches, _ in cluster.metrics(trial, "training")] == [1, 2, 3, 4, 5, 6, 7]
    assert cluster.metrics(trial, "validation") == [(7, {"val_loss": 1 / 7})]
    assert cluster.get(f"/api/v1/runs/{trial['id']}/metadata")["metadata"] == {"lot": {"size": 3}}
    found = cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    states = {one["uuid"]: one["state"] for one in found}
    doomed = log.split("doomed ")[1].split()[0]
    assert states.pop(doomed) == "STATE_DELETED"
    assert list(states.values()) == ["STATE_COMPLETED"]
    assert not (cluster.home.checkpoints / doomed).exists()
    assert [path.read_text() for path in cluster.home.checkpoints.rglob("events.mine")] == ["e"]


NATIVE = """
import sys
import keras
import numpy as np
from determined.experimental.keras import init

config = {
    "name": "native", "hyperparameters": {"global_batch_size": 8}, "max_restarts": 0,
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 6}},
}
context = init(config, test="--test" in sys.argv, master_url=sys.argv[1] if len(sys.argv) > 1 else None)
model = context.wrap_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))
model.compile("sgd", "mse")
x = np.ones((40, 2), "float32")
history = model.fit(x, x[:, :1], validation_data=(x, x[:, :1]), verbose=0)
print("trained on", context.get_per_slot_batch_size(), "samples a batch")
"""


def test_script_submits_itself_and_trains(cluster, tmp_path):
    (tmp_path / "native.py").write_text(NATIVE)
    with open_session(Settings(cluster.home)) as session:
        url = session.url
    environ = {**cluster.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "det_keras/compat/path")}
    command = [sys.executable, str(tmp_path / "native.py"), url]
    done = warm.run(command, capture_output=True, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    experiment = int(done.stdout.split("Created experiment ")[1].split()[0])
    trial = cluster.trial(experiment)
    assert "trained on 8 samples a batch" in ended(cluster, experiment, trial)
    assert [batches for batches, _ in cluster.metrics(trial, "validation")][-1] == 6
    assert cluster.final_digest(trial)[0] == 6
