"""What `--verify-resume` says of two checkpoints, and `--workers` of trainings on several numbers of workers."""

from __future__ import annotations

import json

import numpy as np
import pytest

from det_keras.checkpoint_comparison import differences
from det_keras.cli.main import main
from det_keras.errors import DetError
from det_keras.verification import resume, workers
from det_keras.verification.resume import on_workers


def checkpoint(directory, *values):
    """Write the training state of a model whose variables are these numbers."""
    (directory / "training_state").mkdir(parents=True)
    variables = [
        {"group": "optimizer", "path": f"v{index}", "shape": [], "dtype": "float32", "offset": 4 * index}
        for index, _ in enumerate(values)
    ]
    state = {"version": 1, "position": {}, "history": {}, "random": {}, "variables": variables}
    (directory / "training_state" / "state.json").write_text(json.dumps(state))
    (directory / "training_state" / "variables.bin").write_bytes(np.array(values, np.float32).tobytes())
    (directory / "model.weights.h5").write_bytes(b"the same")
    return directory


@pytest.mark.parametrize(
    ("killed", "expected"),
    [
        ((1.0, 2.0), []),
        ((1.0, 3.0), ["the optimizer variable `v1`"]),
        ((1.0,), ["the number of variables: 2 and 1"]),
    ],
)
def test_differences_are_named(killed, expected, tmp_path):
    undisturbed = checkpoint(tmp_path / "undisturbed", 1.0, 2.0)
    assert list(differences(undisturbed, checkpoint(tmp_path / "killed", *killed))) == expected


class Runs:
    """Trainings whose second variable differs from a batch on, if there is more than one worker."""

    def __init__(self, folder, different_from):
        self.folder, self.different_from, self.started = folder, different_from, 0

    def run_to_end(self, name, *, workers=None, batches=60):
        self.started += 1
        differs = workers > 1 and batches >= self.different_from
        found = checkpoint(self.folder / name, 1.0 + batches, 3.0 if differs else 2.0)
        (found / "metadata.json").write_text(json.dumps({"steps_completed": batches}))

    def final_state(self, name):
        return self.folder / name


@pytest.mark.parametrize("batch", [1, 2, 31, 59, 60])
def test_first_batch_on_which_numbers_of_workers_differ_is_named(batch, tmp_path, monkeypatch, capsys):
    runs = Runs(tmp_path, batch)
    monkeypatch.setattr(resume, "TrialRuns", lambda *_: runs)
    script = resume.VerifiedScript(tmp_path, [], "", dict)
    assert workers.verify_workers(script, [1, 4]) == 1
    printed = capsys.readouterr().out
    assert f"They differ from batch {batch} on, in\n  the optimizer variable `v1`\n" in printed
    assert runs.started <= 2 + 2 * 6


@pytest.mark.parametrize("text", ["2", "1,0", "one,two", "1,,2", "2,2", ""])
def test_numbers_of_workers_that_cannot_be_compared_are_refused(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["experiment", "create", "a.yaml", ".", "--verify-resume", "--workers", text])
    assert "expected two or more numbers of workers, such as 1,2,4" in capsys.readouterr().err


def test_numbers_of_workers_belong_to_the_comparison(capsys):
    assert main(["experiment", "create", "a.yaml", ".", "--workers", "1,2"]) == 1
    assert "`--workers` belongs to `--verify-resume`" in capsys.readouterr().err


def test_launcher_in_the_entrypoint_is_replaced():
    script = ["python3", "train.py", "--epochs", "2"]
    expected = on_workers(script, 4)
    assert expected[-6:] == ["4", "--", *script]
    launcher = ["nice", "python3", "-m", "determined.launch.horovod", "--np", "2", "--engine", "builtin"]
    assert on_workers([*launcher, "--", *script], 4) == [*launcher, "--np", "4", "--", *script]
    trial = ["python3", "-m", "det_keras.launch.tensorflow", "--trial", "model:Digits"]
    assert on_workers(trial, 4) == [*trial, "--np", "4"]
    with pytest.raises(DetError, match="which the entrypoint does itself"):
        on_workers(["sh", "-c", "horovodrun -np 2 python3 train.py"], 4)
