"""The random states outside the model: Python, NumPy, TensorFlow, Keras, and PyTorch if the script uses it.

The state of stateful ``tf.random.*`` ops inside a train step cannot be read. Use ``keras.random`` with a
``SeedGenerator``, or a ``tf.random.Generator`` on a layer, whose states are saved.
"""

from __future__ import annotations

import base64
import random
import sys
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.keras.private_api.models import all_layers
from det_keras.keras.private_api.random_ops import (
    eager_random_stream,
    existing_keras_seed_generator,
    keras_seed_generator,
)


def capture_streams() -> dict[str, Any]:
    """Return the states of the random streams that do not belong to a model, as JSON values by name."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    eager = eager_random_stream()
    return {
        "python": [version, list(internal), gauss],
        "numpy": [name, np.asarray(keys).tolist(), int(position), int(has_gauss), float(cached)],
        "keras": _read(seeds.state) if (seeds := existing_keras_seed_generator()) is not None else None,
        "tensorflow": _eager_state(eager) if eager is not None else None,
        "generator": _read(tf.random.get_global_generator().state),
        "torch": _torch_state(),
    }


def restore_streams(state: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Restore the states that `capture_streams` returned.

    Args:
        state: the states by name.
        without: names of streams that are not restored.
    """
    state = {name: None if name in without else value for name, value in state.items()}
    if state["keras"] is not None:
        # Restore Keras's stream first: if this process has not used it yet, it is created here, and creating it draws
        # from Python's stream.
        keras_seed_generator().state.assign(state["keras"])
    if state["python"] is not None:
        version, internal, gauss = state["python"]
        random.setstate((version, tuple(internal), gauss))
    if state["numpy"] is not None:
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    eager = eager_random_stream()
    if eager is not None and state["tensorflow"] is not None:
        version, internal, gauss = state["tensorflow"]
        eager.setstate((version, tuple(internal), gauss))
    if state["generator"] is not None:
        tf.random.get_global_generator().state.assign(state["generator"])
    # Checkpoints of earlier versions do not have it.
    if state.get("torch") is not None and (torch := _torch()) is not None:
        content = np.frombuffer(base64.b64decode(state["torch"]), np.uint8)
        torch.set_rng_state(torch.from_numpy(content.copy()))


def capture_random_state(model: Any) -> dict[str, Any]:
    """Return all random states as JSON values: the streams, and the generators that layers of `model` hold."""
    streams = capture_streams()
    generators = [
        streams.pop("generator"),
        *(_read(generator.state) for generator in layer_generators(model)),
    ]
    return {**streams, "generators": generators}


def restore_random_state(model: Any, state: Mapping[str, Any], *, without: Collection[str] = ()) -> None:
    """Restore the states that `capture_random_state` or `capture_streams` returned.

    Args:
        model: the model whose layers hold generators; None for streams only.
        state: the states.
        without: names of streams that are not restored.
    """
    first, *others = state.get("generators", [state.get("generator")])
    restore_streams({**state, "generator": first}, without=without)
    generators = () if model is None else layer_generators(model)
    for generator, value in zip(generators, others, strict=False):
        generator.state.assign(value)


def _read(variable: Any) -> list[int]:
    values: list[int] = np.asarray(variable).tolist()
    return values


def _eager_state(stream: random.Random) -> list[Any]:
    version, internal, gauss = stream.getstate()
    return [version, list(internal), gauss]


def _torch() -> Any:
    """Return PyTorch if the script has imported it: DataLoaders draw their order from PyTorch's random stream."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "get_rng_state") else None


def _torch_state() -> str | None:
    torch = _torch()
    if torch is None:
        return None
    # The state has about 5,000 bytes: as a list of numbers it would be most of a checkpoint's JSON.
    return base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode()


def layer_generators(model: Any) -> Iterator[tf.random.Generator]:
    """Yield the `tf.random.Generator`s that layers hold, in a fixed order."""
    for layer in all_layers(model):
        held = {name: value for name, value in vars(layer).items() if isinstance(value, tf.random.Generator)}
        for _, generator in sorted(held.items()):
            yield generator
