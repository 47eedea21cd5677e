"""Checkpoints are written behind training's back, the newest first, and failures harm nothing."""

from __future__ import annotations

import threading

import pytest

from det_keras import core
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.errors import CheckpointError


@pytest.fixture
def context(tmp_path):
    with core.init(run_dir=tmp_path / "run") as context:
        yield context


def submit(writer, steps, write, done=lambda uuid: None):
    writer.submit({"steps_completed": steps}, write, done)


def test_written_checkpoint_is_listed_and_restorable(context):
    writer, done = CheckpointWriter(context.checkpoint), []
    submit(writer, 3, lambda path: (path / "w").write_text("weights"), done.append)
    writer.wait()
    (record,) = context.backend.checkpoints()
    assert done == [record.uuid]
    assert record.steps_completed == 3
    with context.checkpoint.restore_path(record.uuid) as directory:
        assert (directory / "w").read_text() == "weights"


def test_newer_request_replaces_a_waiting_one(context):
    writer, gate, written = CheckpointWriter(context.checkpoint), threading.Event(), []
    started = threading.Event()

    def slow(path):
        started.set()
        gate.wait()
        written.append(1)

    submit(writer, 1, slow)
    started.wait()
    submit(writer, 2, lambda path: written.append(2))
    submit(writer, 3, lambda path: written.append(3))
    gate.set()
    writer.wait()
    assert written == [1, 3]


def test_failure_is_retried(context, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer, tries = CheckpointWriter(context.checkpoint), []

    def flaky(path):
        tries.append(1)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")

    submit(writer, 1, flaky)
    writer.wait()
    assert len(context.backend.checkpoints()) == 1


def test_lasting_failure_is_raised_at_the_end_and_keeps_the_last_good_one(context, monkeypatch, caplog):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer = CheckpointWriter(context.checkpoint)
    submit(writer, 1, lambda path: (path / "good").write_text("x"))
    writer.wait()

    def full(path):
        (path / "half").write_text("x")
        raise OSError(28, "No space left on device")

    submit(writer, 2, full)
    with pytest.raises(CheckpointError, match="No space left"):
        writer.wait()
    assert [record.steps_completed for record in context.backend.checkpoints()] == [1]
    assert "batch 2 failed" in caplog.text
    assert len(list(context.checkpoint.storage.root.iterdir())) == 1


def test_checkpoint_without_steps_completed_is_refused(context):
    with pytest.raises(ValueError, match="steps_completed"), context.checkpoint.store_path({"epoch": 1}):
        pass


def test_run_directory_in_use_names_the_pid(context):
    import os

    from det_keras.errors import DetError

    with pytest.raises(DetError, match=str(os.getpid())):
        core.init(run_dir=context.backend.run.path)
