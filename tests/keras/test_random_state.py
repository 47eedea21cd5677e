"""Every random stream goes on where the checkpoint was taken, also in a process that has not drawn from it."""

from __future__ import annotations

import json
import random
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from det_keras.keras.checkpoint.random_state import capture_random_state, restore_random_state

STREAMS = {
    "python": random.random,
    "numpy": np.random.random,
    "tensorflow": lambda: tf.random.uniform(()),
    "generator": lambda: tf.random.get_global_generator().uniform(()),
    "keras": lambda: keras.random.uniform(()),
}


def draw_all() -> dict[str, float]:
    return {name: float(draw()) for name, draw in STREAMS.items()}


def begin_process() -> None:
    """Be as random as a process that has just begun."""
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)


@pytest.fixture
def model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])


@pytest.mark.parametrize("drawn_before", [False, True], ids=["not drawn before", "drawn before"])
def test_streams_go_on_in_a_process_that_has_just_begun(drawn_before, model):
    begin_process()
    if drawn_before:
        draw_all()
    state = capture_random_state(model)
    expected = [draw_all(), draw_all()]
    begin_process()
    restore_random_state(model, state)
    assert [draw_all(), draw_all()] == expected


class Torch:
    """Stands in for PyTorch, which is too large for the tests: a stream whose state is a tensor of bytes."""

    def __init__(self) -> None:
        self._stream = np.random.RandomState(1)

    def rand(self) -> float:
        return float(self._stream.random_sample())

    def get_rng_state(self) -> SimpleNamespace:
        _, keys, position, *_ = self._stream.get_state()
        content = np.append(keys, np.uint32(position)).view(np.uint8)
        return SimpleNamespace(numpy=lambda: content)

    def set_rng_state(self, content: np.ndarray) -> None:
        *keys, position = content.view(np.uint32)
        self._stream.set_state(("MT19937", np.array(keys), int(position)))

    @staticmethod
    def from_numpy(content: np.ndarray) -> np.ndarray:
        return content


def test_stream_of_pytorch_goes_on_where_the_script_uses_it(model, monkeypatch):
    before_its_import = capture_random_state(model)
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    torch.rand()
    state = json.loads(json.dumps(capture_random_state(model)))
    expected = [torch.rand(), torch.rand()]
    restore_random_state(model, state)
    assert [torch.rand(), torch.rand()] == expected
    restore_random_state(model, state)
    restore_random_state(model, before_its_import)
    assert torch.rand() == expected[0]


def test_capture_does_not_draw(model):
    begin_process()
    undisturbed = [draw_all(), draw_all()]
    begin_process()
    tf.random.get_global_generator().reset_from_seed(1)
    first = [draw_all()]
    capture_random_state(model)
    second = [draw_all()]
    for name in set(STREAMS) - {"generator"}:
        assert [first[0][name], second[0][name]] == [draws[name] for draws in undisturbed]
