"""Hints for habits of Keras 2: each is made in earnest, so that we notice when Keras changes its words."""

from __future__ import annotations

import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import warm

from det_keras.keras.hints import hint_for


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["accuracy"])
    return model


X = np.zeros((4, 2), "float32")


HABITS = {
    "lambda m: keras.optimizers.legacy.Adam()": "class of the same name in `keras.optimizers`",
    "lambda m: keras.optimizers.Adam(lr=0.1)": "`lr` is called `learning_rate`",
    "lambda m: m.optimizer.lr": "`optimizer.learning_rate`",
    "lambda m: m.fit(X, X[:, :1], workers=2)": "have no `workers` in Keras 3",
    "lambda m: m.predict(X, use_multiprocessing=True)": "have no `use_multiprocessing` in Keras 3",
    "lambda m: m.fit_generator(iter([]))": "`fit_generator` is called `fit`",
    "lambda m: m.predict_classes(X)": "`.argmax(axis=-1)`",
    "lambda m: m.fit(X, X[:, :1], verbose=0).history['acc']": "has `accuracy` when",
    "lambda m: m.fit(X, X[:, :1], verbose=0).history['val_acc']": "has `val_accuracy` when",
    "lambda m: m.save_weights('weights')": "`.weights.h5`",
    "lambda m: m.save('model')": "`.keras`",
    "lambda m: keras.models.load_model('.')": "`.keras` and `.h5` files",
    "lambda m: exec('from keras.utils import np_utils')": "`keras.utils.to_categorical`",
    "lambda m: exec('from keras.layers.core import Dense')": "`from keras.layers import ...`",
    "lambda m: exec('from keras.wrappers.scikit_learn import KerasClassifier')": "SKLearnClassifier",
    "lambda m: keras.layers.experimental": "are in `keras.layers`",
    "lambda m: keras.backend.get_value(m.weights[0])": "`float(variable)`",
    "lambda m: keras.backend.get_session()": "leave the line out",
    "lambda m: keras.backend.abs(X)": "Look for `abs` in `keras.ops`",
    "lambda m: m.compile('sgd', 'mse', sample_weight_mode='temporal')": "has no `sample_weight_mode`",
    "lambda m: keras.callbacks.ModelCheckpoint('a.keras', period=2)": "`save_freq`",
    "lambda m: keras.layers.BatchNormalization(fused=True)": "Leave `fused` out",
    "lambda m: keras.metrics.Mean().reset_states()": "`reset_state`",
    "lambda m: tf.keras.optimizers.legacy.SGD(0.1)": "class of the same name",
}


@pytest.mark.parametrize("habit", HABITS)
def test_habit_gets_a_hint_with_its_line(habit, model, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(f"run = {habit}\n")
    space = {"keras": keras, "tf": tf, "X": X}
    exec(compile(script.read_text(), str(script), "exec"), space)
    with pytest.raises(Exception) as error:  # noqa: PT011 - each habit fails in its own way
        space["run"](model)
    hint = hint_for(error.value)
    assert hint is not None, f"Keras says now: {type(error.value).__name__}: {error.value}"
    assert hint.startswith(f"{script}, line 1: run = {habit}\n") or "exec(" in habit
    assert HABITS[habit] in hint


def test_other_errors_get_none(model):
    for error in (ValueError("lr"), KeyError("loss"), AttributeError("'Foo' object has no attribute 'x'")):
        assert hint_for(error) is None


@pytest.mark.parametrize(
    "opening",
    [
        "det.keras.init()\n",
        "with det.keras.init():\n    ",
        "import det_keras.keras\ncontext = det.core.init()\n",
    ],
    ids=["open", "with", "core"],
)
def test_hint_comes_after_the_traceback(tmp_path, opening):
    script = tmp_path / "script.py"
    script.write_text(f"import keras\nimport det_keras as det\n{opening}keras.optimizers.Adam(lr=0.1)\n")
    done = warm.run([sys.executable, script], capture_output=True, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.index("Traceback") < done.stderr.index("ValueError") < done.stderr.index("Hint: ")
    assert done.stderr.endswith("`lr` is called `learning_rate` in Keras 3.\n")


def test_only_an_open_context_replaces_the_hook_for_uncaught_errors():
    code = (
        "import sys\nbefore = sys.excepthook\nimport det_keras as det\nassert det.keras and sys.excepthook is before\n"
        "with det.keras.init():\n    assert sys.excepthook is not before\nassert sys.excepthook is before\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
