"""The validation data of a `fit`, opened once, and its evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data import DataSource, is_arrays, open_source
from det_keras.keras.data.generator import read_items, with_items
from det_keras.keras.data.tfdata import TfDataSource
from det_keras.keras.data.wrap import is_generator


class Validator:
    """Evaluates a model on validation data, the same batches each time.

    Args:
        data: (x, y, sample_weight), a PyDataset or a tf.data.Dataset, as for `validation_data`.
        batch_size: samples per batch; used with arrays only.
        steps: number of batches to evaluate; None for all.
        freq: the epochs after which to validate: every n-th epoch, or a collection of epoch numbers from 1.
        workers: the workers that share the data; with several, `data` is the whole data, not a share.

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
            # An infinite dataset is valid here: each validation begins at its start.
            parts = (x.take(steps), None, None) if is_cut else parts
        self._steps = steps
        self._freq = freq
        # Of other data, what follows the steps is cut off.
        self._steps_of_generator = steps if is_generator(x) else None
        self._source: DataSource | None = None
        self._parts = parts
        self._open = partial(
            open_source,
            batch_size=batch_size if is_arrays(x) else None,
            shuffle=False,
            seed=0,
            workers=workers,
        )
        # As in Keras, which does not reach the end of this data.
        self._opens_at_end = not is_cut
        if not isinstance(x, keras.utils.PyDataset) and not is_generator(x):
            # Wrong data is reported before training.
            _ = self.source

    @property
    def source(self) -> DataSource:
        """The batches; each validation is one pass over them.

        Opening some kinds of data reads from it. As in Keras, that is at the first validation.
        """
        if self._source is None:
            self._source = self._open(self._parts)
            if isinstance(self._source, TfDataSource):
                self._source.opens_at_end &= self._opens_at_end
        return self._source

    @property
    def is_open(self) -> bool:
        """Whether the data was opened."""
        return self._source is not None

    def close(self) -> None:
        """Release the data."""
        if self._source is not None:
            self._source.close()

    @property
    def element_spec(self) -> Any:
        """The structure, shapes and dtypes of one batch."""
        return self.source.element_spec

    @property
    def may_lack_rows(self) -> bool:
        """Whether a worker may have no row of some batch."""
        return self.source.may_lack_rows

    def is_due(self, epoch: int) -> bool:
        """Return whether to validate at the end of `epoch`, counted from 0."""
        if isinstance(self._freq, int):
            return (epoch + 1) % self._freq == 0
        return epoch + 1 in self._freq

    def run(self, model: Any, callbacks: Any, *, verbose: Any = 0) -> dict[str, float]:
        """Evaluate `model` and return Keras's metrics by name, without the prefix ``val_``.

        Args:
            model: the compiled model.
            callbacks: as in `model.evaluate`.
            verbose: as in `model.evaluate`.

        Raises:
            ValueError: the data turns out to be empty.
        """
        self.source.reset()
        steps = self._steps or self.source.steps_per_epoch
        self.source.begin_epoch(0, 0, steps)
        logs: dict[str, float] = model.evaluate(
            self.source.dataset(steps), callbacks=callbacks, return_dict=True, verbose=verbose
        )
        if not logs and self._is_empty():
            raise ValueError("The data to evaluate on is empty: not one batch came of it.")
        self.source.end_epoch(0)
        self.source.settle(steps)
        return logs

    def skip(self, validations: int, source_state: Mapping[str, Any], directory: Path | None = None) -> None:
        """Bring the data to the state in which an earlier process left it after so many validations.

        Args:
            validations: number of validations of the earlier process.
            source_state: what `DataSource.save_state` or `state_between_passes` returned there.
            directory: the directory of `save_state`.
        """
        if validations and directory is not None and is_generator(self._parts[0]):
            self._parts = (with_items(self._parts[0], read_items(directory)), None, None)
        if validations:
            self.source.skip_passes(validations, source_state, steps=self._steps_of_generator)

    def _is_empty(self) -> bool:
        """Return whether the data has no batch; it is read, because its length may be unknown."""
        steps = self._steps or self.source.steps_per_epoch
        self.source.begin_epoch(0, 0, steps)
        return next(iter(self.source.dataset(steps)), None) is None


def unpack(data: Any) -> tuple[Any, Any, Any]:
    """Return data as (x, y, sample_weight), with None for absent parts.

    Raises:
        ValueError: `data` is a list or tuple of no or more than three parts.
    """
    if not isinstance(data, list | tuple):
        return data, None, None
    if not 1 <= len(data) <= 3:
        raise ValueError(
            "Validation data is a dataset, (x, y) or (x, y, sample_weight). "
            f"Received a {type(data).__name__} of {len(data)} parts."
        )
    x, y, sample_weight = [*data, None, None][:3]
    return x, y, sample_weight
