"""What `fit` does besides training, part by part, against a run of plain values that records what is asked of it."""

from __future__ import annotations

import dataclasses
import logging
import math
import signal
from types import SimpleNamespace

import pytest

from det_keras.config import Length, Unit
from det_keras.core.backend import Operation
from det_keras.errors import DetError, InvalidHP
from det_keras.keras.training.boundaries.base import Boundary
from det_keras.keras.training.boundaries.checkpoint import CheckpointCallback
from det_keras.keras.training.boundaries.metrics import MetricsCallback
from det_keras.keras.training.boundaries.preemption import PreemptionCallback
from det_keras.keras.training.boundaries.progress import ProgressCallback
from det_keras.keras.training.boundaries.searcher import SearcherCallback
from det_keras.keras.training.boundaries.validation import ValidationCallback
from det_keras.keras.training.boundaries.workers import DivergenceCallback
from det_keras.keras.training.pace import Pace
from det_keras.keras.training.position import Position, Target
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.settings import FitSettings

STEPS = 4


class Backend:
    """A backend with operations of the searcher; records what is completed."""

    def __init__(self, run, lengths):
        self._run = run
        self._operations = [Operation(length, False) for length in lengths]

    def current_operation(self):
        return self._operations[0] if self._operations else None

    def complete_operation(self, operation, metric):
        self._run.events.append(f"complete {operation.length} with {metric}")
        last = self._operations.pop(0)
        if not self._operations:
            self._operations = [dataclasses.replace(last, completed=True)]

    def flush(self):
        self._run.events.append("flush")


