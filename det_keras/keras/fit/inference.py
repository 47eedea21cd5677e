"""Evaluation and prediction on several workers, with the same results as on one worker."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.variables import build_for_evaluation
from det_keras.keras.data import ArrayShare, whole_data
from det_keras.keras.data.pydataset import standardize_batch
from det_keras.keras.data.wrap import is_sharded
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.distributed.virtual_replica import make_replica
from det_keras.keras.fit.arguments import checked_count
from det_keras.keras.fit.validator import Validator


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
        model: the compiled model.
        x: input arrays, a PyDataset or a tf.data.Dataset.
        y: targets, if `x` is arrays.
        workers: the workers that share the data; all of them must make this call.
        sample_weight: weights of the samples, if `x` is arrays.
        batch_size: samples per batch of one worker, if `x` is arrays.
        steps: number of batches to evaluate; None for all.
        callbacks: as in `model.evaluate`.
        verbose: as in `model.evaluate`; it applies to the chief only.
        return_dict: without effect; the metrics are always returned by name.

    Raises:
        ValueError: the data was not wrapped or is empty, or `batch_size` or `steps` is not a positive integer.
    """
    if batch_size is not None:
        batch_size = checked_count("batch_size", batch_size)
    if steps is not None:
        steps = checked_count("steps", steps)
    data = (x, y, sample_weight)
    if workers.size > 1:
        data = whole_data(data)
    validator = Validator(data, batch_size=batch_size, steps=steps, freq=1, workers=workers)
    try:
        build_for_evaluation(model, validator.element_spec)
        with make_replica(model, workers, SharedStep()).active():
            return validator.run(model, callbacks, verbose=verbose if workers.is_chief else 0)
    finally:
        validator.close()


def predict(model: Any, x: Any, workers: DistributedContext, *, gather: bool, **options: Any) -> Any:
    """Return the predictions for this worker's share, or for all data in the original order.

    Args:
        model: the built model.
        x: wrapped inputs. Each worker predicts every `size`-th batch of a PyDataset, every `size`-th element of a
            tf.data.Dataset, or its own rows of arrays.
        workers: the workers that share the data.
        gather: return the predictions of all workers, on every worker.
        options: other arguments of `model.predict`; without effect with a PyDataset.

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
    if gather and not is_sharded(x):
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
    """Return predictions in the original order of elements that were distributed to the workers in turn."""

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
