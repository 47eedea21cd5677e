"""The examples, used as the README says."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import warm
from conftest import EXAMPLES

pytestmark = pytest.mark.process

DIGITS = EXAMPLES / "digits"


@pytest.fixture(scope="module")
def trained(cluster):
    """Run the README's first command and return what it printed."""
    return cluster.det("experiment", "create", DIGITS / "const.yaml", DIGITS, "--follow").stdout


def test_readme_command_trains_digits_to_the_end(trained):
    assert re.search(r"Preparing files \(.*digits\) to send to master\.\.\. \d+\.\dKB and \d files", trained)
    assert re.search(r"^Created experiment \d+$", trained, re.MULTILINE)
    assert re.search(r"^Activated experiment \d+$", trained, re.MULTILINE)
    best = re.search(r"Best val_accuracy: (0\.\d+)", trained)
    assert best is not None
    assert float(best[1]) >= 0.97
    assert re.search(r"Best checkpoint: [0-9a-f-]{36}", trained)


def test_follow_prints_one_line_an_epoch_and_how_to_load_the_model(trained):
    epochs = re.findall(r"^epoch (\d+)  training  loss .*  validation  val_loss ", trained, re.MULTILINE)
    assert epochs == [str(epoch) for epoch in range(1, len(epochs) + 1)]
    assert len(re.findall(r"^epoch ", trained, re.MULTILINE)) == len(epochs) > 1

    line = re.search(r"^Load its best model: (.*)$", trained, re.MULTILINE)[1]
    code = f"import keras; print({line}.count_params())"
    done = warm.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) > 0


def test_batch_inference_predicts_what_evaluate_measured(cluster, trained, tmp_path):
    experiment = int(re.search(r"Created experiment (\d+)", trained)[1])
    trial = cluster.trial(experiment)
    evaluated = dict(cluster.metrics(trial, "test"))[900]["accuracy"]
    output = tmp_path / "predictions.txt"
    printed = cluster.det(
        "job", "run", DIGITS / "batch_inference.yaml", DIGITS,
        "--config", f"data.trial_id={trial['id']}", "--config", f"data.output={output}",
    ).stdout  # fmt: skip
    assert f"accuracy: {evaluated:.4f}" in printed
    assert np.loadtxt(output, dtype=int).shape == (360,)


def test_downloaded_checkpoint_loads_and_a_flipped_byte_is_refused(cluster, trained, tmp_path):
    uuid = re.search(r"Best checkpoint: (\S+)", trained)[1]
    cluster.det("checkpoint", "download", uuid, "-o", tmp_path / "whole")
    code = f"import keras; print(keras.models.load_model({str(tmp_path / 'whole' / 'model.keras')!r}).count_params())"
    warm.run([sys.executable, "-c", code], check=True, capture_output=True)
    stored = cluster.home.checkpoints / uuid / "model.keras"
    content = stored.read_bytes()
    stored.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    try:
        done = cluster.det("checkpoint", "download", uuid, "-o", tmp_path / "corrupt", check=False)
    finally:
        stored.write_bytes(content)
    assert done.returncode == 1
    assert "model.keras" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "corrupt").exists()


def test_script_runs_alone(tmp_path, own_home):
    done = warm.run([sys.executable, str(DIGITS / "train.py")], capture_output=True, cwd=tmp_path, check=True)
    assert float(re.search(r"^accuracy: (0\.\d+)$", done.stdout, re.MULTILINE)[1]) >= 0.97
    assert list(own_home.glob("runs/*/checkpoints/*/model.keras"))


def test_mnist_runs_on_a_small_file_in_the_cache(tmp_path):
    rng = np.random.RandomState(0)
    folder = tmp_path / "keras" / "datasets"
    folder.mkdir(parents=True)
    images, labels = rng.randint(0, 255, (600, 28, 28), np.uint8), rng.randint(0, 10, 600, np.uint8)
    np.savez(folder / "mnist.npz", x_train=images, y_train=labels, x_test=images[:100], y_test=labels[:100])
    script = (
        (EXAMPLES / "mnist" / "train.py")
        .read_text()
        .replace("keras.datasets.mnist.load_data()", f"load_small({str(folder / 'mnist.npz')!r})")
    )
    small = (
        "def load_small(path):\n"
        "    import numpy as np\n"
        "    with np.load(path) as f:\n"
        "        return (f['x_train'], f['y_train']), (f['x_test'], f['y_test'])\n"
    )
    assert "load_small" in script
    (tmp_path / "train.py").write_text(
        f"{script.split('import det_keras as det')[0]}import det_keras as det\n\n{small}"
        f"{script.split('import det_keras as det')[1]}"
    )
    (tmp_path / "const.yaml").write_bytes((EXAMPLES / "mnist" / "const.yaml").read_bytes())
    done = warm.run([sys.executable, "train.py"], capture_output=True, cwd=tmp_path, check=True)
    assert "accuracy:" in done.stdout


def test_every_example_config_is_valid():
    from det_keras.config import load_experiment_config, load_job_config

    for path in sorted([*EXAMPLES.rglob("*.yaml"), *(EXAMPLES.parent / "configs").glob("*.yaml")]):
        load = load_job_config if path.stem in ("batch_inference", "job") else load_experiment_config
        assert load(Path(path).read_text()).config.name
