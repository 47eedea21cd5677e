"""A step on two workers over each engine, against a bare Keras loop over the same engine's plain allreduce.

Starts itself under the launcher, over one engine after the other and again; without Horovod only over the builtin one.
Both trainings run in the same processes and take turns epoch by epoch, so that a busy machine slows both.
"""

from __future__ import annotations

import importlib.util
import json
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

WORKERS, BATCH, EPOCHS = 2, 32, 7
# How often each engine is started; the median counts.
ROUNDS = 3
# The first epochs make the train functions and warm up.
COLD_EPOCHS = 2
VALIDATION_ROWS = 2048
# Widths of two hidden layers for about so many parameters, and steps of an epoch.
SIZES = {"0.1 million parameters": (224, 600), "2 million parameters": (1275, 30)}


def main() -> None:
    """Start the workers, or be one."""
    if "HOROVOD_RANK" in os.environ:
        measure()
        return
    engines = ["builtin"]
    if importlib.util.find_spec("horovod") is None:
        print("Horovod is not installed: only the builtin engine is measured.", file=sys.stderr)
    else:
        engines.append("horovod")
    found: dict[str, list[dict[str, Any]]] = {engine: [] for engine in engines}
    for _ in range(ROUNDS):
        for engine in engines:
            found[engine] += run(engine)
    steps = {
        (engine, size): show(engine, size, [one for one in rows if one["size"] == size])
        for size in SIZES
        for engine, rows in found.items()
    }
    for size in SIZES if len(engines) > 1 else ():
        builtin, horovod = steps["builtin", size], steps["horovod", size]
        report(
            f"step with {size}, builtin against horovod",
            builtin / horovod,
            detail=f"builtin {builtin * 1000:.2f} ms, horovod {horovod * 1000:.2f} ms",
        )


def run(engine: str) -> list[dict[str, Any]]:
    """Return what the chief measured, for each size."""
    launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(WORKERS)]
    argv = [*launcher, "--engine", engine, "--", sys.executable, str(Path(__file__))]
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line.removeprefix("[rank=0] ") for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def show(engine: str, size: str, rows: list[dict[str, Any]]) -> float:
    """Report the medians of one engine and size; return the seconds of our step."""
    middle = {name: median([row[name] for row in rows]) for name in rows[0] if name != "size"}
    report(
        f"step with {size} over {engine}, against its plain allreduce",
        median([row["own"] / row["bare"] for row in rows]),
        goal=1.0,
        detail=f"bare step {middle['bare'] * 1000:.2f} ms, ours {middle['own'] * 1000:.2f} ms, {WORKERS} workers",
    )
    report(
        f"comparing weights with {size} over {engine}",
        1 + middle["check"] / (middle["period"] * middle["own"]),
        goal=1.01,
        detail=f"{middle['check'] * 1000:.2f} ms every {middle['period']:.0f} steps",
    )
    validated, summed = middle["validated"], middle["summed"]
    report(
        f"exact metrics of a validation with {size} over {engine}",
        validated / (validated - summed),
        detail=f"{summed * 1000:.2f} ms of {validated * 1000:.0f} ms, {VALIDATION_ROWS} rows",
    )
    return float(middle["own"])


def measure() -> None:
    """Measure as one of the workers; the chief prints."""
    import det_keras as det

    config = {"checkpoint_policy": "none"}
    with det.keras.init(run_dir=f"{tempfile.mkdtemp()}/run", seed=1, config=config) as context:
        for name, (width, steps) in SIZES.items():
            measure_size(context, name, width, steps)


def measure_size(context: Any, name: str, width: int, steps: int) -> None:
    """Train a bare model and ours in turns, and print what both took."""
    import keras
    import numpy as np

    from det_keras.keras.distributed.worker_replica import WorkerReplica

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
    with (
        timed_calls(WorkerReplica, "check_equal") as checks,
        timed_calls(WorkerReplica, "sum_metrics") as sums,
    ):
        of_ours.sums = sums
        thread.start()
        # Both sides exchange: on every worker the bare one begins.
        other.acquire()
        other.release()
        context.fit(own, *data, validation_data=validation, callbacks=[of_ours], **options)
        thread.join()
    if not context.distributed.is_chief:
        return
    found = {
        "size": name,
        "bare": median(of_bare.epochs[COLD_EPOCHS:]) / steps,
        "own": median(of_ours.epochs[COLD_EPOCHS:]) / steps,
        "check": median(checks[1:]),
        "period": context._script.settings.divergence_check_period,
        "validated": median(of_ours.validations[1:]),
        "summed": median(of_ours.reductions[1:]),
    }
    print(json.dumps(found), flush=True)


def bare_optimizer() -> Any:
    """Return an optimizer that averages gradients over workers, and nothing else."""
    import keras

    average = average_over_horovod if os.environ["DET_KERAS_ENGINE"] == "horovod" else average_over_builtin

    class Bare(keras.optimizers.SGD):  # type: ignore[misc]
        def apply(self, grads, trainable_variables=None):  # type: ignore[no-untyped-def]
            return super().apply(average(grads), trainable_variables)

    return Bare(0.01)


def average_over_horovod(gradients: list[Any]) -> Any:
    """Return averages, as a script for Horovod computes them."""
    import horovod.tensorflow as hvd

    return hvd.grouped_allreduce(gradients, op=hvd.Average)


def average_over_builtin(gradients: list[Any]) -> Any:
    """Return averages, by one plain sum over the memory that the workers share."""
    import tensorflow as tf

    collective = engine()._collective
    flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
    total = tf.numpy_function(collective.sum, [flat], flat.dtype)
    total.set_shape(flat.shape)
    parts = tf.split(total / WORKERS, [gradient.shape.num_elements() for gradient in gradients])
    return [tf.reshape(part, gradient.shape) for part, gradient in zip(parts, gradients, strict=True)]


def engine() -> Any:
    """Return the engine of this process."""
    from det_keras.keras.distributed import exchange

    return exchange._engine()


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
            engine().sum(tf.constant([0.0]), name="turn")
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
