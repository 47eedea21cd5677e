"""`det model`, and what scripts say of models, against a real master: in a trial, in a job and outside."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

TRAIN = """
    import keras, numpy as np
    import det_keras as det
    with det.keras.init() as context:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        x = np.random.default_rng(0).normal(size=(32, 4))
        for epochs in (1, 3):
            context.fit(model, x, x.sum(1), validation_data=(x, x.sum(1)), epochs=epochs, verbose=0)
            print(context.register_model("sums", aliases=["candidate"], labels=["new"], description="of a script"))
    """
USE = """
    import det_keras as det
    with det.keras.init() as context:
        model = context.load_checkpoint_model()
        print("kernel", model.layers[-1].kernel.numpy().ravel().tolist())
        print(context.register_model("copies", checkpoint=context.config_data["uuid"]))
    """
TEST = """
    import det_keras as det
    with det.core.init() as core:
        found = det.experimental.client.get_model("sums").get_version("champion")
        core.experimental.report_task_using_model_version(found)
        core.train.report_metrics("test", 1, {"accuracy": 0.5})
    """
CONFIG = """
    name: sums
    entrypoint: python3 train.py
    searcher: {name: single, metric: val_loss}
    resources: {slots_per_trial: 0}
    checkpoint_storage: {save_experiment_best: 0, save_trial_best: 0, save_trial_latest: 0}
    """


@pytest.fixture(scope="module")
def det(cluster):
    for name, text in (("train.py", TRAIN), ("use.py", USE), ("test.py", TEST)):
        cluster.write(f"code/{name}", text)
    cluster.write("train.yaml", CONFIG)
    cluster.write("test.yaml", CONFIG.replace("train.py", "test.py"))
    return cluster


@pytest.fixture(scope="module")
def versions(det):
    """The two versions that a trial has registered."""
    done = det("experiment", "create", "train.yaml", "code", "--follow")
    assert done.returncode == 0, done.stdout + done.stderr
    return {one["version"]: one for one in det.json("model", "list-versions", "sums")}


def test_trial_registers_the_best_of_what_it_trained_so_far(det, versions):
    steps = [versions[number]["checkpoint"]["metadata"]["steps_completed"] for number in (1, 2)]
    assert steps == [1, 4]
    assert (versions[1]["aliases"], versions[2]["aliases"]) == ([], ["candidate"])
    assert (versions[2]["comment"], versions[2]["labels"]) == ("of a script", ["new"])
    # The policy keeps nothing, and versions are kept.
    assert {one["checkpoint"]["state"] for one in versions.values()} == {"STATE_COMPLETED"}


def test_job_loads_the_version_of_its_submission(det, versions):
    det.out("model", "alias", "sums:1", "champion")
    uuid = versions[1]["checkpoint"]["uuid"]
    det.write(
        "use.yaml",
        f"entrypoint: python3 use.py\nresources: {{slots: 0}}\nmodel: sums@champion\ndata: {{uuid: {uuid}}}\n",
    )
    done = det("job", "run", "use.yaml", "code")
    assert "kernel [" in done.stdout, done.stdout + done.stderr
    assert "model_name='copies', model_version=1" in done.stdout
    kernel = done.stdout.split("kernel ")[1].splitlines()[0]
    # Another job with the same config gets the version that the alias has then.
    det.out("model", "alias", "sums:2", "champion")
    assert f"kernel {kernel}" not in det.out("job", "run", "use.yaml", "code")
    det.out("model", "alias", "sums:1", "champion")
    det.write("use.yaml", "entrypoint: 'true'\nmodel: sums@nobody\n")
    assert "has no alias 'nobody', only" in det("job", "run", "use.yaml").stderr


def test_sdk_and_pages_of_metrics_know_who_uses_a_version(det, versions):
    det.out("model", "alias", "sums:1", "champion")
    assert det("experiment", "create", "test.yaml", "code", "--follow").returncode == 0
    code = """
from det_keras.experimental import client
model = client.get_model("sums")
version = model.get_version("champion")
print([(one.group, one.metrics) for one in version.iter_metrics()], version, model.get_version().model_version)
model.add_metadata({"team": "a"})
print(client.get_model(model.model_id).metadata, [one.model_version for one in model.list_versions()])
print([one.name for one in client.list_models(name="SUM")], "sums" in model._repr_html_())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=det.environment(), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "[('test', {'accuracy': 0.5})] ModelVersion(model_name='sums', model_version=1) 2",
        "{'team': 'a'} [2, 1]",
        "['sums'] True",
    ], done.stderr


def test_commands_do_what_they_say(det, versions, tmp_path):
    assert det.out("model", "create", "digits", "--label", "vision") == "Created model digits\n"
    assert "already" in det("model", "create", "DIGITS").stderr
    uuid = versions[2]["checkpoint"]["uuid"]
    for _ in range(2):
        printed = det.out("model", "register-version", "digits", uuid, "--alias", "champion")
        assert printed == f"Checkpoint {uuid} is version 1 of digits, champion\n"
    assert "champion: 1" in det.out("model", "list")
    assert "vision" in det.out("model", "describe", "digits@champion")
    path = det.out("model", "download", "digits@champion", "-o", str(tmp_path / "got")).strip()
    assert (tmp_path / "got" / "model.keras").is_file()
    assert path == str(tmp_path / "got")
    assert "in the registry" in det("checkpoint", "delete", uuid, "--yes").stderr
    assert det.out("model", "label", "digits", "reviewed") == "Labels of digits: vision, reviewed\n"
    assert det.out("model", "label", "digits", "vision", "--remove") == "Labels of digits: reviewed\n"
    det.out("model", "metadata", "digits", "accuracy=0.5", "by=ada")
    assert (
        det.out("model", "metadata", "digits", "by", "--remove") == 'Metadata of digits: {"accuracy": 0.5}\n'
    )
    det.out("model", "edit", "digits", "--new-name", "letters")
    det.out("model", "archive", "letters")
    assert "archived" in det("model", "label", "letters", "x").stderr
    assert "letters" in det.out("model", "list", "--archived")
    det.out("model", "unarchive", "letters")
    assert "letters@champion is no longer version 1" in det.out(
        "model", "alias", "letters:1", "champion", "--remove"
    )
    assert "Nothing was deleted" in det("model", "delete", "letters").stderr
    assert det.out("model", "delete", "letters:1", "--yes") == "Deleted version 1 of letters\n"
    assert det.out("model", "delete", "letters", "--yes") == "Deleted model letters\n"
    for wrong in (
        ("describe", "a/b"),
        ("describe", "nope"),
        ("download", "sums:99"),
        ("metadata", "sums", "x"),
    ):
        done = det("model", *wrong)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
