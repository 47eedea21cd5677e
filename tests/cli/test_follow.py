from __future__ import annotations

import pytest

from det_keras.cli.following.follow import follow
from det_keras.errors import MasterUnavailableError
from det_keras.protocol.api import Api
from det_keras.protocol.api.accounts import OWN_VERSION_KEY
from det_keras.protocol.api.tasks import Logs
from det_keras.storage.manifest import MANIFEST_NAME


class Master:
    """Answers like a session would, one moment of the experiment after the other."""

    url = "http://127.0.0.1:8080"

    def __init__(self, moments, workloads=(), log=(), checkpoints=()):
        self.moments = list(moments)
        self.workloads = list(workloads)
        self.log = list(log)
        self.checkpoints = list(checkpoints)
        self.asked: list[str] = []

    @property
    def api(self):
        return Api(self)

    def get(self, path, params=None):
        self.asked.append(path)
        if path == "/info":
            return {OWN_VERSION_KEY: "1"}
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
            return {"checkpoints": self.checkpoints}
        return {"experiment": moment["experiment"]}

    def stream(self, path, params):
        return iter([{"message": line} for line in self.log[-params["limit"] :][::-1]])


def moment(state, /, **trial):
    fields = {"id": 4, "state": "STATE_RUNNING", "restarts": 0, "totalBatchesProcessed": 0, **trial}
    config = {"searcher": {"name": "single", "metric": "val_loss"}, "max_restarts": 5}
    return {"experiment": {"id": 1, "state": f"STATE_{state}", "config": config}, "trials": [fields]}


def training(batches, **metrics):
    return {"training": {"metrics": {"avgMetrics": metrics}, "totalBatches": batches}}


def validation(batches, **metrics):
    return {"validation": training(batches, **metrics)["training"]}


UUID = "1b671a64-40d5-491e-99b0-da01ff1f3341"
PAGE = "Its page: http://127.0.0.1:8080/experiments/1 (`det web 1` logs a browser in)"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch):
    monkeypatch.setattr("det_keras.cli.following.follow._PERIOD_S", 0.0)


def test_a_failed_trial_shows_the_end_of_its_log(capsys):
    log = [f"line {number}\n" for number in range(50)]
    master = Master([moment("RUNNING"), moment("ERROR", state="STATE_ERROR")], log=log)

    assert follow(master, 1) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "The log of trial 4 ends with:"
    assert lines[1:31] == [f"  line {number}" for number in range(20, 50)]
    assert lines[31:] == ["Experiment 1 failed.", PAGE]


