"""det_keras beside the TensorFlow that there is, and without any."""

from __future__ import annotations

import pytest
from environments import Environment

pytestmark = [pytest.mark.packaging, pytest.mark.process]

TRAIN = """
import keras
import numpy as np

import det_keras as det

context = det.keras.init(seed=7)
generator = np.random.default_rng(7)
x = generator.normal(size=(64, 8)).astype("float32")
y = generator.integers(0, 10, size=64)
x, y = context.wrap_data(x, y)
model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(10, activation="softmax")])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.Adam()), loss="sparse_categorical_crossentropy")
history = context.fit(model, x=x, y=y, validation_data=(x, y), batch_size=16, epochs=2)
print("epochs:", len(history.history["val_loss"]))
"""


def test_installing_beside_tensorflow_cpu_leaves_it_the_only_tensorflow(built, tmp_path):
    environment = Environment.create(tmp_path, "tensorflow-cpu>=2.17")
    environment.pip("install", built["wheel"])
    assert "tensorflow" not in environment.distributions()

    assert "epochs: 2" in environment.run("python", "-c", TRAIN).stdout

    environment.pip("uninstall", "det_keras")
    environment.run("python", "-c", "import tensorflow; tensorflow.constant(1) + 1")


def test_master_and_command_line_need_no_tensorflow(bare):
    assert not {name for name in bare.distributions() if name.startswith("tensorflow")}

    bare.run("det", "deploy", "local", "cluster-up")
    try:
        assert "http://127.0.0.1:" in bare.run("det", "web").stdout
        bare.run("det", "experiment", "list")
        code = "import det_keras as det; det.core.init; from det_keras.experimental import client; client._connected()"
        bare.run("python", "-c", code)
    finally:
        bare.run("det", "deploy", "local", "cluster-down")


@pytest.mark.parametrize(
    "code",
    [
        "import det_keras.keras",
        "import det_keras; det_keras.keras.init()",
        "import det_keras.keras.callbacks",
    ],
)
def test_script_api_without_tensorflow_says_in_one_line_what_to_install(bare, code):
    done = bare.run("python", "-c", code, check=False)
    *traceback, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert "pip install 'det_keras[tensorflow]'" in last
    assert "tensorflow-cpu" in last
    assert not [line for line in traceback if "During handling" in line or "direct cause" in line]
    assert traceback.count("Traceback (most recent call last):") == 1
