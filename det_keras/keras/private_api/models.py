"""Private names of Keras and TensorFlow for models: their layers, their files, and the callbacks of a training."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras

# Keras 3.12 to 3.15.
from keras.src.backend.common import global_state
from keras.src.saving import saving_lib

# TensorFlow 2.17 to 2.21.
from tensorflow.python.ops import summary_ops_v2

#: Writes and reads the weights file of a model, group by group; `store.make(path)` returns the group of a layer.
WeightsStore: Any = saving_lib.H5IOStore


#: Writes the files that layers store besides their variables.
AssetStore: Any = saving_lib.DiskIOStore


def all_layers(model: Any) -> list[Any]:
    """Return the model and all layers in it, at any depth, in a fixed order."""
    return list(model._flatten_layers())


def own_layers(layer: Any) -> list[Any]:
    """Return the layers that a layer holds directly, in a fixed order."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


def own_trainable_variables(layer: Any) -> list[Any]:
    """Return the weights that belong to a layer itself, also while it is frozen."""
    return list(getattr(layer, "_trainable_variables", ()))


def seed_generators(layer: Any) -> list[Any]:
    """Return the `keras.random.SeedGenerator`s of a layer itself."""
    return list(getattr(layer, "_seed_generators", ()))


@contextmanager
def noticed_saves(notice: Callable[[Any], None]) -> Iterator[None]:
    """Call `notice` inside the block with each path to which a model or its weights are saved."""
    originals = {name: getattr(keras.Model, name) for name in ("save", "save_weights")}

    def noticing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(self: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
            notice(filepath)
            return original(self, filepath, *arguments, **options)

        return save

    for name, original in originals.items():
        setattr(keras.Model, name, noticing(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(keras.Model, name, original)


def calling_frame() -> types.FrameType:
    """Return the frame of the function that called the caller of this one."""
    return sys._getframe(2)


def calling_frames() -> Iterator[types.FrameType]:
    """Yield the frames of the functions that led to the caller of this one, the innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


def save_state(model: Any, weights: Any, assets: Any) -> None:
    """Visit the layers of a model as Keras does when it saves one.

    Args:
        model: its layers' `save_own_variables` and `save_assets` are called.
        weights: a `WeightsStore` or an object with its methods.
        assets: an `AssetStore`; None for no assets.
    """
    saving_lib._save_state(
        model, weights_store=weights, assets_store=assets, inner_path="", visited_saveables=set()
    )


def current_group(store: Any) -> Any:
    """Return the HDF5 group of the layer that a `WeightsStore` writes at present; it is created if it is new."""
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    return store._h5_entry_group


def model_documents(model: Any) -> tuple[str, str]:
    """Return ``config.json`` and ``metadata.json`` of a model's `.keras` file.

    Raises:
        NotImplementedError, TypeError, ValueError: the model cannot be described.
    """
    config, metadata = saving_lib._serialize_model_as_json(model)
    return config, metadata


def separate_stacks(graph: Any) -> None:
    """Give each thread that builds `graph` name scopes, devices and control dependencies of its own."""
    graph.switch_to_thread_local()


def copied_thread_state() -> Any:
    """Return a context manager for another thread, in which Keras and summaries have the settings of this thread."""
    kept = [
        (state, dict(vars(state)))
        for state in (global_state.GLOBAL_STATE_TRACKER, summary_ops_v2._summary_state)
    ]

    @contextmanager
    def entered() -> Iterator[None]:
        for state, values in kept:
            vars(state).update(values)
        yield

    return entered()


def progress_bar_of(callbacks: keras.callbacks.CallbackList) -> Any:
    """Return the progress bar that Keras added to a list of callbacks, None without one."""
    return callbacks._progbar


def wait_for_threads(callbacks: keras.callbacks.CallbackList) -> None:
    """Wait for callbacks that Keras runs in threads."""
    callbacks._flush_futures()


def stop_threads(callbacks: keras.callbacks.CallbackList) -> None:
    """End the threads in which Keras runs callbacks; Keras itself does so at the end of a training only."""
    if callbacks._executor is not None:
        callbacks._executor.shutdown()
        callbacks._executor = None
