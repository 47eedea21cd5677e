"""The examples and the ready configs, submitted unchanged, and run in containers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from amount import chosen
from examples.conftest import small_data
from examples.test_exact_experiments import CONFIG, EPOCHS, STEPS

from cluster import scripts

pytestmark = pytest.mark.process
ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
JOBS = ("job.yaml", "batch_inference.yaml")
CONFIGS = [
    path
    for path in sorted([*(ROOT / "configs").glob("*.yaml"), *EXAMPLES.glob("*/*.yaml")])
    if path.name not in (*JOBS, "tpe.yaml")
]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_config_is_accepted_as_it_is(double, path):
    experiment = double.create(path, path.parent, "--paused")
    assert double.get(f"/api/v1/experiments/{experiment}")["experiment"]["state"] == "STATE_PAUSED"
    double.det("experiment", "kill", experiment)


def test_digits_train_to_their_end_and_a_job_predicts_with_their_model(double, tmp_path):
    digits = EXAMPLES / "digits"
    printed = double.det("experiment", "create", digits / "const.yaml", digits, "--follow").stdout
    best = re.search(r"Best val_accuracy: (0\.\d+)", printed)
    assert best is not None
    assert float(best[1]) >= 0.97
    trial = double.trial(re.search(r"Created experiment (\d+)", printed)[1])
    assert not [line for line in double.logs(trial) if "HTTP" in line]
    evaluated = dict(double.metrics(trial, "test"))[900]["accuracy"]
    job = double.det(
        "job", "run", digits / "batch_inference.yaml", digits,
        "--config", f"data.trial_id={trial['id']}", "--config", f"data.output={tmp_path / 'out'}",
    ).stdout  # fmt: skip
    assert f"accuracy: {evaluated:.4f}" in job


# The pictures are few and simple, and the lengths short; the configs are otherwise as they are.
TRIALS = {
    "mnist_trial/const.yaml": ((28, 28), ["searcher.max_steps=2"]),
    "fashion_mnist/const.yaml": ((28, 28), ["records_per_epoch=320", "searcher.max_length.epochs=2"]),
    "fashion_mnist/distributed.yaml": ((28, 28), ["records_per_epoch=320", "searcher.max_length.epochs=2"]),
    "cifar10/const.yaml": (
        (32, 32, 3),
        ["searcher.max_length.batches=12", "min_validation_period.batches=5"],
    ),
}


@pytest.mark.parametrize("name", chosen(TRIALS, [name for name in TRIALS if name.endswith("/const.yaml")]))
def test_trial_classes_and_launchers_run_in_containers(double, tmp_path, name):
    shape, changes = TRIALS[name]
    data = small_data(tmp_path / "data.npz", shape, 640)
    options = [part for change in (f"data.path={data}", *changes) for part in ("--config", change)]
    experiment = double.create(EXAMPLES / name, (EXAMPLES / name).parent, *options)
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    assert double.metrics(trial, "validation")


def test_a_script_with_a_determined_callback_runs_by_our_launcher(double):
    experiment = double.create(
        EXAMPLES / "iris/const.yaml", EXAMPLES / "iris", "--config", "hyperparameters.epochs=3"
    )
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    assert len(double.metrics(trial, "validation")) == 3


def test_mnist_trains_in_a_container(double, tmp_path):
    (tmp_path / "datasets").mkdir()
    small_data(tmp_path / "datasets" / "mnist.npz", (28, 28), 640)
    # Keras would download its own file in place of one with another checksum. What makes the container has this module
    # as well, and does not need Keras.
    patch = (
        "import sys\n"
        "if sys.orig_argv[-1] == 'train.py':\n"
        "    from keras.src.utils import file_utils\n"
        "    file_utils.validate_file = lambda *_, **__: True\n"
    )
    (tmp_path / "sitecustomize.py").write_text(patch)
    variables = f"[KERAS_HOME={tmp_path}, PYTHONPATH={tmp_path}]"
    experiment = double.create(
        EXAMPLES / "mnist/const.yaml", EXAMPLES / "mnist", "--config", "searcher.max_length.epochs=1",
        "--config", f"environment.environment_variables={variables}",
    )  # fmt: skip
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    assert double.metrics(trial, "validation")


@pytest.mark.parametrize(
    "name", chosen(["adaptive_asha", "const", "random", "grid"], ["const", "random", "grid"])
)
def test_ready_configs_run_to_their_end(double, tmp_path, name):
    (tmp_path / "train.py").write_text(scripts.REPORTS.replace("else 4", "else 16"))
    experiment = double.create(ROOT / "configs" / f"{name}.yaml", tmp_path)

    assert double.wait(experiment) == "STATE_COMPLETED"
    trials = double.get(f"/api/v1/experiments/{experiment}/trials", limit=-1)["trials"]
    assert {trial["state"] for trial in trials} == {"STATE_COMPLETED"}


def test_the_ready_job_runs_to_its_end(double, tmp_path):
    (tmp_path / "predict.py").write_text(
        "import det_keras as det; print(det.get_cluster_info().task_config['data'])"
    )
    printed = double.det("job", "run", ROOT / "configs/job.yaml", tmp_path).stdout
    assert "{'trial_id': 1, 'batch_size': 64}" in printed


@pytest.fixture
def exact(submit):
    def make(**changes):
        script = (ROOT / "tests" / "examples" / "slow_train.py").read_text()
        return submit(script, **{**CONFIG, "entrypoint": "python3 train.py", **changes})

    return make


@pytest.mark.kill
def test_killed_and_paused_trials_end_with_the_weights_of_an_undisturbed_one(double, exact, tmp_path):
    first = exact()
    undisturbed = double.trial(first)
    gate = tmp_path / "gate"
    experiment = exact(environment=double.environment(f"GATE={gate}"))
    trial = double.trial(experiment)
    double.wait_for_epoch(trial, 1)
    running = double.processes(trial)
    assert running
    for one in running.values():
        one.kill()
    double.until(lambda: double.get(f"/api/v1/trials/{trial['id']}")["trial"].get("restarts"))
    double.wait_for_epoch(trial, 2)
    double.det("experiment", "pause", experiment)
    gate.touch()
    double.until(lambda: not double.processes(trial))
    double.det("experiment", "activate", experiment)

    assert double.wait(experiment) == double.wait(first) == "STATE_COMPLETED"
    assert double.final_digest(trial) == double.final_digest(undisturbed)
    assert double.final_digest(trial)[0] == EPOCHS * STEPS
    assert double.metrics(trial, "validation") == double.metrics(undisturbed, "validation")
