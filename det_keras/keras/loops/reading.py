"""The passes of a loop written by hand, as its script reads them: the `PassReader` of its batches.

A pass in which a process resumes is brought to its position when the script asks for it. Until then its state is
pending.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import keras

from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.data.waiting import DataWait
from det_keras.keras.loops.passes import (
    Batches,
    Pass,
    PassOptions,
    PassReader,
    batch_of_script,
    num_rows_of,
    seed_of,
)
from det_keras.keras.loops.run import LoopRun
from det_keras.keras.loops.state import LoopState
from det_keras.keras.private_api.data import creation_mark, creation_number
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.metric_values import LazyMetrics
from det_keras.keras.training.phase import check_data_unchanged


class Reading:
    """What the script reads in the epochs of one loop.

    Args:
        run: the training.

    Attributes:
        restored: the checkpoint that the loop resumed from; None if it began.
        pending: the state to restore at the batches at which an earlier process stopped; None from there on.
        in_batch: the pass whose batch the script is at.
        rows: rows of this batch; 1 between two passes.
        num_reports: reports of this epoch that count as batches, unless the epoch has data.
        is_cut: whether the epoch ends before its data does.
    """

    def __init__(self, run: LoopRun) -> None:
        self._run = run
        self._workers = run.workers
        self._effects = ExitStack()
        self.restored: RestoredState | None = None
        self.pending: LoopState | None = None
        self.in_batch: Pass | None = None
        self.rows = self._all_rows = 1
        self.num_reports = 0
        self.is_cut = False
        self._created_before_epoch = 0
        # Calls of `batches` without a name in this epoch: of those that train, and of the others.
        self._num_calls = {True: 0, False: 0}
        # The pass of a training that the script is reading.
        self._reading_pass: Pass | None = None

    def begin_epoch(self) -> None:
        """Begin the body of an epoch."""
        self._created_before_epoch = creation_mark()
        self._num_calls = {True: 0, False: 0}
        self.num_reports = 0
        self.is_cut = False

    def make_batches(
        self, name: str | None, data: tuple[Any, ...], options: PassOptions, reader: Callable[[], PassReader]
    ) -> Batches:
        """Return batches that are told apart by their name, or by the order of the calls in an epoch."""
        key = name
        if key is None:
            # Apart: how often an epoch evaluates must not change the names of its training passes.
            number = self._num_calls[options.is_training]
            key = f"{'batches' if options.is_training else 'evaluation'} {number}"
            self._num_calls[options.is_training] += 1
        return Batches(reader, key, data, options)

    def open_pass(self, batches: Batches) -> Pass:
        """Return the pass of some batches, with its data open."""
        passes = self._run.data.passes
        if batches.key not in passes:
            self.add_pass(batches.key)
        data_pass = passes[batches.key]
        data_pass.open(batches.data, batches.options, self._is_made_in_epoch)
        self._run.reached.leave_out(keras.tree.flatten(batches.data))
        return data_pass

    def begin_pass(self, batches: Batches) -> Pass | None:
        """Return the pass to read; None if it gives nothing more in this epoch."""
        if batches.options.is_training and self._reading_pass is not None:
            raise ValueError(
                f"The batches `{self._reading_pass.key}` are still being read: a position in two passes at once could "
                "not be resumed. Join the data, with `tf.data.Dataset.zip` or as one tuple of arrays."
            )
        self.leave()
        data_pass = self.open_pass(batches)
        if not self._find_place(data_pass):
            return None
        data_pass.is_open = True
        # After the data is open, whose own functions are traced with it.
        self._run.before_tracing()
        if not data_pass.options.is_training:
            self._effects.enter_context(self._workers.averaged())
            return data_pass
        self._run.data.current = data_pass.key
        self.num_reports = 0
        self._run.is_after_pass = False
        if self._run.is_ending:
            self.is_cut = True
            return None
        self._run.watch(
            DataWait(data_pass.source, lambda: data_pass.step if self._run.progress.is_in_epoch else None)
        )
        self._run.enter_epoch()
        self._reading_pass = data_pass
        return data_pass

    def begin_batch(self, data_pass: Pass, batch: Any) -> Any:
        """Return what the script gets of a batch."""
        if self._workers.is_single:
            self.rows = self._all_rows = num_rows_of(batch)
        else:
            batch, counted = batch
            self.rows, self._all_rows = self._workers.begin_batch(counted)
        self.in_batch = data_pass
        return batch_of_script(data_pass.source, batch)

    def end_batch(self, data_pass: Pass) -> bool:
        """Act after a batch, and return whether the pass has more batches to give."""
        self.count_batch()
        if not data_pass.options.is_training:
            return True
        is_last = data_pass.steps is not None and data_pass.step >= data_pass.steps
        if self._run.is_ending:
            self.is_cut = not is_last
            return False
        # After its last batch the loop acts at the end of the epoch, or after the next batch of another pass.
        if not is_last and self._run.is_boundary_due:
            self._run.visit(Boundary(at_epoch_end=False, logs=LazyMetrics(self._run.results)))
            if self._run.is_ending:
                self.is_cut = True
                return False
        return True

    def end_pass(self, data_pass: Pass) -> None:
        """Record that a pass has no more batches."""
        self.leave()
        if not data_pass.options.is_training:
            # It may be read again in this epoch.
            data_pass.end_epoch()
        self._run.is_after_pass = self._run.is_after_pass or data_pass.options.is_training

    def leave_pass(self, data_pass: Pass) -> None:
        """Record that nothing more is read of a pass now."""
        if data_pass is self._reading_pass:
            self._reading_pass = None

    def count_batch(self) -> None:
        """Count the batch that the script has trained, unless it is counted."""
        data_pass, self.in_batch = self.in_batch, None
        if data_pass is None:
            return
        data_pass.step += 1
        self._workers.end_batch(self.rows if data_pass.options.is_training else 0)
        if data_pass.options.is_training:
            self._run.data.records += self._all_rows
            self._run.progress.advance()

    def add_pass(self, key: str) -> None:
        passes = self._run.data.passes
        seed = seed_of(key, self._run.seed, is_first=not passes)
        passes[key] = Pass(key, seed, self._run.core.distributed)
        if self.restored is not None:
            passes[key].await_state(self._run.state(self.restored).pass_state(key))

    def _find_place(self, data_pass: Pass) -> bool:
        """Bring a pass to where it is to be read; return False if it gives nothing more in this epoch."""
        saved, pending, trains = data_pass.take_state(), self.pending, data_pass.options.is_training
        if saved is not None:
            if trains:
                check_data_unchanged(
                    self._run.phase_index, saved.state["describe"], data_pass.source.describe()
                )
            if pending is not None and saved.is_current:
                left = self._run.progress.epochs_left(data_pass.steps)
                self._reach_position(without=data_pass.resume(saved, epochs_left=left))
                return True
            data_pass.skip(saved)
            if pending is not None and saved.is_open and trains:
                data_pass.mark_read(saved)
                return False
        elif not data_pass.is_open:
            return True
        elif not trains:
            data_pass.end_epoch()
        elif pending is None or not pending.is_from_memory:
            raise ValueError(
                f"The batches `{data_pass.key}` were read in this epoch already. Call `context.batches(...)` again for "
                "another pass, with a name of its own if it has one."
            )
        elif data_pass.key != self._run.data.current:
            return False
        else:
            # The epoch continues in this process, because the searcher has made the target longer.
            self._reach_position()
        return True

    def leave(self) -> None:
        """Count the last batch of the pass that was read, if the script has left it early, and end its effects."""
        self.count_batch()
        self._effects.close()
        self._workers.end_pass()
        self.rows = 1

    def _reach_position(self, without: frozenset[str] = frozenset()) -> None:
        """Restore the state of the batches at which training stopped, now that the script asks for them."""
        state, self.pending = self.pending, None
        assert state is not None
        state.restore(draws_of_epoch=False, without=without)
        self._run.progress.position = state.position

    def _is_made_in_epoch(self, dataset: Any) -> bool:
        return creation_number(dataset) > self._created_before_epoch

    def close(self) -> None:
        """Release the data."""
        self._run.core.profiler.watch()
        self._effects.close()
        for data_pass in self._run.data.passes.values():
            data_pass.close()
