"""The history of a checkpoint is complete and exact, packed or as earlier releases stored it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from det_keras.keras import FitHistory
from det_keras.keras.history import pack_history


def history():
    found = FitHistory()
    found.epoch = [0, 1, 2]
    found.history = {
        "loss": [0.1, float("nan"), 1e-300],
        "val_loss": [float("inf")],
        "per_class": [[1.0, 2.0]] * 3,
    }
    return found


@pytest.mark.parametrize("pack", [dict, pack_history], ids=["plain", "packed"])
def test_history_is_restored_exactly(pack):
    state = json.loads(json.dumps(pack(history().get_state())))
    restored = FitHistory()
    restored.load_state(state)
    assert restored.epoch == [0, 1, 2]
    assert list(restored.history) == ["loss", "val_loss", "per_class"]
    for name, values in history().history.items():
        np.testing.assert_array_equal(restored.history[name], values)
    assert restored.columns()["val_loss"] == {2: float("inf")}


def test_packed_history_stays_small():
    long = FitHistory()
    long.epoch = list(range(1000))
    long.history = {"loss": (np.arange(1000) / 3).tolist()}
    assert len(pack_history(long.get_state())["history"]["loss"]) < 11_000
