"""Every way of feeding and calling `fit` gives what plain Keras gives, and resumes to the same end.

Plain Keras runs in the same process and is the expected value; nothing is written down by hand.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import keras
import pytest
from kinds import Interrupted
from ways import WAYS, PlainKeras, outcome

import det_keras as det
from det_keras.keras.callbacks.list import SeamlessCallbackList

SEED = int(os.environ.get("DET_KERAS_TEST_SEED", "20"))


def run_plain(name: str) -> list[Any]:
    keras.backend.clear_session()
    keras.utils.set_random_seed(11)
    return outcome(WAYS[name](PlainKeras()))


def run_managed(name: str, run_dir: Path, **config: Any) -> list[Any]:
    keras.backend.clear_session()
    with det.keras.init(config=config or None, run_dir=run_dir, seed=11) as context:
        return outcome(WAYS[name](context))


@pytest.mark.parametrize("name", WAYS)
def test_managed_training_is_that_of_plain_keras(name, tmp_path):
    assert run_managed(name, tmp_path / "run") == run_plain(name)


@pytest.mark.parametrize("name", WAYS)
def test_training_interrupted_twice_comes_to_the_same_end(name, tmp_path, monkeypatch):
    config = {"min_checkpoint_period": {"batches": 3}, "checkpoint_policy": "none"}
    counted = 0
    stop_at: int | None = None
    original = SeamlessCallbackList.on_train_batch_begin

    def on_train_batch_begin(self: Any, batch: int, logs: Any = None) -> None:
        nonlocal counted
        if counted == stop_at:
            raise Interrupted
        counted += 1
        original(self, batch, logs)

    monkeypatch.setattr(SeamlessCallbackList, "on_train_batch_begin", on_train_batch_begin)
    expected = run_managed(name, tmp_path / "undisturbed", **config)
    draw = random.Random(f"{SEED} {name}")
    total = counted
    for _ in range(2):
        counted, stop_at = 0, draw.randrange(max(total // 2, 1))
        with pytest.raises(Interrupted):
            run_managed(name, tmp_path / "interrupted", **config)
    stop_at = None
    assert run_managed(name, tmp_path / "interrupted", **config) == expected
