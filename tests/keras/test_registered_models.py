"""Models that a local run registers: in its run directory, kept, and the same after a resume."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

import det_keras as det
from det_keras.errors import CheckpointError

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X.sum(1)


def built():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")], name="sums")
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def train(run_dir, epochs_of_fits=(2, 8)):
    """Run a script that registers after each of its trainings; return the versions."""
    with det.keras.init(run_dir=run_dir, seed=1) as context:
        model = built()
        versions = []
        for epochs in epochs_of_fits:
            context.fit(model, X, Y, validation_data=(X, Y), epochs=epochs, verbose=0)
            versions.append(context.register_model("sums", aliases=["candidate"]))
        loaded = [context.load_checkpoint_model(model=f"sums:{one.model_version}") for one in versions]
        return versions, [one.get_weights()[0].ravel().tolist() for one in loaded]


def test_version_is_kept_and_a_second_start_registers_the_same(tmp_path):
    versions, weights = train(tmp_path)
    assert [one.model_version for one in versions] == [1, 2]
    stored = json.loads((tmp_path / "models.json").read_text())["sums"]
    assert [one["aliases"] for one in stored] == [[], ["candidate"]]
    again, same = train(tmp_path)
    assert [one.checkpoint_uuid for one in again] == [one.checkpoint_uuid for one in versions]
    assert same == weights
    assert json.loads((tmp_path / "models.json").read_text())["sums"] == stored


def test_reference_names_a_version(tmp_path):
    versions, weights = train(tmp_path)
    with det.keras.init(run_dir=tmp_path) as context:
        for reference, number in (("sums", 2), ("sums@latest", 2), ("sums@candidate", 2), ("sums:1", 1)):
            model = context.load_checkpoint_model(model=reference)
            assert model.get_weights()[0].ravel().tolist() == weights[number - 1]
        for reference in ("sums:3", "sums@champion"):
            with pytest.raises(CheckpointError, match="no such version"):
                context.load_checkpoint_model(model=reference)
        with pytest.raises(ValueError, match="'digits:3'"):
            context.load_checkpoint_model(model="sums:")
        with pytest.raises(ValueError, match="exactly one"):
            context.load_checkpoint_model(model="sums", checkpoint_uuid=versions[0].checkpoint_uuid)


def test_what_cannot_be_registered_is_told(tmp_path):
    with det.keras.init(run_dir=tmp_path) as context:
        with pytest.raises(CheckpointError, match="no checkpoint to register yet"):
            context.register_model("sums")
        with pytest.raises(ValueError, match="name of a model"):
            context.register_model("a/b")
        with pytest.raises(ValueError, match="always has the alias"):
            context.register_model("sums", aliases=["latest"])
