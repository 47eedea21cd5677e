"""Evaluation and prediction by many workers, with the results of one."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.variables import build_for_evaluation
from det_keras.keras.data import ArrayShare, whole_data
from det_keras.keras.data.pydataset import standardize_batch
from det_keras.keras.data.wrap import is_dealt_out
from det_keras.keras.distributed.gradients import SharedStep
from det_keras.keras.distributed.replica import Replica
from det_keras.keras.engine.arguments import checked_count
from det_keras.keras.engine.validator import Validator

__all__ = ["evaluate", "predict"]


def evaluate(
    model: Any,
    x: Any,
    y: Any,
    workers: DistributedContext,
    *,
    sample_weight: Any = None,
    batch_size: int | None = None,
    steps: int | None = None,
    callbacks: Any = None,
    verbose: Any = 0,
    return_dict: bool = True,
) -> dict[str, float]:
    """Return the metrics of wrapped data by name, the same on every worker.

    Args:
        model: compiled.
        x: inputs, a PyDataset or a tf.data.Dataset.
        y: targets, with arrays.
        workers: who shares the data.
        sample_weight: weights of the samples, with arrays.
        batch_size: samples per batch of one worker, with arrays.
        steps: batches to evaluate; None for all.
        callbacks: as in `model.evaluate`.
        verbose: as in `model.evaluate`, on the chief.
        return_dict: without effect, metrics come by name.

    Raises:
        ValueError: the data was not wrapped or is empty, or a number makes no sense.
    """
    if batch_size is not None:
        batch_size = checked_count("batch_size", batch_size)
    if steps is not None:
        steps = checked_count("steps", steps)
    data = whole_data((x, y, sample_weight))
    validator = Validator(data, batch_size=batch_size, steps=steps, freq=1, workers=workers)
    build_for_evaluation(model, validator.element_spec)
    with Replica(model, workers, SharedStep()).active():
        return validator.run(model, callbacks, verbose=verbose if workers.is_chief else 0)


def predict(model: Any, x: Any, workers: DistributedContext, *, gather: bool, **options: Any) -> Any:
    """Return the predictions of this worker's share, or of everything in the original order.

    Args:
        model: built.
        x: wrapped inputs. Of a PyDataset each worker takes every `size`-th batch, of a tf.data.Dataset every
            `size`-th element, of arrays its rows.
        workers: who shares the data.
        gather: return the predictions of all workers on each of them.
        options: other arguments of `model.predict`; of no effect with a PyDataset.

    Raises:
        ValueError: the data was not wrapped, has no batch for this worker, or its original order is not known.
    """
    if isinstance(x, keras.utils.PyDataset):
        return _predict_batches(model, x, workers, gather=gather)
    whole_data((x,))
    if not isinstance(x, tf.data.Dataset):
        plain = keras.tree.map_structure(
            lambda one: one.view(np.ndarray) if isinstance(one, ArrayShare) else one, x
        )
        predictions = model.predict(plain, **options)
        return _joined(workers.allgather(predictions)) if gather else predictions
    if gather and not is_dealt_out(x):
        raise ValueError(
            "With `shard=False` only you know which elements each worker has, and so the original order. Wrap the "
            "dataset without it, or call `predict` without `gather=True` and `context.distributed.allgather` the parts."
        )
    predictions = model.predict(x, **options)
    return _interleaved(workers.allgather(predictions)) if gather else predictions


def _predict_batches(model: Any, dataset: Any, workers: DistributedContext, *, gather: bool) -> Any:
    whole_data((dataset,))
    if dataset.num_batches is None:
        raise ValueError(
            "Several workers can predict a PyDataset only if it has a length: define `__len__` or `num_batches`."
        )
    numbers = range(workers.rank, dataset.num_batches, workers.size)
    own = [
        model.predict_on_batch(keras.utils.unpack_x_y_sample_weight(standardize_batch(dataset[number]))[0])
        for number in numbers
    ]
    if not gather:
        if not own:
            raise ValueError(
                f"The {dataset.num_batches} batches of the PyDataset leave none for rank {workers.rank} of "
                f"{workers.size}. Make smaller batches, or pass `gather=True`."
            )
        return _joined(own)
    gathered = workers.allgather(own)
    return _joined(
        [gathered[number % workers.size][number // workers.size] for number in range(dataset.num_batches)]
    )


def _joined(parts: list[Any]) -> Any:
    return keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)


def _interleaved(parts: list[Any]) -> Any:
    """Put back in order what was dealt out one element at a time."""

    def merge(*arrays: Any) -> Any:
        if any(len(array) not in (len(arrays[0]), len(arrays[0]) - 1) for array in arrays):
            raise ValueError(
                f"The workers predicted {', '.join(str(len(array)) for array in arrays)} rows, which were not dealt "
                "out one by one: something between `wrap_data` and `predict` leaves out or adds some. Wrap after it."
            )
        merged = np.empty((sum(map(len, arrays)), *arrays[0].shape[1:]), arrays[0].dtype)
        for rank, array in enumerate(arrays):
            merged[rank :: len(arrays)] = array
        return merged

    return keras.tree.map_structure(merge, *parts)
