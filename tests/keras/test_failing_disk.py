"""A disk that fails at any write, flush or rename of a checkpoint costs that checkpoint at most, and it is said.

As SQLite tests itself: the n-th operation fails, for every n until nothing fails any more. After each the
newest whole checkpoint must load, and training that continues from it must end as if nothing had been.
"""

from __future__ import annotations

import builtins
import errno
import io
import itertools
import logging
import os
import pathlib
import shutil
import subprocess
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from kinds import digest

import det_keras as det
from det_keras.core import checkpoint_writer
from det_keras.errors import CheckpointError
from det_keras.keras.checkpoint.training_state import RestoredState

# Every second one of the many brings a failure; the few are enough where a run is resumed often.
MANY, FEW = 100, 14
_EVERY_BATCH = {"min_checkpoint_period": {"batches": 1}}


class FailingDisk:
    """Fails the n-th operation below a directory: makes, opens, writes, flushes and renames count.

    Args:
        root: the directory.
        monkeypatch: takes the place of what Python offers for these operations, in this process.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = str(root)
        self._fatal = 0
        self._stays_broken = False
        self.operations: list[str] = []
        self.failed: str | None = None
        self._open, self._fsync = io.open, os.fsync
        monkeypatch.setattr(builtins, "open", self._open_counted)
        monkeypatch.setattr(io, "open", self._open_counted)
        monkeypatch.setattr(os, "fsync", self._fsync_counted)
        for name in ("rename", "mkdir"):
            monkeypatch.setattr(pathlib.Path, name, self._counted(name, getattr(pathlib.Path, name)))

    def fail_at(self, number: int, *, stays_broken: bool) -> None:
        """Fail at the `number`-th operation from now, and at all that follow if it stays broken."""
        self.operations, self.failed = [], None
        self._fatal, self._stays_broken = number, stays_broken

    def heal(self) -> None:
        """Work again."""
        self._fatal = 0

    def step(self, operation: str) -> None:
        """Count an operation; raise if it is the one to fail."""
        self.operations.append(operation)
        count = len(self.operations)
        if self._fatal and (count == self._fatal or (self._stays_broken and count > self._fatal)):
            self.failed = self.failed or operation
            raise OSError(errno.EIO, f"The disk fails in this test at operation {count}, {operation}")

    def _concerns(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(self._root)

    def _counted(self, name: str, original: Any) -> Any:
        def counted(path: Path, *arguments: Any, **options: Any) -> Any:
            if self._concerns(path) and ".staging-" in str(path):
                self.step(f"{name} {path.name}")
            return original(path, *arguments, **options)

        return counted

    def _fsync_counted(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self._concerns(path):
            self.step(f"fsync {path.name}")
        self._fsync(descriptor)

    def _open_counted(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if not self._concerns(file) or not set(mode) & set("wxa+"):
            return self._open(file, mode, *arguments, **options)
        self.step(f"open {Path(file).name}")
        raw = _CountedFile(self, os.fspath(file), mode.replace("b", "").replace("t", ""))
        if arguments and arguments[0] == 0:
            return raw
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=options.get("encoding"))


class _CountedFile(io.FileIO):
    """A file whose writes count; the one that fails has written half, as on a disk that fills up."""

    def __init__(self, disk: FailingDisk, path: str, mode: str) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        try:
            self._disk.step(f"write {Path(str(self.name)).name}")
        except OSError:
            super().write(view[: len(view) // 2])
            raise
        return super().write(view)


class AtEachBatch(keras.callbacks.Callback):
    """Calls a function between the checkpoint of one batch and the next batch."""

    def __init__(self, act: Any) -> None:
        super().__init__()
        self._act = act

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._act()


def train(run_dir: Path, act: Any = lambda context: None, *, batches: int = MANY) -> str:
    """Train a tiny model with a checkpoint after each batch, and return its digest."""
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(config=_EVERY_BATCH, run_dir=run_dir, seed=3) as context:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dropout(0.5)])
        model.compile(optimizer=context.wrap_optimizer(keras.optimizers.Adam(0.1)), loss="mse")
        x = np.random.RandomState(0).normal(size=(batches, 2)).astype("float32")
        callback = AtEachBatch(lambda: act(context))
        history = context.fit(
            model, x, x, batch_size=1, epochs=1, verbose=0, callbacks=[callback], validation_data=(x, x)
        )
        return digest(model, [history])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the digests of undisturbed runs by their number of batches."""
    return {batches: train(tmp_path_factory.mktemp("run"), batches=batches) for batches in (MANY, FEW)}


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_writer, "_RETRY_S", 0.0)
    return FailingDisk(tmp_path / "run" / "checkpoints", monkeypatch)


def newest_whole(context: Any) -> int:
    """Return how many batches the newest checkpoint holds that passes its verification, 0 if there is none."""
    for record in context.core.backend.checkpoints():
        try:
            with context.core.checkpoint.restore_path(record.uuid) as directory:
                RestoredState.read(directory).values()
        except CheckpointError:
            continue
        return int(record.steps_completed)
    return 0


