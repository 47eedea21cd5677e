"""Checkpoints are copied and written in the background, the newest first, and failures harm nothing."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from dying_storage import POINTS, DyingStorage

from det_keras import core, storage
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.core.file_plan import FilePlan, Slice
from det_keras.errors import CheckpointError, DetError


@pytest.fixture
def context(tmp_path):
    with core.init(run_dir=tmp_path / "run") as context:
        yield context


class State:
    """A state of one file; what `act` does happens while it is written, what `act_first` does while it is copied."""

    def __init__(self, content, act=lambda: None, act_first=lambda: None):
        self.content = content
        self.size_bytes = len(content)
        self.act = act
        self.act_first = act_first
        self.is_filled = threading.Event()

    def fill(self, memory):
        if not self.is_filled.is_set():
            # A view of the memory, as of the real states.
            target = np.frombuffer(memory, np.uint8, self.size_bytes)
            self.act_first()
            target[:] = np.frombuffer(self.content, np.uint8)
            self.is_filled.set()

    def plan(self):
        self.act()
        return FilePlan({"weights": [b"head", Slice(0, self.size_bytes)]})


def submit(writer, steps, act=lambda: None, done=lambda uuid: None, content=b"weights"):
    writer.submit({"steps_completed": steps}, State(content, act), done)


def test_written_checkpoint_is_listed_and_restorable(context):
    writer, done = CheckpointWriter(context.checkpoint), []
    submit(writer, 3, done=done.append)
    writer.wait()
    (record,) = context.backend.checkpoints()
    assert done == [record.uuid]
    assert record.steps_completed == 3
    with context.checkpoint.restore_path(record.uuid) as directory:
        assert (directory / "weights").read_bytes() == b"headweights"


def test_newer_request_replaces_a_waiting_one(context):
    writer, gate, written = CheckpointWriter(context.checkpoint), threading.Event(), []
    started = threading.Event()

    def slow():
        started.set()
        gate.wait()
        written.append(1)

    submit(writer, 1, slow)
    started.wait()
    submit(writer, 2, lambda: written.append(2))
    submit(writer, 3, lambda: written.append(3))
    gate.set()
    writer.wait()
    assert written == [1, 3]


def test_overlapping_checkpoints_are_each_written_as_they_were_submitted(context):
    """The first that waits is copied when it is written, later ones are copied beside the one being written."""
    writer = CheckpointWriter(context.checkpoint)
    for round_number in range(3):
        gate, started = threading.Event(), threading.Event()

        def slow(gate=gate, started=started):
            started.set()
            gate.wait()

        first, second = (f"{round_number}-{name}".encode() for name in ("first", "second"))
        submit(writer, 10 * round_number + 1, slow, content=first)
        started.wait()
        waiting = State(second)
        writer.submit({"steps_completed": 10 * round_number + 2}, waiting, lambda uuid: None)
        if round_number == 0:
            assert not waiting.is_filled.is_set()
        else:
            assert waiting.is_filled.wait(60)
        gate.set()
        writer.wait()
        records = sorted(context.backend.checkpoints(), key=lambda record: record.steps_completed)
        for record, content in zip(records[-2:], (first, second), strict=True):
            with context.checkpoint.restore_path(record.uuid) as directory:
                assert (directory / "weights").read_bytes() == b"head" + content


@pytest.mark.parametrize("size", [7, 100_000], ids=["same size", "larger state"])
def test_memory_of_a_replaced_checkpoint_is_used_again_when_its_copy_has_ended(context, size):
    writer = CheckpointWriter(context.checkpoint)

    def held():
        """Return an action that waits for a gate, with what says that it has begun, and the gate."""
        started, gate = threading.Event(), threading.Event()

        def act():
            started.set()
            gate.wait()

        return act, started, gate

    # Two that overlap, so that memory for both is ready.
    slow, started, gate = held()
    submit(writer, 1, slow)
    started.wait()
    submit(writer, 2)
    gate.set()
    writer.wait()
    slow, started, gate = held()
    submit(writer, 5, slow, content=b"written")
    started.wait()
    slow_copy, is_copied, copy_gate = held()
    replaced = State(b"old one", act_first=slow_copy)
    writer.submit({"steps_completed": 6}, replaced, lambda uuid: None)
    assert is_copied.wait(60)
    newest = os.urandom(size)
    submit(writer, 7, content=newest)
    gate.set()
    # Late enough that memory which did not wait for the copy would be taken from it.
    threading.Timer(0.5, copy_gate.set).start()
    writer.wait()
    assert replaced.is_filled.is_set()
    five, seven = sorted(context.backend.checkpoints(), key=lambda record: record.steps_completed)[-2:]
    for record, steps, content in ((five, 5, b"written"), (seven, 7, newest)):
        assert record.steps_completed == steps
        with context.checkpoint.restore_path(record.uuid) as directory:
            assert (directory / "weights").read_bytes() == b"head" + content


def test_copy_that_failed_is_made_again(context, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer, tries = CheckpointWriter(context.checkpoint), []

    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise MemoryError("no memory")

    writer.submit({"steps_completed": 1}, State(b"weights", act_first=flaky), lambda uuid: None)
    writer.wait()
    assert len(tries) == 3
    (record,) = context.backend.checkpoints()
    with context.checkpoint.restore_path(record.uuid) as directory:
        assert (directory / "weights").read_bytes() == b"headweights"


def test_failure_is_retried(context, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer, tries = CheckpointWriter(context.checkpoint), []

    def flaky():
        tries.append(1)
        if len(tries) < 3:
            raise OSError(28, "No space left on device")

    submit(writer, 1, flaky)
    writer.wait()
    assert len(context.backend.checkpoints()) == 1


def test_lasting_failure_is_raised_at_the_end_and_keeps_the_last_good_one(context, monkeypatch, caplog):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer = CheckpointWriter(context.checkpoint)
    submit(writer, 1)
    writer.wait()

    def full():
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


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_run_directory_that_cannot_be_used_is_named(tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(
        DetError, match=f"The run directory {tmp_path / place} cannot be used: .* Use another"
    ):
        core.init(run_dir=tmp_path / place)


def test_run_directory_in_use_names_the_pid(context):
    import os

    with pytest.raises(DetError, match=str(os.getpid())):
        core.init(run_dir=context.backend.run.path)


def writing_process():
    """Return the process that writes this one's checkpoints; other tests may have left children too."""
    children = [one for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    (process,) = [one for one in children if "det_keras.core.writer_process" in one.cmdline()]
    return process


BIG = bytes(range(256)) * (140 << 10)


@pytest.mark.process
@pytest.mark.parametrize(("size", "processes"), [(100, 0), (len(BIG), 1)])
def test_only_a_big_state_gets_its_process_when_memory_is_prepared(context, size, processes, monkeypatch):
    started = []

    def start(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", start)
    writer = CheckpointWriter(context.checkpoint)
    writer.prepare(size)
    # It is done with the preparation before it ends.
    writer.close()
    # The record of provenance asks git.
    assert sum(process.args[0] != "git" for process in started) == processes


@pytest.mark.process
def test_big_state_is_written_by_a_process_of_its_own(context):
    writer = CheckpointWriter(context.checkpoint)
    writer.prepare(len(BIG))
    for steps in (1, 2):
        submit(writer, steps, content=BIG)
        writer.wait()
    process = writing_process()
    for record in context.backend.checkpoints():
        with context.checkpoint.restore_path(record.uuid) as directory:
            assert (directory / "weights").read_bytes() == b"head" + BIG
    writer.close()
    assert not process.is_running()


@pytest.mark.process
@pytest.mark.kill
def test_killed_writing_process_is_started_again(context, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer, kills = CheckpointWriter(context.checkpoint), [1]

    def kill():
        if kills:
            kills.pop()
            process = writing_process()
            process.kill()
            process.wait()

    submit(writer, 1, content=BIG)
    writer.wait()
    submit(writer, 2, kill, content=BIG)
    writer.wait()
    assert not kills
    assert [record.steps_completed for record in context.backend.checkpoints()] == [2, 1]
    writer.close()


@pytest.mark.process
def test_full_disk_in_the_writing_process_is_told_as_it_is(context, monkeypatch):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.01)
    writer = CheckpointWriter(context.checkpoint)
    context.checkpoint.storage = storage.DirectoryStorage("/proc/nowhere")
    submit(writer, 1, content=BIG)
    with pytest.raises(CheckpointError, match="nowhere"):
        writer.wait()
    writer.close()


@pytest.mark.process
@pytest.mark.parametrize("room", [0, 1, 1 << 16, (1 << 20) - 1, 1 << 20, len(BIG) // 2, len(BIG) + 3])
def test_disk_that_fills_up_under_the_writing_process_costs_that_checkpoint_alone(
    room, context, monkeypatch, caplog
):
    """`room` is what a file may hold: whatever is written beyond fails, in the midst of a file."""
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.0)
    writer = CheckpointWriter(context.checkpoint)
    submit(writer, 1, content=BIG)
    writer.wait()
    process = writing_process()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    submit(writer, 2, content=BIG)
    with pytest.raises(CheckpointError, match="File too large"):
        writer.wait()
    assert "batch 2 failed" in caplog.text
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    submit(writer, 3, content=BIG)
    writer.wait()
    writer.close()
    assert_whole(context, [3, 1])
    assert len(list(context.checkpoint.storage.root.iterdir())) == 2


@pytest.mark.process
@pytest.mark.kill
@pytest.mark.parametrize("point", POINTS)
def test_writing_process_killed_at_any_point_is_replaced_and_the_checkpoint_written_again(
    point, context, monkeypatch, tmp_path, caplog
):
    monkeypatch.setattr("det_keras.core.checkpoint_writer._RETRY_S", 0.0)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    mark = tmp_path / "mark"
    context.checkpoint.storage = DyingStorage(context.checkpoint.storage.root, point, mark)
    writer = CheckpointWriter(context.checkpoint)
    submit(writer, 1, content=BIG)
    writer.wait()
    writer.close()
    assert mark.exists()
    assert "The writing process failed: exit code -9" in caplog.text
    assert_whole(context, [1])


def assert_whole(context, expected):
    """Check which checkpoints were reported, newest first, and that each is what was submitted."""
    records = context.backend.checkpoints()
    assert [record.steps_completed for record in records] == expected
    for record in records:
        with context.checkpoint.restore_path(record.uuid) as directory:
            assert (directory / "weights").read_bytes() == b"head" + BIG
