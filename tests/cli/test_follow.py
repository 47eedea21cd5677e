from __future__ import annotations

import pytest

from det_keras.cli.follow import follow
from det_keras.errors import MasterUnavailableError


class Master:
    """Answers like a session would, one moment of the experiment after the other."""

    def __init__(self, moments, workloads=(), log=()):
        self.moments = list(moments)
        self.workloads = list(workloads)
        self.log = list(log)
        self.asked: list[str] = []

    def get(self, path, params=None):
        self.asked.append(path)
        moment = self.moments[0]
        if isinstance(moment, Exception):
            self.moments.pop(0)
            raise moment
        if path.endswith("/trials"):
            # The last question of a round.
            if len(self.moments) > 1:
                self.moments.pop(0)
            return {"trials": moment["trials"]}
        if path.endswith("/workloads"):
            return {
                "workloads": self.workloads[params["offset"] :],
                "pagination": {"total": len(self.workloads)},
            }
        if path.endswith("/checkpoints"):
            return {"checkpoints": []}
        return {"experiment": moment["experiment"]}

    def stream(self, path, params):
        return iter([{"message": line} for line in self.log[-params["limit"] :][::-1]])


def moment(state, /, **trial):
    fields = {"id": 4, "state": "STATE_RUNNING", "restarts": 0, "totalBatchesProcessed": 0, **trial}
    config = {"searcher": {"name": "single", "metric": "val_loss"}, "max_restarts": 5}
    return {"experiment": {"id": 1, "state": f"STATE_{state}", "config": config}, "trials": [fields]}


def training(batches, **metrics):
    return {"training": {"metrics": {"avgMetrics": metrics}, "totalBatches": batches}}


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("det_keras.cli.follow._PERIOD_S", 0.0)


def test_a_failed_trial_shows_the_end_of_its_log(capsys):
    log = [f"line {number}\n" for number in range(50)]
    master = Master([moment("RUNNING"), moment("ERROR", state="STATE_ERROR")], log=log)

    assert follow(master, 1) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The log of trial 4 ends with:"
    assert lines[1:31] == [f"  line {number}" for number in range(20, 50)]
    assert lines[31:] == ["Experiment 1 failed."]


def test_a_pause_and_a_restart_are_told_once(capsys):
    moments = [moment("PAUSED"), moment("PAUSED"), moment("RUNNING"), moment("RUNNING", restarts=1)]
    master = Master([*moments, moment("COMPLETED", restarts=1)])

    assert follow(master, 1) == 0

    assert capsys.readouterr().out.splitlines() == [
        "Experiment 1 is paused. `det experiment activate 1` lets it go on.",
        "Trial 4 failed and starts again (restart 1 of 5).",
        "Experiment 1 completed.",
    ]


def test_a_master_that_is_away_is_waited_for(capsys):
    away = MasterUnavailableError("No answer.")

    assert follow(Master([moment("RUNNING"), away, away, moment("COMPLETED")]), 1) == 0


def test_reports_within_an_epoch_are_not_spelled_out(capsys):
    reports = [training(batches, loss=0.5, epochs=batches // 100) for batches in range(10, 310, 10)]
    master = Master([moment("COMPLETED", totalBatchesProcessed=300)], workloads=reports)

    follow(master, 1)

    lines = [line for line in capsys.readouterr().out.splitlines() if "training" in line]
    assert lines == [f"epoch {epoch}  training  loss 0.5" for epoch in (1, 2, 3)]


def test_a_script_that_counts_no_epochs_is_not_spelled_out_batch_by_batch(capsys):
    reports = [training(batches, loss=0.5) for batches in range(10, 310, 10)]
    master = Master([moment("COMPLETED", totalBatchesProcessed=300)], workloads=reports)

    follow(master, 1)

    lines = [line for line in capsys.readouterr().out.splitlines() if "training" in line]
    assert lines == ["batch 10  training  loss 0.5"]


def test_trials_without_news_are_not_asked_again():
    master = Master([moment("RUNNING")] * 5 + [moment("COMPLETED", state="STATE_COMPLETED")])

    follow(master, 1)

    assert sum(path.endswith("/workloads") for path in master.asked) == 2


def test_a_terminal_shows_the_trials_of_a_search(capsys, monkeypatch):
    import sys

    trials = [
        {**moment("RUNNING", id=1, searcherMetricValue=0.25)["trials"][0], "hparams": {"rate": 0.125}},
        {**moment("RUNNING", id=2)["trials"][0], "hparams": {"rate": 0.75}},
    ]
    found = {**moment("COMPLETED"), "trials": trials}
    found["experiment"]["config"]["searcher"]["name"] = "random"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")

    follow(Master([found]), 1)

    printed = capsys.readouterr().out
    assert "rate=0.125" in printed
    assert "rate=0.75" in printed
    assert "Best val_loss" in printed
