"""Batches of a user's `tf.data.Dataset`, whose iterator is saved and restored if TensorFlow supports it.

A shuffled dataset draws new seeds each time an iterator is opened. Keras opens an iterator when an epoch begins and,
if it knows the number of batches, another one when the epoch ends. This source does the same, so that each epoch has
the order of plain Keras. Opening and dropping the same number of iterators therefore brings a new process to the same
order, at the beginning of any epoch. Inside an epoch the iterator's own checkpoint contains the position, including
shuffle buffers.

In three cases a pass is read again from its beginning, without training: for a pipeline that TensorFlow refuses to save
(`from_generator`, `py_function`, random ops in `map`), for a shuffle over another one, and for a cache in memory, which
must be filled in the order of the interrupted run. For this a checkpoint contains the state of the pipeline at the
beginning of the pass: the random streams, and every variable that a function of the pipeline writes, such as the seeds
of Keras's augmentation layers.

The checkpoint of an iterator is used for the rest of its own pass only. In TensorFlow 2.18 to 2.21 the seeds of later
passes are off by one if the shuffle's input was already read to its end, which a `prefetch` or a parallel `map` makes
likely. Therefore the iterators of the remaining epochs are opened, and their seeds drawn, before the interrupted one
is restored. A dataset that is read continuously across epochs (`steps_per_epoch`) is read again from its beginning.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.random_state import capture_streams, restore_streams
from det_keras.keras.data.base import DataSource, IteratedSource
from det_keras.keras.data.order import epoch_lengths
from det_keras.keras.data.pipeline import Pipeline
from det_keras.keras.data.shared_pipeline import share_pipeline

logger = logging.getLogger(__name__)

_SLOW_SAVE_S = 0.1
_FILE_PREFIX = "iterator"
_MOST_AHEAD = 1000
_CACHE = "the cache in memory has to be filled in the same order"
_CONTINUOUS = "with `steps_per_epoch` the iterator continues from epoch to epoch"
_EVERY_PASS = "the batches of a pass depend on the earlier passes"


class TfDataSource(IteratedSource):
    """Batches of a `tf.data.Dataset`.

    Args:
        dataset: the user's dataset of batches.
        steps_per_epoch: batches that count as one epoch; the data is then read continuously across epochs, and
            from its beginning when it ends. By default an epoch is one pass.
        wraps_around: an epoch that reaches the end of the data continues at its beginning; by default it ends there.
        workers: with several, elements are (batch, rows) pairs, and all workers run the same number of steps.
        num_batches: number of batches of one pass, if the dataset itself does not know it.
        reads_every_pass: the batches of a pass depend on all earlier passes.

    Attributes:
        opens_at_end: an iterator is opened at the end of a pass as well.
        is_shared_with_validation: validations open iterators of the same shuffle between the passes.
    """

    is_shared_with_validation = False

    kind = "tf.data"

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        steps_per_epoch: int | None = None,
        wraps_around: bool = False,
        workers: DistributedContext | None = None,
        num_batches: int | None = None,
        reads_every_pass: bool = False,
    ) -> None:
        cardinality = int(dataset.cardinality()) if num_batches is None else num_batches
        if cardinality == 0:
            raise ValueError("The tf.data.Dataset is empty: it has 0 batches.")
        if cardinality == tf.data.INFINITE_CARDINALITY and steps_per_epoch is None:
            raise ValueError(
                "The tf.data.Dataset repeats forever. Pass `steps_per_epoch` to say what an epoch is, "
                "or leave out `.repeat()`."
            )
        self._is_continuous = steps_per_epoch is not None
        self._is_shared = workers is not None and not workers.is_alone
        repeats = self._is_continuous and cardinality > 0
        self._dataset = dataset
        self.steps_per_epoch = steps_per_epoch or (cardinality if cardinality > 0 else None)
        steps_per_pass = cardinality if cardinality > 0 else None
        if workers is not None and self._is_shared:
            # Before it is repeated: all workers end a pass together.
            self._dataset, steps_per_pass = share_pipeline(
                dataset, workers.allgather(cardinality), is_endless=self._is_continuous and not repeats
            )
            if not self._is_continuous:
                self.steps_per_epoch = steps_per_pass
        if repeats:
            self._dataset = self._dataset.repeat()
        if self.steps_per_epoch is not None:
            self.epochs = epoch_lengths(steps_per_epoch, steps_per_pass, wraps_around=wraps_around)
            self.steps_per_epoch = self.epochs.steps_per_epoch
        self.opens_at_end = not self._is_continuous and self.steps_per_epoch is not None
        self._iterators = _Iterators(self._dataset)
        self._pipeline = Pipeline(self._dataset)
        self._reads_every_pass = reads_every_pass or self._pipeline.draws_within_pass
        self._asked = False
        self._ends_epoch = True
        self._is_in_pass = False
        self._position = _SavedPosition()
        self._first: Mapping[str, Any] | None = None
        self._start: Mapping[str, Any] | None = None
        self._started_at = time.monotonic()

    @property
    def element_spec(self) -> Any:
        spec = self._dataset.element_spec
        return spec[0] if self._is_shared else spec

    def describe(self) -> dict[str, Any]:
        specs = tf.nest.flatten(self.element_spec)
        return {
            "kind": self.kind,
            # The first dimension is the batch size: None and a number are equivalent here.
            "shapes": [
                [*(spec.shape.as_list() or [None])[1:], spec.dtype.name]
                for spec in specs
                if hasattr(spec, "dtype")
            ],
            "steps_per_epoch": self.steps_per_epoch,
        }

    def begin_epoch(self, epoch: int, first_step: int, stop_step: int | None) -> None:
        if first_step == 0 and not (self._is_continuous and self._iterator is not None):
            self._pending = True
        self._asked = False
        self._ends_epoch = stop_step is None or stop_step == self.steps_per_epoch

    def end_epoch(self, epoch: int) -> None:
        self._is_in_pass = self._is_continuous

    def save_state(self, directory: Path) -> dict[str, Any]:
        state = self.state_between_passes()
        if not self._is_in_pass:
            return state
        if self._can_be_saved and self._position.save(self._iterator, directory):
            return {**state, "saved": True}
        return {**state, "start": self._start, "seconds": time.monotonic() - self._started_at}

    def state_between_passes(self) -> dict[str, Any]:
        state = {"opened": self._iterators.opened, "variables": self._pipeline.variables()}
        return {**state, "first": self._first} if self._needs_first_pass else state

    def restore_passes(self, state: Mapping[str, Any], epoch: int) -> None:
        if not self._is_continuous:
            self._first = state.get("first")
            self._skip_passes(epoch - self.first_epoch, state)

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> frozenset[str]:
        if self._is_continuous:
            assert self.epochs is not None
            batches = self.epochs.start_of(epoch) - self.epochs.start_of(self.first_epoch) + step
            return self._read_again(state.get("first"), batches, _CONTINUOUS)
        self._pipeline.assign(state.get("variables") or [])
        if step == 0:
            return frozenset()
        if not state.get("saved"):
            why = "TensorFlow cannot save the position of this pipeline"
            return self._read_again(state.get("start"), step, why, state.get("seconds"))
        self._iterator = self._iterators.open()
        self._is_in_pass = True
        # Those of all remaining epochs, by the current target.
        self._iterators.open_ahead(
            (epochs_left - 1) * (2 if self.opens_at_end else 1) + int(self.opens_at_end)
        )
        self._position.restore(self._iterator, directory)
        return frozenset()

    def close(self) -> None:
        super().close()
        del self._iterators, self._pipeline

    def warn_of_unseen_state(self) -> None:
        """Log a warning at the start if a resumed run may differ without an error."""
        if self._pipeline.runs_python:
            logger.warning(
                "Python code runs in this tf.data pipeline (`from_generator`, `py_function` or `numpy_function`). A "
                "resumed run is exact unless that code has state of its own that det_keras cannot detect: a counter, a "
                "thread, the clock. `det experiment create --verify-resume` finds out. A `keras.utils.PyDataset`, or "
                "a pipeline of TensorFlow ops, has no such state."
            )

    def shares_shuffle_with(self, other: DataSource) -> bool:
        """Return whether another source reads from the same shuffled dataset."""
        return isinstance(other, TfDataSource) and bool(self._pipeline.shuffles & other._pipeline.shuffles)

    def skip_passes(
        self, passes: int, state: Mapping[str, Any], *, batches: int | None = None, steps: int | None = None
    ) -> None:
        self._first = state.get("first")
        if self._is_continuous:
            self._read_again(self._first, batches or 0, _CONTINUOUS)
            return
        self._skip_passes(passes, state, steps)
        self._pipeline.assign(state.get("variables") or [])

    def _skip_passes(self, passes: int, state: Mapping[str, Any], steps: int | None = None) -> None:
        """Bring shuffle seeds and caches to their state after the given number of passes."""
        read = passes if self._reads_every_pass else min(passes, int(self._pipeline.has_memory_cache))
        reason = _EVERY_PASS if self._reads_every_pass else _CACHE
        if read:
            self._begin(self._first)
        for number in range(passes):
            iterator = self._iterators.open()
            if number < read:
                self._read_pass(iterator, reason, steps)
                self.settle(steps)
            elif self._pipeline.shuffles_twice:
                next(iterator, None)
            if self.opens_at_end:
                self._iterators.open()
        # Iterators that were opened for passes that a callback ended early, or for the interrupted pass.
        interrupted = int("start" in state or bool(state.get("saved")))
        for _ in range(self._iterators.opened, state.get("opened", 0) - interrupted):
            self._iterators.open()

    @property
    def _needs_first_pass(self) -> bool:
        return self._is_continuous or self._pipeline.has_memory_cache or self._reads_every_pass

    @property
    def _can_be_saved(self) -> bool:
        # The saved position of one shuffle over another loses the place of the inner one in its seeds.
        is_unsafe = self._pipeline.shuffles_twice or self.is_shared_with_validation
        return not (self._needs_first_pass or self._position.is_refused or is_unsafe)

    def _begin(self, start: Mapping[str, Any] | None) -> None:
        """Restore the state at the beginning of a pass."""
        if start is not None:
            restore_streams(start["streams"])
            self._pipeline.assign(start["variables"])

    def _read_again(
        self, start: Mapping[str, Any] | None, steps: int, reason: str, seconds: float | None = None
    ) -> frozenset[str]:
        """Open a pass in the same state as before and read `steps` batches of it."""
        self._begin(start)
        self._start = start
        if self._is_continuous:
            self._first = start
        self._iterator = self._iterators.open()
        self._is_in_pass = True
        return replay(lambda: next(self._iterator), steps, reason, seconds)

    def _read_pass(self, iterator: Any, reason: str, steps: int | None) -> None:
        known = steps or self.steps_per_epoch
        if known is not None:
            replay(lambda: next(iterator, None), known, reason)
        if steps is not None:
            # The data may have no end.
            return
        # Read to the end of the data: only then is a cache complete.
        for _ in iterator:
            pass

    def _open(self) -> Any:
        serves = not self._pending and self._iterator is not None
        if serves and self._asked and self._ends_epoch and self.opens_at_end:
            if self._pipeline.has_memory_cache:
                # Training does not read past the last batch, but a cache is complete only after that. With plain Keras
                # it depends on how far a prefetch has read.
                next(self._iterator, None)
            self._iterator = self._iterators.next()
        self._asked = True
        return super()._open()

    def _open_pass(self) -> Any:
        # Capture the state before the iterator is opened: its threads may draw from the streams immediately.
        self._start = {"streams": capture_streams(), "variables": self._pipeline.variables()}
        self._started_at = time.monotonic()
        self._first = self._first or self._start
        iterator = self._iterators.next()
        self._is_in_pass = True
        return iterator


class _Iterators:
    """Opens the iterators of a dataset in the order of plain Keras, because each one draws seeds for its shuffles.

    Args:
        dataset: the dataset.

    Attributes:
        opened: number of iterators that were opened for a pass, or at its end.
        on_open: called before each one is opened.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self._dataset = dataset
        self.opened = 0
        self.on_open: Callable[[], None] = lambda: None
        # Iterators of later epochs, opened before the interrupted iterator was restored.
        self._ahead: deque[Any] = deque()

    def open(self) -> Any:
        """Return a new iterator."""
        self.opened += 1
        self.on_open()
        return iter(self._dataset)

    def next(self) -> Any:
        """Return the next of those that were opened ahead; a new one if none is left."""
        if not self._ahead:
            return self.open()
        self.opened += 1
        return self._ahead.popleft()

    def open_ahead(self, count: int) -> None:
        """Open `count` iterators in place of those that are open ahead."""
        self._ahead = deque(iter(self._dataset) for _ in range(min(count, _MOST_AHEAD)))


