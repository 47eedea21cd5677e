"""Contexts and histories in a notebook."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import det_keras as det


@pytest.fixture
def context(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    context = det.keras.init(hparams={"<b>rate": 0.1, "deep": {"units": 4}})
    yield context
    context.close()


def test_a_context_and_its_history_show_themselves(context):
    before = context._repr_html_()
    assert "&lt;b&gt;rate" in before
    assert "deep.units" in before
    assert "<svg" not in before
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(context.wrap_optimizer(keras.optimizers.SGD(0.01)), loss="mse")
    x = np.ones((8, 3), np.float32)
    history = context.fit(
        model, x=x, y=x[:, :1], validation_data=(x, x[:, :1]), epochs=3, batch_size=4, verbose=0
    )
    html = history._repr_html_()
    assert "3 epochs" in html
    assert "val_loss" in html
    assert "<svg" in html
    after = context._repr_html_()
    assert "<svg" in after
    assert "val_loss" in after
