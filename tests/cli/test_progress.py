from __future__ import annotations

import pytest

from det_keras.cli.following.progress import Snapshot, best_validation, report_line


def workload(batches, /, **metrics):
    return {"metrics": {"avgMetrics": metrics}, "totalBatches": batches, "endTime": "2026-01-02T03:04:05Z"}


def experiment(state="STATE_RUNNING", smaller=True, progress=0.5, **searcher):
    section = {"name": "single", "metric": "score", "smaller_is_better": smaller, **searcher}
    return {"id": 1, "state": state, "progress": progress, "config": {"searcher": section}}


def trial(number, best=None, state="STATE_RUNNING", **fields):
    return {"id": number, "state": state, "bestValidation": best, "totalBatchesProcessed": 7, **fields}


@pytest.mark.parametrize(("smaller", "trial_id"), [(True, 2), (False, 1)])
def test_the_best_validation_follows_the_direction_of_the_metric(smaller, trial_id):
    trials = [trial(1, workload(10, score=0.9)), trial(2, workload(20, score=0.1)), trial(3)]

    best = best_validation(experiment(smaller=smaller), trials)

    assert best is not None
    assert best.trial_id == trial_id


def test_not_a_number_is_never_the_best():
    trials = [trial(1, workload(10, score="NaN")), trial(2, workload(20, score=0.5))]

    best = best_validation(experiment(), trials)

    assert best is not None
    assert best.trial_id == 2
    assert best_validation(experiment(), trials[:1]) is None


def test_one_trial_shows_epoch_loss_and_the_searchers_metric():
    summary = {"avg_metrics": {"epochs": {"last": 3}, "loss": {"last": 0.25}}}
    one = trial(1, workload(10, score=0.1), latestValidation=workload(30, score=0.2), summaryMetrics=summary)

    snapshot = Snapshot.take(experiment(max_length={"epochs": 5}), [one])

    assert snapshot.text == "epoch 3/5  loss 0.25  score 0.2"
    assert snapshot.fraction == 0.5


def test_several_trials_show_how_many_are_done_and_the_best():
    trials = [
        trial(1, workload(10, score=0.9), state="STATE_COMPLETED"),
        trial(2, state="STATE_ERROR"),
        trial(3),
    ]

    assert Snapshot.take(experiment(), trials).text == "2 of 3 trials done, 1 failed  best score 0.9"


def test_a_completed_experiment_is_all_done_whatever_its_progress_says():
    assert Snapshot.take(experiment(state="STATE_COMPLETED", progress=0.9), []).fraction == 1.0


def test_a_report_line_shows_losses_first_and_no_counters():
    report = workload(40, accuracy=0.5, val_loss=0.25, epochs=2, batches=40, nested={"a": 1})

    line = report_line(4, {"validation": report}, with_trial=True)

    assert line == "trial 4  epoch 2  validation  val_loss 0.25  accuracy 0.5"


def test_a_report_line_has_training_before_validation():
    reports = {"validation": workload(40, val_loss=0.25), "training": workload(40, loss=0.5, epochs=2)}

    line = report_line(4, reports, with_trial=False)

    assert line == "epoch 2  training  loss 0.5  validation  val_loss 0.25"


PACE = {"samplesPerSecond": 1234.4, "secondsLeft": 125.0}


def test_one_trial_shows_its_speed_and_the_time_left():
    snapshot = Snapshot.take(experiment(), [trial(1, pace=PACE)])

    assert snapshot.text == "batch 7  1,234 samples/s"
    assert (snapshot.seconds_left, snapshot.estimates) == (125.0, False)


def test_time_left_that_is_unknown_is_estimated_for_other_masters_only():
    ours = Snapshot.take(experiment(), [trial(1, pace=None)])
    of_determined = Snapshot.take(experiment(), [trial(1)])

    assert (ours.seconds_left, ours.estimates) == (None, False)
    assert (of_determined.seconds_left, of_determined.estimates) == (None, True)


def test_a_report_line_ends_with_the_speed():
    line = report_line(4, {"training": workload(40, loss=0.5)}, with_trial=False, pace=PACE)

    assert line == "batch 40  training  loss 0.5  1,234 samples/s  about 2m 05s left"
