"""A step on two workers, against a bare Keras loop whose optimizer calls `hvd.grouped_allreduce` itself.

Starts itself under the launcher; without Horovod it says so and measures nothing. Both trainings run in the same
processes and take turns epoch by epoch, so that a busy machine slows both.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import report

WORKERS, BATCH, EPOCHS = 2, 32, 16
# The first epochs make the train functions and warm up.
COLD_EPOCHS = 2
VALIDATION_ROWS = 2048
# Widths of two hidden layers for about so many parameters, and steps of an epoch.
SIZES = {"0.1 million parameters": (224, 200), "2 million parameters": (1275, 30)}


def main() -> None:
    """Start the workers, or be one."""
    if importlib.util.find_spec("horovod") is None:
        print("Horovod is not installed: nothing is measured.", file=sys.stderr)
        return
    if "HOROVOD_RANK" in os.environ:
        measure()
        return
    command = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(WORKERS), "--"]
    argv = [*command, sys.executable, str(Path(__file__))]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line.removeprefix("[rank=0] "), end="", flush=True)
    sys.exit(process.returncode)


def measure() -> None:
    """Measure as one of the workers; the chief reports."""
    import det_keras as det

    config = {"checkpoint_policy": "none"}
    with det.keras.init(run_dir=f"{tempfile.mkdtemp()}/run", seed=1, config=config) as context:
        for name, (width, steps) in SIZES.items():
            measure_size(context, name, width, steps)


def measure_size(context: Any, name: str, width: int, steps: int) -> None:
    """Train a bare model and ours in turns, and report what ours cost."""
    import keras
    import numpy as np

    from det_keras.keras.distributed.replica import Replica

    bare, own = (
        build(width, bare_optimizer()),
        build(width, context.wrap_optimizer(keras.optimizers.SGD(0.01))),
    )
    rng = np.random.RandomState(0)
    x = rng.rand(steps * BATCH * WORKERS, 64).astype("float32")
    y = rng.randint(0, 10, len(x))
    rank = context.distributed.rank
    data = context.wrap_data(x, y)
    validation = context.wrap_data(*(np.resize(part, (VALIDATION_ROWS, *part.shape[1:])) for part in (x, y)))

    turn, other = threading.Semaphore(1), threading.Semaphore(0)
    of_bare, of_ours = in_turns(turn, other), in_turns(other, turn)
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0}
    thread = threading.Thread(
        target=lambda: bare.fit(x[rank::WORKERS], y[rank::WORKERS], callbacks=[of_bare], **options)
    )
    with timed_calls(Replica, "check_equal") as checks, timed_calls(Replica, "sum_metrics") as sums:
        of_ours.sums = sums
        thread.start()
        # Both sides exchange: on every worker the bare one begins.
        other.acquire()
        other.release()
        context.fit(own, *data, validation_data=validation, callbacks=[of_ours], **options)
        thread.join()
    if not context.distributed.is_chief:
        return
    bare_step, own_step = (median(one.epochs[COLD_EPOCHS:]) / steps for one in (of_bare, of_ours))
    report(
        f"step with {name}, against a bare grouped_allreduce",
        own_step / bare_step,
        goal=1.0,
        detail=f"bare step {bare_step * 1000:.2f} ms, ours {own_step * 1000:.2f} ms, {WORKERS} workers",
    )
    period = context.settings.divergence_check_period
    report(
        f"comparing weights with {name}",
        1 + median(checks[1:]) / (period * own_step),
        goal=1.01,
        detail=f"{median(checks[1:]) * 1000:.2f} ms every {period} steps",
    )
    validated, summed = median(of_ours.validations[1:]), median(of_ours.reductions[1:])
    report(
        f"exact metrics of a validation with {name}",
        validated / (validated - summed),
        detail=f"{summed * 1000:.2f} ms of {validated * 1000:.0f} ms, {VALIDATION_ROWS} rows",
    )


def bare_optimizer() -> Any:
    """Return an optimizer that averages gradients over workers, and nothing else."""
    import horovod.tensorflow as hvd
    import keras

    class Bare(keras.optimizers.SGD):  # type: ignore[misc]
        def apply(self, grads, trainable_variables=None):  # type: ignore[no-untyped-def]
            return super().apply(hvd.grouped_allreduce(grads, op=hvd.Average), trainable_variables)

    return Bare(0.01)


def build(width: int, optimizer: Any) -> Any:
    """Return a compiled model with two hidden layers."""
    import keras

    layers = [keras.layers.Dense(width, activation="relu") for _ in range(2)]
    model = keras.Sequential([keras.Input((64,)), *layers, keras.layers.Dense(10)])
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def in_turns(turn: threading.Semaphore, other: threading.Semaphore) -> Any:
    """Return a callback that trains an epoch when it is this side's turn, and times epochs and validations.

    An epoch lasts until Keras begins the next, its validation left out.
    """
    import horovod.tensorflow as hvd
    import keras
    import tensorflow as tf

    class Turns(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[float] = []
            self.validations: list[float] = []
            self.reductions: list[float] = []
            self.sums: list[float] = []
            self._began = self._validation_began = 0.0

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch > 0:
                self._end_turn()
            turn.acquire()
            # All workers begin at once.
            hvd.allreduce(tf.constant(0.0), name="turn")
            self._began = time.perf_counter()

        def on_test_begin(self, logs: Any = None) -> None:
            self._validation_began = time.perf_counter()

        def on_test_end(self, logs: Any = None) -> None:
            self.validations.append(time.perf_counter() - self._validation_began)
            self.reductions.append(self.sums[-1])
            self._began += self.validations[-1]

        def on_train_end(self, logs: Any = None) -> None:
            self._end_turn()

        def _end_turn(self) -> None:
            self.epochs.append(time.perf_counter() - self._began)
            other.release()

    return Turns()


@contextmanager
def timed_calls(kind: type, name: str) -> Iterator[list[float]]:
    """Note how long each call of a method takes, inside the block."""
    original: Callable[..., Any] = getattr(kind, name)
    seconds: list[float] = []

    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*arguments)
        finally:
            seconds.append(time.perf_counter() - began)

    setattr(kind, name, timed)
    try:
        yield seconds
    finally:
        setattr(kind, name, original)


def median(values: list[float]) -> float:
    """Return the median of seconds."""
    return statistics.median(values)


if __name__ == "__main__":
    main()
