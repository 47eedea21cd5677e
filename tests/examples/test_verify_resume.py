"""`--verify-resume` tells an exact script from one that is not.

Each command starts up to eight trainings: all but one of them are forks, so the command runs in this process, which can
start forks. No master is involved.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import warm
from amount import AMOUNT
from conftest import EXAMPLES

from det_keras.cli.main import main
from det_keras.verification import resume

pytestmark = [pytest.mark.process, pytest.mark.kill]

DIGITS = EXAMPLES / "digits"


class Training(warm.Popen):
    """A training in a fork, with what `--verify-resume` uses of a `subprocess.Popen`."""

    def __init__(self, command, *, start_new_session, **options):
        assert start_new_session
        super().__init__(command, **options)

    def communicate(self):
        printed, errors = super().communicate()
        return printed.encode(), errors


@pytest.fixture
def create(monkeypatch, capsys):
    """Run `det experiment create --verify-resume`; return its exit code and what it printed."""

    def run(directory, *options, first_killed=Training):
        def start(command, *, env, **more):
            folder = Path(env["DET_KERAS_LOCAL_RUN_DIR"])
            is_first_killed = folder.name == "killed" and not folder.exists()
            return (first_killed if is_first_killed else Training)(command, env=env, **more)

        streams = {"PIPE": subprocess.PIPE, "STDOUT": subprocess.STDOUT}
        monkeypatch.setattr(resume, "subprocess", SimpleNamespace(Popen=start, **streams))
        config = str(DIGITS / "const.yaml")
        code = main(["experiment", "create", config, str(directory), "--verify-resume", *options])
        printed, errors = capsys.readouterr()
        # Shown by a test that fails.
        sys.stderr.write(errors)
        return code, printed

    return run


def test_digits_example_is_exact(create):
    # One training is a new interpreter: it is killed as it is for a user, and its hashes of strings are not those of
    # the forks that go on from its checkpoint, and that end as one which knows nothing of it.
    code, printed = create(DIGITS, first_killed=subprocess.Popen)
    assert code == 0, printed
    assert "killed after the checkpoint at batch" in printed
    assert "Resuming is exact: after 60 batches" in printed


def test_digits_example_is_the_same_on_any_number_of_workers(create):
    virtual = ("--config", "reproducibility.virtual_workers=2")
    code, printed = create(DIGITS, "--workers", "2,1", *virtual)
    assert code == 0, printed
    assert "on 2 workers, killed after the checkpoint at batch" in printed
    assert "The number of workers does not matter: after 60 batches on 2, 1, and killed in between" in printed


@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")
def test_script_that_depends_on_the_clock_is_found_out(create, tmp_path):
    script = (DIGITS / "train.py").read_text()
    clock = "    model = build_model(hparams)\n    import time\n    x = x + time.time() % 1\n"
    (tmp_path / "train.py").write_text(script.replace("    model = build_model(hparams)\n", clock))
    code, printed = create(tmp_path)
    assert code == 1
    assert "NOT exact" in printed
    assert "the model variable `" in printed
    assert "two trainings of this script without a kill differ as well" in printed


def test_state_that_is_lost_with_the_process_is_told_from_chance(create, tmp_path):
    """A generator that counts: the same in each undisturbed run, and begun anew by a resumed one."""
    script = (DIGITS / "train.py").read_text()
    counting = (
        "    model = build_model(hparams)\n"
        "    import keras\n"
        "    count = (number for number in range(1000))\n"
        "    def slower(batch, logs=None):\n"
        "        model.optimizer.learning_rate.assign(0.01 / (1 + next(count)))\n"
        "    slow = keras.callbacks.LambdaCallback(on_train_batch_end=slower)\n"
    )
    script = script.replace("    model = build_model(hparams)\n", counting).replace(
        "epochs=", "callbacks=[slow], epochs=", 1
    )
    (tmp_path / "train.py").write_text(script)
    code, printed = create(tmp_path)
    assert code == 1, printed
    assert "Undisturbed, the script ends the same each time" in printed


def test_script_that_fails_is_said(tmp_path):
    """By the command as a user runs it."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    command = ["experiment", "create", DIGITS / "const.yaml", tmp_path, "--verify-resume"]
    done = subprocess.run(
        [sys.executable, "-m", "det_keras.cli", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "exit code 3" in done.stderr
