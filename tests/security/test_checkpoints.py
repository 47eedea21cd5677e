"""Checkpoints that someone else made."""

from __future__ import annotations

import pickle

import keras

from det_keras.keras.checkpoint.load import load_model_from_checkpoint_path
from det_keras.storage.manifest import verify_manifest, write_manifest


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def test_loading_the_model_of_a_checkpoint_runs_nothing_that_is_in_it(tmp_path):
    mark, checkpoint = tmp_path / "mark", tmp_path / "checkpoint"
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    states = checkpoint / "training_state" / "callbacks"
    states.mkdir(parents=True)
    model.save(checkpoint / "model.keras")
    (states / "0.pkl").write_bytes(pickle.dumps(Attack(mark)))
    write_manifest(checkpoint)
    verify_manifest(checkpoint)
    assert load_model_from_checkpoint_path(checkpoint).compiled
    assert not mark.exists()
    pickle.loads((states / "0.pkl").read_bytes()).close()
    assert mark.exists()