class FakeRun:
    """A `Run` of epochs of 4 batches, in which batches pass by themselves."""

    def __init__(self, *, epochs=3, operations=(), in_trial=False, metric="val_loss", **settings):
        self.events = []
        self.progress = Progress(0, Position(0, 0, 0), Target(epochs=epochs))
        self.steps_per_epoch = STEPS
        self.global_batch_size = 8
        self.is_asked = False
        self.settings = FitSettings(metric=metric, **settings)
        say = self.events.append
        self.core = SimpleNamespace(
            info=object() if in_trial else None,
            backend=Backend(self, operations),
            train=SimpleNamespace(
                report_metrics=lambda group, batches, metrics: say(f"{group} at {batches}: {metrics}"),
                report_progress=lambda fraction: say(f"progress {fraction}"),
                set_status=lambda status: say(f"status {status}"),
            ),
            preempt=SimpleNamespace(acknowledge_preemption_signal=lambda: say("acknowledge")),
            distributed=SimpleNamespace(allgather=lambda value: [value], size=1),
        )

    @property
    def is_ending(self):
        return self.progress.is_stopped or self.progress.is_at_target

    def counters(self):
        return {"batches": self.progress.total_batches}

    def should_stop(self):
        return self.is_asked

    def stop(self):
        self.progress.is_stopped = True
        self.events.append("stop")

    def aim_at(self, target):
        self.progress.target = target

    def validate(self):
        self.events.append("validate")
        validation = Validation(self.progress.total_batches, {"val_loss": 0.5}, True)
        self.progress.last_validation = validation
        return validation

    def save_checkpoint(self, *, final=False):
        self.events.append("save final" if final else "save")
        self.progress.last_checkpoint_batch = self.progress.position.batches

    def prepare_checkpoints(self):
        self.events.append("prepare")

    def wait_for_checkpoint(self):
        self.events.append("wait")

    def at(self, batches):
        """Move to the boundary after so many batches."""
        self.progress.position = Position(batches // STEPS, batches % STEPS, batches)
        return self

    def asked(self, callback, batches, **logs):
        """Return what a callback does at the boundary after so many batches, which may end an epoch."""
        self.at(batches)
        self.events.clear()
        callback.on_boundary(self, Boundary(batches % STEPS == 0, logs))
        return list(self.events)


def test_training_metrics_are_reported_once_per_epoch_or_per_period():
    run = FakeRun()
    by_epoch, by_period = MetricsCallback(None, "report"), MetricsCallback(3, "report")
    found = {name: [bool(run.asked(each, batches, loss=1.0)) for batches in range(1, 9)]
             for name, each in (("epoch", by_epoch), ("period", by_period))}  # fmt: skip
    assert found["epoch"] == [batches % 4 == 0 for batches in range(1, 9)]
    assert found["period"] == [batches in (3, 4, 6, 8) for batches in range(1, 9)]
    assert by_epoch.next_batch(run.at(2)) is None
    assert by_period.next_batch(run.at(2)) == 3
    assert by_period.next_batch(run.at(3)) == 6


def test_report_has_counters_and_plain_numbers_and_no_validation_metric():
    report = FakeRun().asked(MetricsCallback(None, "report"), 4, loss=0.25, val_loss=9.0)
    assert report == ["training at 4: {'batches': 4, 'loss': 0.25}"]


def test_batch_of_the_restored_checkpoint_is_not_reported_again():
    run, callback = FakeRun(), MetricsCallback(3, "report")
    callback.on_restored(run.at(3))
    assert run.asked(callback, 3, loss=1.0) == []
    assert run.asked(callback, 6, loss=1.0) != []


def test_loss_that_is_not_finite_warns_once_or_ends_the_trial(caplog):
    run, callback = FakeRun(), MetricsCallback(1, "report")
    with caplog.at_level(logging.WARNING):
        run.asked(callback, 1, loss=math.nan)
        run.asked(callback, 2, loss=math.inf)
    assert len(caplog.records) == 1
    with pytest.raises(InvalidHP, match="The loss is nan at batch 3"):
        run.asked(MetricsCallback(1, "stop"), 3, loss=math.nan)


@pytest.mark.parametrize(
    ("policy", "is_best", "is_saved"),
    [("best", True, True), ("best", False, False), ("all", False, True), ("none", True, False)],
)
def test_checkpoint_after_a_validation_is_saved_by_policy(policy, is_best, is_saved):
    run, callback = FakeRun(), CheckpointCallback(policy, lambda: None)
    run.asked(callback, 1)
    callback.on_validation(run, Validation(4, {}, is_best))
    assert run.asked(callback, 4) == (["save"] if is_saved else [])
    assert run.asked(callback, 8) == []


def test_checkpoint_without_policy_is_saved_at_each_epochs_end():
    run, callback = FakeRun(), CheckpointCallback(None, lambda: None)
    assert callback.next_batch(run) == 1
    assert run.asked(callback, 1) == ["prepare"]
    assert callback.next_batch(run) is None
    assert [run.asked(callback, batches) for batches in (3, 4, 5, 8)] == [[], ["save"], [], ["save"]]


def test_period_of_checkpoints_counts_from_the_last_one():
    run, callback = FakeRun(), CheckpointCallback("none", lambda: 3)
    run.asked(callback, 1)
    assert [run.asked(callback, batches) for batches in (2, 3, 5, 6)] == [[], ["save"], [], ["save"]]
    assert callback.next_batch(run) == 9
    callback.on_end(run)
    assert run.events == ["save", "save final"]


def test_validation_before_the_first_batch_happens_in_a_new_training_only():
    for resumed, expected in ((False, ["validate"]), (True, [])):
        run = FakeRun()
        run.progress.is_resumed = resumed
        ValidationCallback(None, initial=True).on_begin(run)
        assert run.events == expected


def test_period_of_validations_counts_from_the_last_one():
    run, callback = FakeRun(), ValidationCallback(3, initial=False)
    callback.on_begin(run)
    assert [run.asked(callback, batches) for batches in (2, 3)] == [[], ["validate"]]
    callback.on_validation(run, Validation(3, {}, False))
    assert callback.next_batch(run) == 6
    assert run.asked(callback, 5) == []


@pytest.mark.parametrize(("asked", "expected"), [(True, ["validate"]), (False, [])])
def test_validation_at_the_end_is_made_where_it_is_asked_for(asked, expected):
    run, callback = FakeRun(validates_at_end=asked), ValidationCallback(None, initial=False)
    callback.on_begin(run)
    assert run.asked(callback, 8) == []
    assert run.asked(callback, 12) == expected


@pytest.mark.parametrize(("in_trial", "expected"), [(True, ["validate"]), (False, [])])
def test_the_end_of_a_length_of_the_search_is_validated(in_trial, expected):
    length = Length(3, Unit.EPOCHS)
    run = FakeRun(in_trial=in_trial, max_length=length, validates_at_end=False)
    callback = ValidationCallback(None, initial=False)
    callback.on_begin(run)
    assert run.asked(callback, 12) == expected


def test_epochs_left_are_counted_from_the_present_one():
    for epoch, left in ((0, 3), (2, 1), (3, 0), (4, 0)):
        assert Progress(0, Position(epoch, 0, 4 * epoch), Target(epochs=3)).epochs_left(4) == left
    assert Progress(0, Position(1, 0, 4), Target(batches=10)).epochs_left(4) >= 2


def test_request_to_stop_saves_waits_and_leaves_with_the_code_of_the_signal():
    run = FakeRun()
    callback = PreemptionCallback(SimpleNamespace(received=15))
    assert run.asked(callback, 2) == []
    run.is_asked = True
    with pytest.raises(SystemExit) as leaving:
        run.asked(callback, 3)
    assert run.events == ["save", "wait", "acknowledge", "flush"]
    assert leaving.value.code == 143


def test_trial_that_is_asked_to_stop_exits_with_0_and_a_finished_one_does_not_leave():
    run = FakeRun(in_trial=True)
    run.is_asked = True
    callback = PreemptionCallback(SimpleNamespace(received=None))
    with pytest.raises(SystemExit) as leaving:
        run.asked(callback, 3)
    assert leaving.value.code == 0
    assert run.asked(callback, 12) == []


@pytest.mark.parametrize(
    ("number", "left"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_signal_behind_the_last_boundary_is_obeyed_at_the_end(number, left):
    run = FakeRun()
    PreemptionCallback(SimpleNamespace(received=None)).leave_at_end(run)
    assert run.events == []
    with pytest.raises(left):
        PreemptionCallback(SimpleNamespace(received=number)).leave_at_end(run)
    assert run.events == ["save final", "wait", "acknowledge", "flush"]


def test_progress_is_the_share_of_the_target_and_1_at_the_end():
    run = FakeRun(epochs=2)
    callback = ProgressCallback(Pace(run.progress))
    callback.on_begin(run)
    assert run.events == ["status training"]
    assert run.asked(callback, 4) == ["progress 0.5"]
    callback.on_end(run)
    assert run.events[-1] == "progress 1.0"


def test_searchers_lengths_are_trained_and_completed_one_after_another():
    run = FakeRun(operations=(1, 2), in_trial=True)
    callback = SearcherCallback(Length(Unit.EPOCHS, 2))
    callback.on_begin(run)
    assert run.progress.target == Target(epochs=1, is_final=False)
    assert run.asked(callback, 3) == []
    assert run.asked(callback, 4) == ["save", "wait", "validate", "complete 1 with 0.5"]
    assert run.progress.target == Target(epochs=2)
    assert run.asked(callback, 8)[-3:] == ["complete 2 with 0.5", "acknowledge", "stop"]


def test_validation_of_the_same_batch_is_the_answer_to_the_searcher():
    run = FakeRun(operations=(1,), in_trial=True)
    callback = SearcherCallback(None)
    callback.on_begin(run)
    run.progress.last_validation = Validation(4, {"val_loss": 0.125}, True)
    assert "complete 1 with 0.125" in run.asked(callback, 4)


def test_searchers_metric_that_is_missing_is_named():
    run = FakeRun(operations=(1,), in_trial=True, metric="val_accuracy")
    callback = SearcherCallback(None)
    callback.on_begin(run)
    with pytest.raises(DetError, match="'val_accuracy' is not among the validation metrics: val_loss"):
        run.asked(callback, 4)


@pytest.mark.parametrize(
    ("length", "records", "target"),
    [
        (Length(Unit.EPOCHS, 2), 0, Target(epochs=2)),
        (Length(Unit.EPOCHS, 2), 40, Target(batches=10)),
        (Length(Unit.BATCHES, 7), 0, Target(batches=7)),
        (Length(Unit.RECORDS, 80), 0, Target(batches=10)),
    ],
)
def test_length_of_the_config_is_the_target(length, records, target):
    run = FakeRun(in_trial=True, records_per_epoch=records)
    SearcherCallback(length).on_begin(run)
    assert run.progress.target == target


def test_weights_are_compared_after_the_first_batch_and_then_by_period():
    compared = []
    team = SimpleNamespace(check_equal=compared.append, should_end=lambda: False)
    run, callback = FakeRun(), DivergenceCallback(team, 5)
    callback.on_begin(run)
    assert callback.next_batch(run.at(0)) == 1
    for batches in (1, 4, 6, 11):
        run.asked(callback, batches)
    # Each is told since when the weights are known to have been equal.
    assert compared == [0, 1, 6]


def test_stop_that_any_worker_asked_for_ends_training_on_all():
    team = SimpleNamespace(check_equal=None, should_end=lambda: True)
    run, callback = FakeRun(), DivergenceCallback(team, 0)
    callback.on_begin(run)
    assert callback.next_batch(run.at(3)) == 10
    assert run.asked(callback, 10) == ["stop"]