class _SavedPosition:
    """The position of an iterator inside its pass, in TensorFlow's own format.

    Attributes:
        is_refused: TensorFlow refused to save the iterator; it will not be asked again.
    """

    def __init__(self) -> None:
        self.is_refused = False
        self._was_slow = False

    def save(self, iterator: Any, directory: Path) -> bool:
        """Write the position of `iterator` into `directory`; return whether TensorFlow supports it."""
        directory.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        try:
            tf.train.Checkpoint(iterator=iterator).write(str(directory / _FILE_PREFIX))
        except tf.errors.OpError as error:
            self.is_refused = True
            logger.info(
                "tf.data cannot save this pipeline's position because of %s: a resumed run reads the batches of the "
                "interrupted epoch again, from the random state in which it began.",
                _refusing_op(error),
            )
            return False
        self._warn_if_slow(time.perf_counter() - started)
        return True

    def restore(self, iterator: Any, directory: Path) -> None:
        """Bring a new iterator to the position that `save` wrote into `directory`."""
        tf.train.Checkpoint(iterator=iterator).read(str(directory / _FILE_PREFIX)).assert_consumed()

    def _warn_if_slow(self, seconds: float) -> None:
        if seconds > _SLOW_SAVE_S and not self._was_slow:
            self._was_slow = True
            logger.warning(
                "Saving the position of the tf.data pipeline took %.2f s of training time. "
                "A smaller `shuffle` buffer makes checkpoints faster.",
                seconds,
            )


