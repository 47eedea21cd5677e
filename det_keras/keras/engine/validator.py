"""The validation of a `fit`: its data, opened once, and how it is run."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data import is_arrays, open_source
from det_keras.keras.data.tfdata import TfDataSource

__all__ = ["Validator", "unpack"]


class Validator:
    """Evaluates a model on validation data, the same batches each time.

    Args:
        data: (x, y, sample_weight), or a PyDataset or tf.data.Dataset, as `validation_data` takes it.
        batch_size: samples per batch, for arrays.
        steps: batches to evaluate; None for all.
        freq: the epochs after which to validate: every n-th, or a collection of numbers from 1.
        workers: who shares the data; that of several is whole.

    Attributes:
        source: its batches; each validation is a pass.
    """

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int | None,
        steps: int | None,
        freq: Any,
        workers: DistributedContext | None = None,
    ) -> None:
        parts = unpack(data)
        x = parts[0]
        is_cut = False
        if isinstance(x, tf.data.Dataset) and steps is not None:
            length = int(x.cardinality())
            is_cut = not 0 < length <= steps
            steps = steps if is_cut else length
            # A dataset that repeats for ever is fine here: each validation begins anew.
            parts = (x.take(steps), None, None) if is_cut else parts
        self.source = open_source(
            parts,
            batch_size=batch_size if is_arrays(x) else None,
            shuffle=False,
            seed=0,
            workers=workers,
        )
        if is_cut and isinstance(self.source, TfDataSource):
            # As Keras, which does not come to the end of this data.
            self.source.opens_at_end = False
        self._steps = steps if steps is not None else self.source.steps_per_epoch
        self._freq = freq

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""
        return self.source.element_spec

    @property
    def may_lack_rows(self) -> bool:
        """Whether a worker may have no row of some batch."""
        return self.source.may_lack_rows

    def is_due(self, epoch: int) -> bool:
        """Tell whether to validate at the end of `epoch`, counted from 0."""
        if isinstance(self._freq, int):
            return (epoch + 1) % self._freq == 0
        return epoch + 1 in self._freq

    def run(self, model: Any, callbacks: Any, *, verbose: Any = 0) -> dict[str, float]:
        """Evaluate `model` and return Keras's metrics by their plain names.

        Raises:
            ValueError: the data turns out to be empty.
        """
        self.source.reset()
        self.source.begin_epoch(0, 0, self._steps)
        logs: dict[str, float] = model.evaluate(
            self.source.dataset(self._steps), callbacks=callbacks, return_dict=True, verbose=verbose
        )
        if not logs and self._is_empty():
            raise ValueError("The data to evaluate on is empty: not one batch came of it.")
        self.source.end_epoch(0)
        return logs

    def _is_empty(self) -> bool:
        """Look for a batch; where the length is not known, only that can tell."""
        self.source.begin_epoch(0, 0, self._steps)
        return next(iter(self.source.dataset(self._steps)), None) is None


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Return data as (x, y, sample_weight), None where a part is absent."""
    if not isinstance(data, list | tuple):
        return data, None, None
    if not 1 <= len(data) <= 3:
        raise ValueError(
            "Validation data is a dataset, (x, y) or (x, y, sample_weight). "
            f"Received a {type(data).__name__} of {len(data)} parts."
        )
    x, y, sample_weight = [*data, None, None][:3]
    return x, y, sample_weight