class Sweep:
    """Lets every second checkpoint fail: the first of them at operation 1, the next at 2, until none fails.

    Args:
        disk: fails.
        caplog: hears what is reported.
        stays_broken: until the checkpoint is given up; else its next attempt finds a disk that works.
        copies: a directory for a copy of the run after each failure, None for no copies.
    """

    def __init__(
        self, disk: FailingDisk, caplog: Any, *, stays_broken: bool, copies: Path | None = None
    ) -> None:
        self._disk = disk
        self._caplog = caplog
        self._stays_broken = stays_broken
        self._copies = copies
        self._batch = 0
        self.failed: list[str] = []
        self.is_over = False

    def __call__(self, context: Any) -> None:
        """Act between two batches: look at what became of the checkpoint, prepare the next one's end."""
        if self.is_over:
            return
        self._let_it_end(context)
        if self._batch and self._batch % 2 == 0:
            self._check(context)
        self._batch += 1
        if self._batch % 2 == 0 and not self.is_over:
            self._caplog.clear()
            self._disk.fail_at(self._batch // 2, stays_broken=self._stays_broken)

    def _let_it_end(self, context: Any) -> None:
        try:
            context._script.writer.wait()
            given_up = False
        except CheckpointError:
            given_up = True
        failed = self._disk.failed is not None and self._batch % 2 == 0
        assert given_up == (failed and self._stays_broken), "only a disk that stays broken costs a checkpoint"

    def _check(self, context: Any) -> None:
        operation = self._disk.failed
        self._disk.heal()
        if operation is None:
            self.is_over = True
        else:
            self.failed.append(operation)
            errors = [one.getMessage() for one in self._caplog.records if one.levelno >= logging.ERROR]
            said = f"Writing the checkpoint at batch {self._batch} failed"
            assert any(said in one and operation in one for one in errors), (
                f"Nothing was said of {operation}."
            )
        is_lost = self._stays_broken and operation is not None
        expected = self._batch - 1 if is_lost else self._batch
        assert newest_whole(context) == expected, operation
        if self._copies is not None:
            # By another program: what a callback writes would be kept in the next checkpoints.
            copy = ["cp", "-r", context.core.backend.run.path, self._copies / str(self._batch)]
            subprocess.run(copy, check=True)


@pytest.mark.parametrize("stays_broken", [False, True], ids=["fails once", "stays broken"])
def test_each_failing_operation_is_reported_and_the_newest_whole_checkpoint_loads(
    stays_broken, disk, tmp_path, caplog, undisturbed
):
    sweep = Sweep(disk, caplog, stays_broken=stays_broken)
    assert train(tmp_path / "run", sweep) == undisturbed[MANY]
    assert sweep.is_over, f"{MANY} batches are too few for all operations of a checkpoint."
    assert {operation.split()[0] for operation in sweep.failed} == {
        "mkdir",
        "open",
        "write",
        "fsync",
        "rename",
    }


def test_training_resumed_after_a_failure_of_any_sort_ends_the_same(disk, tmp_path, caplog, undisturbed):
    sweep = Sweep(disk, caplog, stays_broken=True, copies=tmp_path)
    train(tmp_path / "run", sweep)
    first = {operation.split()[0]: number for number, operation in reversed([*enumerate(sweep.failed, 1)])}
    first["root"] = sweep.failed.index("fsync checkpoints") + 1
    for sort, number in first.items():
        assert train(tmp_path / str(2 * number)) == undisturbed[MANY], sort


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Return a run with two checkpoints whose process went away."""
    run_dir = tmp_path_factory.mktemp("interrupted")
    batches = itertools.count()

    def leave(context: Any) -> None:
        context._script.writer.wait()
        if next(batches) == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run_dir, leave, batches=FEW)
    return run_dir


def files_of_newest(run_dir: Path) -> list[Path]:
    """Return the files of the newest checkpoint."""
    newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    return sorted(path for path in newest.rglob("*") if path.is_file())


@pytest.mark.parametrize("tear", [lambda size: size // 2, lambda size: 0], ids=["torn in half", "empty"])
def test_torn_file_is_reported_and_the_checkpoint_before_is_taken(
    tear, interrupted, tmp_path, caplog, undisturbed
):
    names = [path.name for path in files_of_newest(interrupted)]
    assert {"manifest.json", "metadata.json", "model.keras", "state.json", "variables.bin"} <= set(names)
    for number in range(len(names)):
        run_dir = shutil.copytree(interrupted, tmp_path / str(number))
        torn = files_of_newest(run_dir)[number]
        if torn.stat().st_size == 0:
            continue
        os.truncate(torn, tear(torn.stat().st_size))
        caplog.clear()
        caplog.set_level(logging.INFO)
        assert train(run_dir, batches=FEW) == undisturbed[FEW], torn.name
        said = " ".join(one.getMessage() for one in caplog.records)
        assert torn.name in said, f"Nothing was said of {torn.name}."
        assert "continues from checkpoint" in said
        assert "at batch 8" in said, torn.name
