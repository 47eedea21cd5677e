"""A step of one worker with four virtual workers, against the same step without them.

Virtual workers change how many threads TensorFlow uses in a process, so that each side has processes of its own, which
take turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import report

PARTS, ROUNDS, EPOCHS, STEPS = 4, 3, 8, 50
# The first epochs make the train function and warm up.
COLD_EPOCHS = 2
# For steps of about 10 ms and more on two cores: batch size, and what the model is made of.
MODELS = {"dense": 256, "convolutions": 64}


def main() -> None:
    """Start both sides in turns, or be one of them."""
    if len(sys.argv) > 1:
        measure(sys.argv[1], int(sys.argv[2]))
        return
    for name in MODELS:
        seconds: dict[int, list[float]] = {1: [], PARTS: []}
        for _ in range(ROUNDS):
            for parts, found in seconds.items():
                command = [sys.executable, str(Path(__file__)), name, str(parts)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
        plain, virtual = (statistics.median(found) for found in seconds.values())
        report(
            f"step of {name} with {PARTS} virtual workers on one worker, against none",
            virtual / plain,
            goal=1.5,
            detail=f"{plain * 1000:.2f} ms without, {virtual * 1000:.2f} ms with them",
        )


def measure(name: str, parts: int) -> None:
    """Print the seconds of a step."""
    import keras
    import numpy as np

    import det_keras as det

    class Epochs(keras.callbacks.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.seconds: list[float] = []

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds.append(time.perf_counter() - self.began)

    batch = MODELS[name]
    draw = np.random.default_rng(0)
    x, y = draw.random((batch * STEPS, 16, 16, 3), "float32"), draw.integers(0, 10, batch * STEPS)
    folder = tempfile.mkdtemp()
    config = {"checkpoint_policy": "none"}
    with det.keras.init(run_dir=f"{folder}/run", seed=1, config=config, virtual_workers=parts) as context:
        model = keras.Sequential([keras.Input((16, 16, 3)), *layers(name), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(context.wrap_optimizer(keras.optimizers.Adam()), loss, metrics=["accuracy"])
        epochs = Epochs()
        context.fit(
            model, *context.wrap_data(x, y), batch_size=batch, epochs=EPOCHS, validate=False,
            callbacks=[epochs], verbose=0,
        )  # fmt: skip
    print(json.dumps(statistics.median(epochs.seconds[COLD_EPOCHS:]) / STEPS))


def layers(name: str) -> list[Any]:
    """Return the hidden layers."""
    import keras

    if name == "dense":
        hidden = [keras.layers.Dense(512, activation="relu") for _ in range(3)]
        return [keras.layers.Flatten(), *hidden, keras.layers.Dropout(0.2)]
    return [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(0.2),
    ]


if __name__ == "__main__":
    main()
