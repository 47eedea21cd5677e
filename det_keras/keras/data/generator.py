"""Batches of a Python generator or a PyTorch DataLoader, read in the same way as in Keras.

The position of neither can be restored: a resume draws and drops as many batches as were trained.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from det_keras.keras.checkpoint.drawn import note_drawn
from det_keras.keras.data.tfdata import TfDataSource
from det_keras.keras.private_api.data import BATCHES_FOR_SPEC, generator_dataset
from det_keras.keras.private_api.steps import is_op_determinism_enabled

logger = logging.getLogger(__name__)


_LONGEST_WAIT_S = 20.0
_ITEMS_NAME = "items.pkl"


def read_items(directory: Path) -> dict[int, Any]:
    """Return the items that `GeneratorSource.save_state` stored, by number; {} if there are none."""
    path = directory / _ITEMS_NAME
    items: dict[int, Any] = pickle.loads(path.read_bytes()) if path.exists() else {}
    return items


def with_items(source: Any, items: Mapping[int, Any]) -> Iterator[Any]:
    """Yield the items of a generator, but others in place of some."""
    for number, item in enumerate(source, 1):
        yield items.get(number, item)


class _Draws:
    """Counts what is drawn from a generator, which tf.data does on a thread of its own.

    Args:
        source: the generator.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._drawn = self._before = 0
        #: Items by their number, from 1: those that Keras looks at first, and the newest one.
        self.kept: dict[int, Any] = {}
        #: Items that are given in place of those that are drawn.
        self.given: Mapping[int, Any] = {}
        self._is_over = False
        self._changed = threading.Condition()

    def items(self) -> Iterator[Any]:
        """Yield the items of the generator."""
        try:
            for item in self._source:
                with self._changed:
                    if self._drawn > BATCHES_FOR_SPEC:
                        del self.kept[self._drawn]
                    self._drawn += 1
                    item = self.given.get(self._drawn, item)
                    self.kept[self._drawn] = item
                    self._changed.notify_all()
                yield item
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def begin(self) -> None:
        """Record that an iterator is opened: it gives the items that Keras has looked at again, then new ones."""
        self._before = self._drawn

    def note_end(self) -> None:
        """Record for later trainings how far the generator was read."""
        with self._changed:
            note_drawn(self._source, self._drawn)

    def wait_for(self, number: int) -> None:
        """Wait until the newest iterator has given a number of items, or the generator has ended."""
        total = self._before + max(number - BATCHES_FOR_SPEC, 0)
        with self._changed:
            self._changed.wait_for(lambda: self._drawn >= total or self._is_over, _LONGEST_WAIT_S)


class GeneratorSource(TfDataSource):
    """Batches of a generator, drawn in order, or of a DataLoader, which is read from its beginning in each epoch.

    Args:
        source: the user's generator or DataLoader.
        steps_per_epoch: batches that count as one epoch; by default all batches.
    """

    def __init__(self, source: Any, *, steps_per_epoch: int | None = None) -> None:
        self._draws = _Draws(source) if inspect.isgenerator(source) else None
        dataset, num_batches = generator_dataset(source if self._draws is None else self._draws.items())
        self.kind = type(source).__name__
        super().__init__(
            dataset, steps_per_epoch=steps_per_epoch, num_batches=num_batches, reads_every_pass=True
        )
        if self._draws is not None:
            self._iterators.on_open = self._draws.begin

    @property
    def is_generator(self) -> bool:
        return self._draws is not None

    def note_end(self, batches: int) -> None:
        if self._draws is not None:
            self.settle(batches if self._is_continuous else None)
            self._draws.note_end()

    def settle(self, batches: int | None) -> None:
        if self._draws is not None and batches is not None:
            # TensorFlow reads nothing ahead of Python code where ops are deterministic.
            self._draws.wait_for(batches if is_op_determinism_enabled() else batches + 1)

    def save_state(self, directory: Path) -> dict[str, Any]:
        state = super().save_state(directory)
        if self._draws is not None:
            directory.mkdir(parents=True, exist_ok=True)
            # A pass that begins anew gives the first items again.
            kept = self._draws.kept.items()
            items = {
                number: item for number, item in kept if number > BATCHES_FOR_SPEC or not self._is_continuous
            }
            (directory / _ITEMS_NAME).write_bytes(pickle.dumps(items))
        return state

    def restore_state(
        self, state: dict[str, Any], directory: Path, epoch: int, step: int, *, epochs_left: int
    ) -> frozenset[str]:
        if self._draws is not None:
            # The item that was read ahead: while the batches before it are read again, what it depends on may be other.
            items = read_items(directory)
            self._draws.given = {number: item for number, item in items.items() if number > BATCHES_FOR_SPEC}
        super().restore_state(state, directory, epoch, step, epochs_left=epochs_left)
        if self._is_continuous and self.epochs is not None:
            self.settle(self.epochs.start_of(epoch) - self.epochs.start_of(self.first_epoch) + step)
        # The checkpoint has the random streams as they are after what was read ahead.
        return frozenset()

    def skip_passes(
        self, passes: int, state: Mapping[str, Any], *, batches: int | None = None, steps: int | None = None
    ) -> None:
        super().skip_passes(passes, state, batches=batches, steps=steps)
        if self._is_continuous:
            self.settle(batches)

    def warn_of_unseen_state(self) -> None:
        """Log at the start that a resumed run is exact only if the source returns the same batches again."""
        logger.warning(
            "A %s has no position that could be restored: on a resume as many batches are drawn from it and dropped "
            "as were trained. That is exact if it gives the same batches in each run. What it holds, in its own "
            "variables and in closures, is restored; a thread, the clock or a service cannot be. `det experiment "
            "create --verify-resume` finds out. A `keras.utils.PyDataset`, or a `tf.data.Dataset` of TensorFlow ops, "
            "has no such state.",
            self.kind,
        )
