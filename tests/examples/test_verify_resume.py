"""`--verify-resume` tells an exact script from one that is not."""

from __future__ import annotations

import pytest
from amount import AMOUNT
from conftest import EXAMPLES

pytestmark = [pytest.mark.process, pytest.mark.kill]

DIGITS = EXAMPLES / "digits"


def test_digits_example_is_exact(cluster):
    printed = cluster.det("experiment", "create", DIGITS / "const.yaml", DIGITS, "--verify-resume").stdout
    assert "killed after the checkpoint at batch" in printed
    assert "Resuming is exact: after 60 batches" in printed


def test_digits_example_is_the_same_on_any_number_of_workers(cluster):
    virtual = ("--config", "reproducibility.virtual_workers=2")
    options = ("--verify-resume", "--workers", "2,1")
    printed = cluster.det("experiment", "create", DIGITS / "const.yaml", DIGITS, *options, *virtual).stdout
    assert "on 2 workers, killed after the checkpoint at batch" in printed
    assert "The number of workers does not matter: after 60 batches on 2, 1, and killed in between" in printed


@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")
def test_script_that_depends_on_the_clock_is_found_out(cluster, tmp_path):
    script = (DIGITS / "train.py").read_text()
    clock = "    model = build_model(hparams)\n    import time\n    x = x + time.time() % 1\n"
    (tmp_path / "train.py").write_text(script.replace("    model = build_model(hparams)\n", clock))
    done = cluster.det(
        "experiment", "create", DIGITS / "const.yaml", tmp_path, "--verify-resume", check=False
    )
    assert done.returncode == 1
    assert "NOT exact" in done.stdout
    assert "the model variable `" in done.stdout
    assert "two trainings of this script without a kill differ as well" in done.stdout


def test_state_that_is_lost_with_the_process_is_told_from_chance(cluster, tmp_path):
    """A closure that counts: the same in each undisturbed run, and begun anew by a resumed one."""
    script = (DIGITS / "train.py").read_text()
    counting = (
        "    model = build_model(hparams)\n"
        "    import itertools, keras\n"
        "    count = itertools.count()\n"
        "    def slower(batch, logs=None):\n"
        "        model.optimizer.learning_rate.assign(0.01 / (1 + next(count)))\n"
        "    slow = keras.callbacks.LambdaCallback(on_train_batch_end=slower)\n"
    )
    script = script.replace("    model = build_model(hparams)\n", counting).replace(
        "epochs=", "callbacks=[slow], epochs=", 1
    )
    (tmp_path / "train.py").write_text(script)
    done = cluster.det(
        "experiment", "create", DIGITS / "const.yaml", tmp_path, "--verify-resume", check=False
    )
    assert done.returncode == 1, done.stdout
    assert "Undisturbed, the script ends the same each time" in done.stdout


def test_script_that_fails_is_said(cluster, tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    done = cluster.det(
        "experiment", "create", DIGITS / "const.yaml", tmp_path, "--verify-resume", check=False
    )
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
