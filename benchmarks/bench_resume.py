"""From process start to the first trained batch: a resumed run against a plain script."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from measure import in_turns, report

PLAIN = """
import keras, numpy as np, os
x = np.random.RandomState(0).rand(640, 64).astype("float32"); y = np.arange(640) % 10
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256, "relu"), keras.layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
class First(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if self.params["epochs"] and (not OURS or self.model.optimizer.iterations.numpy() > LEAVE_AT): os._exit(0)
"""
OURS = """
import det_keras as det, sys
context = det.keras.init(run_dir=sys.argv[1], seed=1, config={"min_checkpoint_period": {"batches": 7}})
context.fit(model, x, y, batch_size=32, epochs=2, verbose=0, validation_data=(x, y), callbacks=[First()])
"""
THEIRS = "model.fit(x, y, batch_size=32, epochs=2, verbose=0, validation_data=(x, y), callbacks=[First()])"


def script(ours: bool, leave_at: int) -> str:
    """Return a script that leaves after its first batch, or after batch `leave_at`."""
    return f"OURS, LEAVE_AT = {ours}, {leave_at}\n{PLAIN}{OURS if ours else THEIRS}"


def run(code: str, *arguments: str) -> None:
    """Run a script and wait for it."""
    subprocess.run([sys.executable, "-c", code, *arguments], check=True)


with tempfile.TemporaryDirectory() as folder:
    run(script(True, 18), folder)
    plain, resumed = in_turns(5, lambda: run(script(False, 0)), lambda: run(script(True, 7), folder))
report(
    "resume to first batch, against a plain script", resumed / plain, goal=1.25, detail=f"plain {plain:.2f} s"
)
