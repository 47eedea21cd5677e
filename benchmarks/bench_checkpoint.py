"""How long a checkpoint holds up training: 50 million parameters with Adam, 600 MB of state."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from measure import in_turns, report, timed

# isort: split
import keras
import numpy as np
from big_model import UNITS, Watch, build

import det_keras as det
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.checkpoint.variables import VariableSet
from det_keras.storage.manifest import verify_manifest

# Periods in which a checkpoint is written to its end, also beside other programs.
BATCH, STEPS, PERIOD = 8, 200, 40


def train(model: keras.Model, folder: str, config: dict[str, object]) -> tuple[Watch, float]:
    """Train one epoch, and return what was seen of its batches, and the seconds from the last one to the end."""
    watch = Watch()
    x = np.random.RandomState(0).rand(BATCH * STEPS, UNITS).astype("float32")
    with det.keras.init(run_dir=folder, seed=1, config=config) as context:
        context.fit(model, x, x, batch_size=BATCH, validate=False, verbose=0, callbacks=[watch])
        return watch, time.perf_counter() - watch.ends[-1]


model = build()
with tempfile.TemporaryDirectory() as folder:
    saving, ending_s = train(
        model, f"{folder}/saving", {"checkpoint_policy": "none", "min_checkpoint_period": {"batches": PERIOD}}
    )
    variables = [*model.variables, *model.optimizer.variables]
    kept = [np.empty(variable.shape, variable.dtype) for variable in variables]

    def copy() -> None:
        for target, variable in zip(kept, variables, strict=True):
            np.copyto(target, variable.value.numpy())

    copies = [timed(copy) for _ in range(7)]
    whole_save = timed(lambda: model.save(f"{folder}/whole.keras"))
    weights_save = timed(lambda: model.save_weights(f"{folder}/w.weights.h5"))
    state_bytes = sum(array.nbytes for array in kept)
    newest = max(
        Path(f"{folder}/saving/checkpoints").glob("*-*/manifest.json"), key=lambda path: path.stat().st_mtime
    )
    stored = [path for path in newest.parent.rglob("*") if path.is_file()]

    def restore() -> None:
        """Do what a resume does: check every byte, then put it back."""
        verify_manifest(newest.parent)
        VariableSet.of_model(model, [model.optimizer]).assign(RestoredState.read(newest.parent).values())

    def write() -> None:
        """Write a state as one file, and flush it."""
        with Path(f"{folder}/raw").open("wb", buffering=0) as file:
            for array in kept:
                file.write(array)
            os.fsync(file.fileno())

    writes = [timed(write) for _ in range(5)]
    reading, restoring, verifying = in_turns(
        5,
        lambda: [path.read_bytes() for path in stored],
        restore,
        lambda: verify_manifest(newest.parent),
    )
    written = sum(path.stat().st_size for path in newest.parent.rglob("*") if path.is_file())

copy_s = statistics.median(copies)
# Not the first checkpoint: it also records how the model's file is laid out. Each is compared with the steps
# just before it, because a shared machine's speed drifts.
steps, rounds = saving.seconds(), range(2 * PERIOD, STEPS, PERIOD)
blocked_s = statistics.median(saving.between(batch) for batch in rounds)
normal_s = statistics.median(steps)


def slowdown(batch: int) -> float:
    """Return by how much the period after a checkpoint is longer than if each step were as those before it."""
    before, after = steps[batch - 1 - PERIOD // 3 : batch - 1], steps[batch - 1 : batch - 1 + PERIOD * 2 // 3]
    return sum(after) - statistics.median(before) * len(after)


in_all_s = max(statistics.median(map(slowdown, rounds)), 0.0)
detail = f"plain copy {copy_s:.3f} s of {state_bytes / 1e6:.0f} MB; step {normal_s:.3f} s; blocked {blocked_s:.3f} s"
report("training blocked by a checkpoint, against a plain copy", blocked_s / copy_s, goal=0.5, detail=detail)
report("the same with later steps' slowdown", in_all_s / copy_s, goal=1.5, detail=f"in all {in_all_s:.2f} s")
report(
    "training blocked, against model.save", blocked_s / whole_save, detail=f"model.save {whole_save:.2f} s"
)
report(
    "training blocked, against save_weights",
    blocked_s / weights_save,
    detail=f"save_weights {weights_save:.2f} s",
)
report(
    "end of a fit, against writing and flushing its state as one file",
    ending_s / statistics.median(writes),
    goal=1.0,
    detail=f"raw write {statistics.median(writes):.2f} s, end {ending_s:.2f} s",
)
report("bytes written, against bytes of state", written / state_bytes, goal=1.05)
report(
    "restoring, with SHA-256 verified, against reading the same bytes",
    restoring / reading,
    goal=1.5,
    detail=f"reading {reading:.2f} s",
)
report("verifying SHA-256, against reading the same bytes", verifying / reading)
