"""`wrap_data`: what the user's input is, and this process's place in it.

One worker gets back the very object that it gave: nothing is copied and nothing behaves differently.
"""

from __future__ import annotations

import inspect
from typing import Any

import keras
import tensorflow as tf

from det_keras.keras.data.arrays import num_samples

__all__ = ["DataContext", "check_data"]


class DataContext:
    """Makes training data known to the context.

    Args:
        size: number of workers.
    """

    def __init__(self, size: int) -> None:
        self._size = size

    def wrap(self, *data: Any, shard: bool = True, per_worker_batches: bool = False) -> Any:
        """Return `data`, ready for `fit`, `evaluate` and `predict` on any number of workers.

        Args:
            data: what `model.fit` takes: x; x and y; x, y and sample weights, each an array or lists and
                dicts of arrays; or one `keras.utils.PyDataset`; or one `tf.data.Dataset`.
            shard: for a tf.data.Dataset, False leaves sharding to the caller.
            per_worker_batches: for a PyDataset, its items are batches of one worker, not global ones.

        Returns:
            One object for one argument, a tuple for several.

        Raises:
            TypeError: the data is a generator or something else that cannot be planned.
            ValueError: arrays are empty, differ in length, or are fewer than the workers.
        """
        if not data:
            raise TypeError("`wrap_data` needs data: x; x and y; a PyDataset; or a tf.data.Dataset.")
        check_data(data, workers=self._size)
        return data[0] if len(data) == 1 else data


def check_data(data: tuple[Any, ...], *, workers: int = 1) -> None:
    """Refuse data that cannot be planned; raises as `DataContext.wrap` says."""
    first = data[0]
    if is_generator(first):
        raise TypeError(
            "A Python generator cannot be taken up where training stopped. Use a keras.utils.PyDataset, whose "
            "batches have numbers, or tf.data.Dataset.from_generator(...)."
        )
    if isinstance(first, tf.data.Dataset | keras.utils.PyDataset):
        if len(data) > 1 and any(part is not None for part in data[1:]):
            raise ValueError(f"A {type(first).__name__} brings its own targets: pass it alone.")
        return
    sizes = sorted({num_samples(part) for part in data if part is not None and keras.tree.flatten(part)})
    if len(sizes) > 1 or not sizes:
        raise ValueError(f"All arrays need the same number of samples. Received arrays of {sizes} samples.")
    for part in data:
        lengths = sorted(
            {int(array.shape[0]) for array in keras.tree.flatten(part) if hasattr(array, "shape")}
        )
        if len(lengths) > 1:
            raise ValueError(
                f"All arrays need the same number of samples. Received arrays of {lengths} samples."
            )
    if sizes[0] == 0:
        raise ValueError("The data is empty: the arrays hold 0 samples.")
    if sizes[0] < workers:
        raise ValueError(
            f"{sizes[0]} samples cannot be shared by {workers} workers. Give more data or use fewer slots."
        )


def is_generator(value: Any) -> bool:
    """Tell whether `value` is a generator, a generator function, or an iterator of batches."""
    if inspect.isgenerator(value) or inspect.isgeneratorfunction(value):
        return True
    return hasattr(value, "__next__") or type(value).__module__.startswith("torch.utils.data")
