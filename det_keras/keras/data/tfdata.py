"""Batches of a user's `tf.data.Dataset`, its iterator saved and restored where TensorFlow can.

A shuffled dataset draws new seeds each time an iterator is opened. Opening and dropping one for each
finished epoch therefore brings a fresh process to the same order, at any epoch's start. Inside an epoch
the iterator's own checkpoint has the position, shuffle buffers included; where a pipeline refuses to be
saved (`from_generator`, `py_function`, random ops in `map`), its batches are read again without training.

The checkpoint of an iterator is trusted for the rest of its own pass only. TensorFlow (2.18 to 2.21) puts
the seeds of later passes off by one when the shuffle's input was already read to its end, which a
`prefetch` or a parallel `map` makes likely. So the iterators of the epochs to come are opened, and their
seeds drawn, before the interrupted one is restored; and a dataset that is read on across epochs
(`steps_per_epoch`) is read again from its beginning.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.data.base import DataSource, PlannedDataset
from det_keras.keras.distributed.exchange import sum_over_workers

__all__ = ["TfDataSource"]

logger = logging.getLogger(__name__)

_SLOW_SAVE_S = 0.1
_FILE_PREFIX = "iterator"
_MOST_AHEAD = 1000


class TfDataSource(DataSource):
    """Batches of a `tf.data.Dataset`.

    Args:
        dataset: the user's, batched.
        steps_per_epoch: batches that count as one epoch; the data is then read on from epoch to epoch, and
            from its beginning when it ends. By default an epoch is one pass.
        workers: with several, elements are (batch, rows) pairs, and all take the same number of steps.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        steps_per_epoch: int | None = None,
        workers: DistributedContext | None = None,
    ) -> None:
        cardinality = int(dataset.cardinality())
        if cardinality == 0:
            raise ValueError("The tf.data.Dataset is empty: it has 0 batches.")
        if cardinality == tf.data.INFINITE_CARDINALITY and steps_per_epoch is None:
            raise ValueError(
                "The tf.data.Dataset repeats for ever. Pass `steps_per_epoch` to say what an epoch is, "
                "or leave out `.repeat()`."
            )
        self._goes_on = steps_per_epoch is not None
        self._is_shared = workers is not None and workers.size > 1
        self._dataset = dataset.repeat() if self._goes_on and cardinality > 0 else dataset
        self.steps_per_epoch = steps_per_epoch or (cardinality if cardinality > 0 else None)
        if workers is not None and self._is_shared:
            cardinality = max(cardinality, 0) if cardinality != tf.data.UNKNOWN_CARDINALITY else cardinality
            self._share(workers.allgather(cardinality), steps_per_epoch)
        self._iterator: Any = None
        self._pending = False
        self._refused = False
        self._was_slow = False
        # Iterators of later epochs, opened before the interrupted one was restored.
        self._ahead: deque[Any] = deque()

    @property
    def element_spec(self) -> Any:
        spec = self._dataset.element_spec
        return spec[0] if self._is_shared else spec

    def describe(self) -> dict[str, Any]:
        specs = tf.nest.flatten(self.element_spec)
        return {
            "kind": "tf.data",
            # The first dimension is the batch: None or a number with the same meaning.
            "shapes": [[*(spec.shape.as_list() or [None])[1:], spec.dtype.name] for spec in specs],
            "steps_per_epoch": self.steps_per_epoch,
        }

    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        if first_step == 0 and not (self._goes_on and self._iterator is not None):
            self._pending = True

    def dataset(self, cardinality: int | None) -> tf.data.Dataset:
        return PlannedDataset(self._dataset, self._open, cardinality)

    def save_state(self, directory: Path) -> dict[str, Any]:
        if self._iterator is None or self._refused or self._goes_on:
            return {"saved": False}
        directory.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            tf.train.Checkpoint(iterator=self._iterator).write(str(directory / _FILE_PREFIX))
        except tf.errors.OpError as error:
            self._refused = True
            logger.warning(
                "tf.data cannot save this pipeline's position because of %s: a resume will read the batches of "
                "the interrupted epoch again without training on them, which is exact only if the pipeline gives "
                "the same batches each time.",
                _refusing_op(error),
            )
            return {"saved": False}
        self._tell_if_slow(time.perf_counter() - started)
        return {"saved": True}

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> None:
        if self._goes_on:
            assert self.steps_per_epoch is not None
            self._iterator = iter(self._dataset)
            self._skip(epoch * self.steps_per_epoch + step)
            return
        self.pass_over(epoch)
        if step == 0:
            return
        self._iterator = iter(self._dataset)
        if not state.get("saved"):
            self._skip(step)
            return
        self._ahead = deque(iter(self._dataset) for _ in range(min(epochs_left - 1, _MOST_AHEAD)))
        tf.train.Checkpoint(iterator=self._iterator).read(str(directory / _FILE_PREFIX)).assert_consumed()

    def pass_over(self, passes: int) -> None:
        """Bring the shuffle seeds to where they are after `passes` passes over the data."""
        for _ in range(passes):
            iter(self._dataset)

    def _share(self, cardinalities: list[int], steps_per_epoch: int | None) -> None:
        """Count rows, and let workers whose data ends before that of others take steps without any."""
        spec = self._dataset.element_spec
        self._dataset = self._dataset.map(
            lambda *batch: (batch, tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0])
        )
        if steps_per_epoch is not None:
            return
        nothing = tf.nest.map_structure(_one_row_of_zeros, spec if isinstance(spec, tuple) else (spec,))
        empty = tf.data.Dataset.from_tensors((nothing, tf.constant(0, tf.int64)))
        if min(cardinalities) >= 0:
            self.steps_per_epoch = max(cardinalities)
            self._dataset = self._dataset.concatenate(empty.repeat(max(cardinalities)))
            self._dataset = self._dataset.take(max(cardinalities))
            return
        # Nobody knows how long the data is: after each batch the workers tell each other whether they have another.
        self.steps_per_epoch = None
        ended = tf.data.Dataset.from_tensors((nothing, tf.constant(-1, tf.int64))).repeat()
        self._dataset = self._dataset.concatenate(ended).map(_with_rows_of_all)
        self._dataset = self._dataset.take_while(lambda batch, rows, left: left > 0)
        self._dataset = self._dataset.map(lambda batch, rows, left: (batch, tf.maximum(rows, 0)))
        options = tf.data.Options()
        # TensorFlow would ask in parallel, and ahead: an answer belongs to the step that is about to be taken.
        options.experimental_optimization.apply_default_optimizations = False
        self._dataset = self._dataset.with_options(options)

    def _open(self) -> Any:
        if self._pending or self._iterator is None:
            self._pending = False
            self._iterator = self._ahead.popleft() if self._ahead else iter(self._dataset)
        return self._iterator

    def _skip(self, steps: int) -> None:
        for _ in range(steps):
            next(self._iterator)

    def _tell_if_slow(self, seconds: float) -> None:
        if seconds > _SLOW_SAVE_S and not self._was_slow:
            self._was_slow = True
            logger.warning(
                "Saving the position of the tf.data pipeline took %.2f s of training time. "
                "A smaller `shuffle` buffer makes checkpoints faster.",
                seconds,
            )


def _one_row_of_zeros(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([1, *(size or 1 for size in spec.shape.as_list()[1:])], spec.dtype)


def _with_rows_of_all(batch: Any, rows: tf.Tensor) -> Any:
    (left,) = sum_over_workers([tf.cast(rows >= 0, tf.int32)], name="workers_with_data")
    return batch, rows, left


def _refusing_op(error: tf.errors.OpError) -> str:
    """Return the op that an error of tf.data's serialisation blames, as far as it names one."""
    text = str(error.message)
    found = re.search(r"(\w*(?:Generator|PyFunc|Random|Stateful)\w*)", text) or re.search(
        r"op[: ]+`?(\w+)", text
    )
    return f"`{found.group(1)}`" if found else text.splitlines()[0][:200]
