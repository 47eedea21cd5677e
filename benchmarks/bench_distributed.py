"""A step on two workers, against a bare Keras loop whose optimizer calls `hvd.grouped_allreduce` itself.

Starts itself under the launcher; without Horovod it says so and measures nothing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import in_turns, report

WORKERS, STEPS, BATCH, TURNS = 2, 200, 32, 3
# Widths of two hidden layers, for about 0.1 and 2 million parameters.
SIZES = {"0.1 million parameters": 224, "2 million parameters": 1275}


def main() -> None:
    """Start the workers, or be one."""
    if importlib.util.find_spec("horovod") is None:
        print("Horovod is not installed: nothing is measured.", file=sys.stderr)
        return
    if "HOROVOD_RANK" in os.environ:
        measure()
        return
    command = [sys.executable, "-m", "det_keras.launch.horovod", "--np", str(WORKERS), "--"]
    argv = [*command, sys.executable, str(Path(__file__))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line.removeprefix("[rank=0] "), end="", flush=True)
    sys.exit(process.returncode)


def measure() -> None:
    """Measure as one of the workers; the chief reports."""
    import horovod.tensorflow as hvd
    import keras
    import numpy as np

    import det_keras as det

    class Bare(keras.optimizers.SGD):  # type: ignore[misc]
        """Averages gradients over workers, and nothing else."""

        def apply(self, grads, trainable_variables=None):  # type: ignore[no-untyped-def]
            return super().apply(hvd.grouped_allreduce(grads, op=hvd.Average), trainable_variables)

    def build(width: int, optimizer: keras.optimizers.Optimizer) -> keras.Model:
        layers = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
        model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
        model.compile(
            optimizer=optimizer,
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
        return model

    rng = np.random.RandomState(0)
    x = rng.rand(STEPS * BATCH * WORKERS, 64).astype("float32")
    y = rng.randint(0, 10, len(x))
    config = {"checkpoint_policy": "none"}
    folder = tempfile.mkdtemp()
    with det.keras.init(run_dir=f"{folder}/run", seed=1, config=config) as context:
        for name, width in SIZES.items():
            bare = build(width, Bare(0.01))
            own = build(width, context.wrap_optimizer(keras.optimizers.SGD(0.01)))
            share = x[context.distributed.rank :: WORKERS], y[context.distributed.rank :: WORKERS]
            wrapped = context.wrap_data(x, y)
            small = context.wrap_data(x[:64], y[:64])
            epochs = 2

            def plain(
                model: keras.Model = bare, share: tuple[np.ndarray, ...] = share, epochs: int = epochs
            ) -> None:
                part = share[0][:64], share[1][:64]
                model.fit(*share, batch_size=BATCH, epochs=epochs, validation_data=part, verbose=0)

            def ours(
                model: keras.Model = own, data: tuple = wrapped, val: tuple = small, epochs: int = epochs
            ) -> None:
                context.fit(model, *data, batch_size=BATCH, epochs=epochs, validation_data=val, verbose=0)

            for action in (plain, ours):
                action()
            of_bare, of_ours = in_turns(TURNS, plain, ours)
            if context.distributed.is_chief:
                detail = f"bare step {of_bare / STEPS / epochs * 1000:.2f} ms, {WORKERS} workers"
                report(
                    f"step with {name}, against a bare grouped_allreduce",
                    of_ours / of_bare,
                    goal=1.0,
                    detail=detail,
                )


if __name__ == "__main__":
    main()
