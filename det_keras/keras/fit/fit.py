"""One call of `context.fit`: Keras's `model.fit` drives the training.

`segments` decides the arguments of each `model.fit`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.checkpoint.variables import build_for_evaluation
from det_keras.keras.data.waiting import DataWait
from det_keras.keras.fit.arguments import FitArguments
from det_keras.keras.fit.callback_files import prepare_callbacks
from det_keras.keras.fit.run import FitRun
from det_keras.keras.fit.segments import SegmentRunner
from det_keras.keras.history import FitHistory
from det_keras.keras.script import Script
from det_keras.keras.training.phase import PhaseRecord, check_signature, error_of_rank


class Fit:
    """One call of `context.fit`.

    Args:
        script: the trainings of the script.
        model: the compiled model.
        arguments: the validated arguments of `context.fit`.

    Attributes:
        run: the training.
    """

    def __init__(self, script: Script, model: Any, arguments: FitArguments) -> None:
        self._script = script
        self._model = model
        optimizers = script.optimizers.of_model(model)
        # Before the step is traced, which a resume does first.
        script.optimizers.record(optimizers)
        self.run = FitRun(script, model, arguments, optimizers)

    @property
    def trained_batches(self) -> int:
        """Batches trained in the script so far, as the user's callbacks see it."""
        return self.run.progress.trained_batches

    @property
    def is_repeating(self) -> bool:
        """Return False: nothing of a `fit` is repeated."""
        return False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Be the training of the script that runs, inside the block; its data is released at the end."""
        self._script.running = self
        try:
            yield
        finally:
            self._script.running = None
            self.run.close()

    def model_to_warm_start(self) -> Any:
        """Return the model, with the variables that an evaluation needs."""
        build_for_evaluation(self._model, self.run.source.element_spec)
        return self._model

    def abandon(self, *, save: bool) -> None:
        """Do nothing: a `fit` has saved what it was asked to save."""

    def train(self, restored: RestoredState | None) -> FitHistory:
        """Train to the target and return the history of the whole training.

        Args:
            restored: the checkpoint of this `fit` to resume from; None to begin it.
        """
        run, model = self.run, self._model
        if restored is not None:
            is_finished = run.resume(restored)
            if is_finished:
                run.restore()
                if raised := restored.state["phase"].get("raised"):
                    error = error_of_rank(raised, run.core.distributed.rank)
                    run.fail(error, run.data.at_end)
                    raise error
                return run.finish(run.data.at_end())
            prepare_callbacks(run.user_callbacks, run.progress.position.epoch)
        if not run.workers.is_single:
            self._script.optimizers.prepare(model)
        try:
            with run.workers.at_work(is_new=restored is None), run.files.watching(), run.signals:
                with _without_data_warnings(), _unfinalized(model.optimizer):
                    self._train(is_new=restored is None)
                if isinstance(model.optimizer, keras.optimizers.Optimizer):
                    model.optimizer.finalize_variable_values(model.trainable_weights)
                run.callbacks.finish(run.progress.logs_of_epoch)
                run.workers.average()
                run.end()
        except BaseException as error:
            run.callbacks.abandon()
            run.fail(error, run.data.at_end)
            raise
        return run.finish(run.data.at_end())

    def skip(self, record: PhaseRecord, end: RestoredState | None) -> FitHistory:
        """Skip a `fit` that an earlier process finished, and return its history.

        The model and the data are brought to the state that they had at its end.

        Args:
            record: the finished `fit`.
            end: the state at its end; None if it has no checkpoint any more. The model then keeps its weights.

        Raises:
            ModelMismatchError: the script or the model changed.
        """
        run = self.run
        run.build(end)
        check_signature(run.phase_index, record.signature, run.signature())
        run.data.skip(record.data, passes=len(record.history["epoch"]), batches=record.batches)
        if end is not None:
            run.restore_end(end)
        run.history.load_state(record.history)
        self._script.phase_finished(record)
        return run.history

    def _train(self, *, is_new: bool) -> None:
        run = self.run
        if is_new:
            run.source.reset()
        run.callbacks.before_first_batch = run.note_first_batch
        run.callbacks.on_train_begin()
        run.reached.begin()
        run.boundaries.begin()
        at_once = self._model.steps_per_execution
        steps = at_once if isinstance(at_once, int) else 1
        run.watch(DataWait(run.source, lambda: run.progress.trained_steps, steps))
        try:
            SegmentRunner(run).train()
        finally:
            run.core.profiler.watch()


@contextmanager
def _unfinalized(optimizer: Any) -> Iterator[None]:
    """Disable `optimizer.finalize_variable_values` inside the block.

    Keras calls it at the end of each `model.fit`, that is, of each segment. With `use_ema` it overwrites the weights
    with their moving averages, which must happen only once, at the end of the whole training.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        yield
        return
    optimizer.finalize_variable_values = lambda *_: None
    try:
        yield
    finally:
        del optimizer.finalize_variable_values


@contextmanager
def _without_data_warnings() -> Iterator[None]:
    """Suppress Keras's warning at the end of data of unknown size, where the end of the data is expected."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Your input ran out of data")
        yield