def _refusing_op(error: tf.errors.OpError) -> str:
    """Return the name of the op in an error of tf.data's serialisation, if the error contains one."""
    text = str(error.message)
    found = (
        re.search(r"(\w*(?:Generator|PyFunc|Random|Stateful)\w*)", text)
        or re.search(r"(\w+) is stateful", text)
        or re.search(r"op[: ]+`?(\w+)", text)
    )
    return f"`{found.group(1)}`" if found else text.splitlines()[0][:200]


_WORTH_A_LINE_S = 5.0


def replay(
    read: Callable[[], object], batches: int, reason: str, seconds: float | None = None
) -> frozenset[str]:
    """Read batches without training on them, and log the progress.

    Args:
        read: reads the next batch.
        batches: number of batches to read.
        reason: why the state of the source cannot be restored directly, as the end of a sentence.
        seconds: time that the interrupted run took for the batches, including training; None if unknown.

    Returns:
        The names of the random streams that reading has advanced. They are in the state that the data needs.
    """
    if batches == 0:
        return frozenset()
    took = f" The interrupted run took {seconds:.1f} s for them, training included." if seconds else ""
    logger.info("Reading %s batches again without training on them: %s.%s", batches, reason, took)
    bar = keras.utils.Progbar(batches, unit_name="batch") if sys.stdout.isatty() else None
    before, started = capture_streams(), time.monotonic()
    for number in range(1, batches + 1):
        read()
        if bar is not None:
            bar.update(number)
    took_s = time.monotonic() - started
    if took_s > _WORTH_A_LINE_S:
        logger.info("Read %s batches again in %.1f s.", batches, took_s)
    after = capture_streams()
    return frozenset(name for name, state in after.items() if state != before[name])
