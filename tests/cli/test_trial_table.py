"""The table of a search's trials."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from det_keras.cli.following.trial_table import (
    best_trials_first,
    end_line,
    is_search,
    trial_rows,
    trial_table,
)


def experiment(smaller: bool = True, name: str = "random"):
    searcher = {"name": name, "metric": "val_loss", "smaller_is_better": smaller}
    return {"id": 1, "state": "STATE_RUNNING", "config": {"searcher": searcher}}


def trial(number: int, value: float | None = None, state: str = "COMPLETED", **fields):
    return {
        "id": number,
        "state": f"STATE_{state}",
        # Determined 0.38.1 has 0 here.
        "searcherMetricValue": 0,
        "bestValidation": None if value is None else {"metrics": {"avgMetrics": {"val_loss": value}}},
        "totalBatchesProcessed": 70,
        "hparams": {"rate": 0.5, "optimizer": {"name": "adam"}},
        **fields,
    }


def ids(trials) -> list[int]:
    return [one["id"] for one in trials]


@pytest.mark.parametrize(("smaller", "expected"), [(True, [3, 1, 2, 4]), (False, [1, 2, 3, 4])])
def test_best_is_first_and_who_has_no_metric_last(smaller, expected):
    trials = [trial(4), trial(1, 0.5), trial(2, 0.5), trial(3, 0.1)]
    assert ids(best_trials_first(experiment(smaller), trials)) == expected


def test_zero_and_negative_metrics_have_their_place():
    assert ids(best_trials_first(experiment(), [trial(1, 0.0), trial(2, -1.0), trial(3, 1.0)])) == [2, 1, 3]


def test_rows_begin_with_those_that_train_and_say_how_many_are_left_out():
    summary = {"validation_metrics": {"epochs": {"last": 4.0}}}
    trials = [
        trial(1, 0.5),
        trial(2, 0.1, summaryMetrics=summary, progress=1.0),
        trial(3, state="QUEUED"),
        trial(4, 0.9, state="RUNNING", progress=0.25, summaryMetrics=summary),
    ]
    rows, rest = trial_rows(experiment(), trials, 3)
    assert rows == [
        ["4", "RUNNING", "epoch 4 (25%)", "0.9", "rate=0.5  optimizer.name=adam"],
        ["2", "COMPLETED", "epoch 4", "0.1", "rate=0.5  optimizer.name=adam"],
        ["1", "COMPLETED", "batch 70", "0.5", "rate=0.5  optimizer.name=adam"],
    ]
    assert rest == 1


def test_table_keeps_one_line_a_trial_on_a_narrow_terminal():
    console = Console(file=io.StringIO(), width=60, force_terminal=True, color_system=None)
    console.print(trial_table(experiment(), [trial(number, number / 10) for number in range(1, 9)], 5))
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 7
    assert "Best val_loss" in lines[0]
    assert "and 3 more" in lines[-1]


def test_end_of_a_trial_is_one_line():
    assert end_line(experiment(), trial(3, 0.25)) == "Trial 3 COMPLETED after batch 70, val_loss 0.25"
    assert end_line(experiment(), trial(3, state="ERROR")) == "Trial 3 ERROR after batch 70"


def test_one_trial_is_no_search():
    assert is_search(experiment())
    assert not is_search(experiment(name="single"))
