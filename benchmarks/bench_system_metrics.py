"""Training with system metrics against training without, and the processor time of the sampling thread.

In a training a sample is taken every 10 seconds. Turns that long would compare little else than what other programs do
meanwhile, so the turns are short and the samples fifty times as frequent.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from measure import in_turns, report

# isort: split
import keras
import numpy as np

from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.profiler import Profiler, sampler_of

BATCH, STEPS, TURNS = 32, 200, 81
PERIOD_S, REAL_PERIOD_S = 0.2, 10.0


def build() -> keras.Model:
    """Return a model whose step takes about 2 ms on a CPU."""
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(384, activation="relu"),
            keras.layers.Dense(384, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="adam", loss=loss)
    return model


rng = np.random.RandomState(0)
x, y = rng.rand(BATCH * STEPS, 64).astype("float32"), rng.randint(0, 10, BATCH * STEPS)
model = build()
# Processor time of the sampling thread at its first and at its last sample of each turn, and the samples between.
spent_s: list[float] = []


def train() -> None:
    """Train an epoch."""
    model.fit(x, y, batch_size=BATCH, verbose=0)


def train_with(backend: LocalBackend) -> None:
    """Train an epoch while samples are taken and reported."""
    moments: list[float] = []

    def report_and_time(group: str, metrics: Mapping[str, object]) -> None:
        # On the sampling thread, for each sample first.
        if group == "cpu":
            moments.append(time.thread_time())
        backend.report_system_metrics(group, metrics)

    profiler = Profiler(report_and_time, lambda: sampler_of([os.getpid()]), period_s=PERIOD_S)
    train()
    profiler.close()
    spent_s.extend(np.diff(moments).tolist())


train()
with tempfile.TemporaryDirectory() as folder:
    backend = LocalBackend(RunDirectory(Path(folder)))
    train_with(backend)
    spent_s.clear()
    without, having = in_turns(TURNS, train, lambda: train_with(backend))
    backend.close()
step_ms = 1000 * without / STEPS
detail = f"step {step_ms:.2f} ms, a sample every {PERIOD_S} s instead of {REAL_PERIOD_S:.0f} s"
report("training with system metrics, against without", having / without, goal=1.01, detail=detail)
sample_s = float(np.mean(spent_s))
detail = f"{1000 * sample_s:.2f} ms for each of {len(spent_s)} samples, one every {REAL_PERIOD_S:.0f} s"
report("sampling thread, of a core", 100 * sample_s / REAL_PERIOD_S, unit="%", goal=0.2, detail=detail)