def test_a_pause_and_a_restart_are_told_once(capsys):
    moments = [moment("PAUSED"), moment("PAUSED"), moment("RUNNING"), moment("RUNNING", restarts=1)]
    master = Master([*moments, moment("COMPLETED", restarts=1)])

    assert follow(master, 1) == 0

    assert capsys.readouterr().out.splitlines() == [
        "Experiment 1 is paused. `det experiment activate 1` resumes it.",
        "Trial 4 failed and is restarted (restart 1 of 5).",
        "Experiment 1 completed.",
        PAGE,
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


@pytest.mark.parametrize("first", [training, validation])
def test_training_and_validation_of_a_batch_are_one_line(capsys, first):
    reports = [training(10, loss=0.5, epochs=1), validation(10, val_loss=0.75)]
    reports = reports if first is training else reports[::-1]
    master = Master([moment("COMPLETED", totalBatchesProcessed=10)], workloads=reports)

    follow(master, 1)

    assert capsys.readouterr().out.splitlines()[0] == "epoch 1  training  loss 0.5  validation  val_loss 0.75"


def test_a_line_waits_for_the_validation_of_its_batch(capsys):
    before = moment("RUNNING", totalBatchesProcessed=10)
    after = moment("COMPLETED", totalBatchesProcessed=10, latestValidation={"endTime": "later"})
    master = Master([before, after])
    asked = iter([[training(10, loss=0.5, epochs=1)], [validation(10, val_loss=0.75)]])
    answers = master.get

    def get(path, params=None):
        if path.endswith("/workloads"):
            master.workloads += next(asked)
        return answers(path, params)

    master.get = get
    follow(master, 1)

    assert capsys.readouterr().out.splitlines()[0] == "epoch 1  training  loss 0.5  validation  val_loss 0.75"


def test_checkpoint_that_is_reported_late_repeats_no_line(capsys):
    """It moves newer reports to later places in the list."""
    moments = [moment("RUNNING", totalBatchesProcessed=batches) for batches in (10, 20)]
    ended = moment("COMPLETED", totalBatchesProcessed=20, latestValidation={"endTime": "later"})
    master = Master([*moments, ended])
    first = [training(10, loss=0.5, epochs=1), validation(10, val_loss=0.75, epochs=1)]
    second = [validation(20, val_loss=0.5, epochs=2), training(20, loss=0.25, epochs=2)]
    late = {"checkpoint": {"totalBatches": 10}}
    asked = iter([[*first, second[0]], [*first, late, second[0]], [*first, late, *second]])
    answers = master.get

    def get(path, params=None):
        if path.endswith("/workloads"):
            master.workloads = next(asked)
        return answers(path, params)

    master.get = get
    follow(master, 1)

    assert capsys.readouterr().out.splitlines()[:3] == [
        "epoch 1  training  loss 0.5  validation  val_loss 0.75",
        "epoch 2  training  loss 0.25  validation  val_loss 0.5",
        "Experiment 1 completed.",
    ]


def test_epochs_without_a_validation_have_lines_and_none_is_lost(capsys):
    reports = [training(batches, loss=0.5, epochs=batches // 10) for batches in (10, 20, 30)]
    reports.insert(2, validation(20, val_loss=0.75))
    master = Master([moment("COMPLETED", totalBatchesProcessed=30)], workloads=reports)

    follow(master, 1)

    assert capsys.readouterr().out.splitlines()[:3] == [
        "epoch 1  training  loss 0.5",
        "epoch 2  training  loss 0.5  validation  val_loss 0.75",
        "epoch 3  training  loss 0.5",
    ]


def checkpoint(uuid, section, **resources):
    training = {"experimentConfig": {"checkpoint_storage": section}}
    return {"uuid": uuid, "training": training, "resources": resources}


def test_the_end_names_the_page_and_the_line_that_loads_the_model(capsys, tmp_path):
    (tmp_path / UUID).mkdir()
    (tmp_path / UUID / MANIFEST_NAME).touch()
    record = checkpoint(UUID, {"type": "shared_fs", "host_path": str(tmp_path)}, **{"model.keras": 7})

    follow(Master([moment("COMPLETED")], checkpoints=[record]), 1)

    assert capsys.readouterr().out.splitlines()[-3:] == [
        f"Best checkpoint: {UUID}",
        PAGE,
        f"Load its best model: keras.models.load_model('{tmp_path}/{UUID}/model.keras')",
    ]


def test_a_model_that_another_machine_stores_is_downloaded_first(capsys):
    record = checkpoint(UUID, {"type": "s3", "bucket": "b"}, **{"model.keras": 7})

    follow(Master([moment("COMPLETED")], checkpoints=[record]), 1)

    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"Get its best model: det checkpoint download {UUID}",
        f"Load its best model: keras.models.load_model('checkpoints/{UUID}/model.keras')",
    ]


def test_trials_without_news_are_not_asked_again():
    master = Master([moment("RUNNING")] * 5 + [moment("COMPLETED", state="STATE_COMPLETED")])

    follow(master, 1)

    assert sum(path.endswith("/workloads") for path in master.asked) == 2


BEST = {"totalBatches": 10, "metrics": {"avgMetrics": {"val_loss": 0.25}}}


def test_a_terminal_shows_the_trials_of_a_search(capsys, monkeypatch):
    import sys

    trials = [
        {**moment("RUNNING", id=1, bestValidation=BEST)["trials"][0], "hparams": {"rate": 0.125}},
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


def test_a_terminal_shows_the_time_left_that_the_master_tells(capsys, monkeypatch):
    import sys

    pace = {"samplesPerSecond": 98.0, "secondsLeft": 125.0}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")

    follow(Master([moment("COMPLETED", pace=pace)]), 1)

    printed = capsys.readouterr().out
    assert "98 samples/s" in printed
    assert "about 2m 05s left" in printed


class LogTransport:
    """A master that streams a log of six lines."""

    def __init__(self, info):
        self.info, self.asked = info, []

    def get(self, path):
        assert path == "/info"
        return self.info

    def stream(self, path, *, params):
        self.asked.append(params)
        begin = int(params.get("afterId", 0)) if "det_keras_version" in self.info else 0
        return iter([{"id": str(number)} for number in range(begin + 1, 7)])


@pytest.mark.parametrize("info", [{"cluster_id": "c", "det_keras_version": "1"}, {"cluster_id": "c"}])
@pytest.mark.parametrize("after", [None, "4", "6"])
def test_log_is_followed_from_a_line_on(info, after):
    transport = LogTransport(info)
    found = [line["id"] for line in Logs.of_trial(transport, 1).follow(after)]
    assert found == [str(number) for number in range(int(after or 0) + 1, 7)]
    # Determined's master does not know the parameter.
    assert ("afterId" in transport.asked[0]) == (after is not None and "det_keras_version" in info)
