"""A trial that uses `det_keras.core`, as `context.fit` does."""

from __future__ import annotations

import os
import time

from notes import Notes
from task_scripts import first_state, metric_of, next_state

from det_keras import core

EPOCHS = int(os.environ["HISTORY_EPOCHS"])
PERIOD = int(os.environ["HISTORY_PERIOD"])
PACE_S = float(os.environ["HISTORY_PACE"])
PROMOTES = os.environ["HISTORY_PROMOTES"] == "1"


class Training:
    """The training of one process."""

    def __init__(self, context: core.Context, notes: Notes) -> None:
        self._context = context
        self._notes = notes
        info = context.info
        assert info is not None
        assert info.trial is not None
        self._state, self.epoch = first_state(info.trial.trial_seed, info.trial.hparams), 0
        if info.latest_checkpoint:
            with context.checkpoint.restore_path(info.latest_checkpoint) as directory:
                self._state = (directory / "state").read_text()
                self.epoch = int((directory / "epoch").read_text())
        self._saved = self.epoch
        notes.add("resumed", self.epoch)

    @property
    def loss(self) -> float:
        """The metric now."""
        return metric_of(self._state)

    def advance(self, *, validates: bool) -> bool:
        """Train one epoch; return whether to stop after it."""
        time.sleep(PACE_S)
        self.epoch += 1
        self._state = next_state(self._state, self.epoch)
        self._notes.print_line()
        self._context.train.report_metrics("training", self.epoch, {"loss": self.loss})
        if validates:
            self.validate()
        stops = self._context.preempt.should_preempt()
        if stops or self.epoch % PERIOD == 0:
            self.save()
        return stops

    def validate(self) -> None:
        """Report a validation, and wait until the master has it."""
        metrics = {"loss": self.loss, "epochs": self.epoch}
        self._context.train.report_metrics("validation", self.epoch, metrics)
        self._context.backend.flush()
        self._notes.add("reported", self.epoch)

    def save(self) -> None:
        """Store a checkpoint unless there is one of this epoch."""
        if self._saved == self.epoch:
            return
        with self._context.checkpoint.store_path({"steps_completed": self.epoch}) as (directory, uuid):
            (directory / "state").write_text(self._state)
            (directory / "epoch").write_text(str(self.epoch))
        self._context.backend.flush()
        self._notes.add("checkpoint", uuid)
        self._saved = self.epoch


def train(training: Training, context: core.Context) -> None:
    """Train to the end, or until the master stops this process."""
    if not PROMOTES:
        while training.epoch < EPOCHS:
            if training.advance(validates=True):
                return
        training.save()
        return
    for operation in context.searcher.operations():
        while training.epoch < operation.length:
            if training.advance(validates=False):
                return
        training.validate()
        training.save()
        operation.report_completed(training.loss)


def main() -> None:
    """Train, and note what was acknowledged."""
    notes = Notes()
    with core.init() as context:
        train(Training(context, notes), context)
    notes.print_line()
    notes.add("end")


main()
