"""Files of W&B, made by wandb 0.31.0 (``files/make_wandb.py``)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from det_keras.importing import wandb
from det_keras.importing.base import BrokenRun, BrokenRunError, WrongPathError
from importing.test_base import rows

FILES = Path(__file__).with_name("files")
AT = datetime.now(timezone.utc)


def put(
    root: Path, name: str, date: str = "20260102_030405", size: int | None = None, as_id: str = ""
) -> Path:
    """Store a file of a run as W&B does, or its first bytes only; return the file."""
    run_id = as_id or name
    file = root / "wandb" / f"offline-run-{date}-{run_id}" / f"run-{run_id}.wandb"
    file.parent.mkdir(parents=True)
    file.write_bytes((FILES / f"run-{name}.wandb").read_bytes()[:size])
    return file


def found(path: Path, at: datetime = AT):
    return list(wandb.find(path, None, at))


def read(path: Path, at: datetime = AT):
    (run,) = found(path, at)
    return run.read()


def test_run_is_read_with_everything(tmp_path):
    put(tmp_path, "first001")
    run = read(tmp_path)
    assert (run.name, run.project, run.notes, run.state) == ("größe first", "digits", "A note.", "COMPLETED")
    assert sorted(run.tags) == ["größe", "vision"]
    assert run.hparams == {
        "learning_rate": 0.01,
        "layers": {"units": 32, "names": ["a", "b"]},
        "optimizer": "adam",
        "flag": True,
        "late": 3,
    }
    training = rows(run.tables["training"])
    assert [training[step]["loss"] for step in range(5)] == [1 / (step + 1) for step in range(5)]
    assert [str(training[step]["nan.at.1"]) for step in range(5)] == ["0.0", "nan", "2.0", "3.0", "4.0"]
    assert {row["inf"] for row in training.values()} == {float("-inf")}
    # Texts, booleans and histograms are no metrics.
    assert training[2].keys() == {"loss", "nested.acc", "nan.at.1", "inf"}
    assert rows(run.tables["validation"]) == {step: {"val/loss": 2 / (step + 1)} for step in range(5)}
    assert run.started < run.ended < run.started + timedelta(minutes=1)


def test_exit_code_and_given_steps_are_kept(tmp_path):
    put(tmp_path, "failed01")
    run = read(tmp_path)
    assert run.state == "ERROR"
    assert rows(run.tables["training"]) == {7: {"loss": 1.5, "accuracy": 1.0}, 10: {"loss": 0.5}}


def test_records_in_several_blocks_are_joined(tmp_path):
    put(tmp_path, "long0001")
    run = read(tmp_path)
    expected = {step: {"loss": 1 / (step + 1), "accuracy": step / 130} for step in range(130)}
    assert rows(run.tables["training"]) == {step: pytest.approx(row) for step, row in expected.items()}


def test_file_that_ends_anywhere_has_its_complete_records_and_no_end(tmp_path):
    file = put(tmp_path, "failed01")
    whole = file.read_bytes()
    counts, states = [], set()
    for size in range(0, len(whole), 7):
        file.write_bytes(whole[:size])
        runs = found(tmp_path)
        if not runs:
            # Until the record of the run is stored, nothing is known of it.
            counts.append(-1)
            continue
        run = runs[0].read()
        counts.append(len(run.tables["training"].steps) if run.tables else 0)
        states.add(run.state)
    assert counts == sorted(counts)
    assert set(counts) == {-1, 0, 1, 2}
    # The exit is the last record.
    assert states == {"ACTIVE"}


def test_damaged_byte_is_named_with_its_place(tmp_path):
    file = put(tmp_path, "failed01")
    data = file.read_bytes()
    named = 0
    for place in range(0, len(data), 5):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        error = error_of(tmp_path)
        if error:
            assert error.startswith(f"{file}, byte ")
            assert int(error.split("byte ")[1].split(":")[0]) <= place
            named += 1
    # A length that reaches beyond the end looks like a record that is being written.
    assert named > 0.95 * len(data) / 5


def error_of(path: Path) -> str:
    """Return why a run below a path cannot be read, "" if it can."""
    try:
        for run in found(path):
            if isinstance(run, BrokenRun):
                return str(run.error)
            run.read()
    except BrokenRunError as error:
        return str(error)
    return ""


def test_run_without_an_end_is_lost_after_a_day(tmp_path):
    put(tmp_path, "first001", size=5000)
    assert read(tmp_path).state == "ACTIVE"
    lost = read(tmp_path, AT + timedelta(days=2))
    assert lost.state == "ERROR"
    assert lost.ended is not None


def test_fingerprint_of_an_ended_run_does_not_change_with_time(tmp_path):
    put(tmp_path, "first001")
    (today,), (later,) = found(tmp_path), found(tmp_path, AT + timedelta(days=2))
    assert today.named(today.read()) == later.named(later.read()) in (today.final, later.final)


def test_files_of_a_resumed_run_are_one_run(tmp_path):
    put(tmp_path, "failed01", "20260102_030405")
    second = tmp_path / "wandb" / "run-20260103_000000-failed01" / "run-failed01.wandb"
    second.parent.mkdir()
    second.write_bytes((FILES / "run-failed01.wandb").read_bytes()[:-100])
    (run,) = found(tmp_path)
    assert run.place == str(second)
    # The second one has no end.
    assert run.read().state == "ACTIVE"


def test_runs_of_other_projects_may_have_the_same_id(tmp_path):
    for name in ("first001", "failed01", "long0001"):
        put(tmp_path, name)
    (tmp_path / "wandb" / "latest-run").symlink_to("offline-run-20260102_030405-first001")
    assert sorted(run.id for run in found(tmp_path)) == [
        "digits/failed01",
        "digits/first001",
        "other/long0001",
    ]


def test_file_and_folder_of_a_run_are_accepted(tmp_path):
    file = put(tmp_path, "first001")
    put(tmp_path, "failed01")
    assert [run.id for run in found(file)] == [run.id for run in found(file.parent)] == ["digits/first001"]


def test_path_without_runs_names_what_is_expected(tmp_path):
    (tmp_path / "file").write_text("")
    for path, problem in {
        tmp_path / "missing": "does not exist",
        tmp_path / "file": "is no file of W&B",
        tmp_path: "has no runs of W&B",
    }.items():
        with pytest.raises(WrongPathError, match=rf"{path} {problem}\. Expected a directory `wandb`"):
            found(path)
