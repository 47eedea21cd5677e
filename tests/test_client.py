"""Objects of `det.experimental.client` against a master."""

from __future__ import annotations

import json
import math
import sys
import threading
import time

import httpx
import numpy as np
import pandas as pd
import pytest
from master.conftest import *  # noqa: F403 - the fixtures of a master
from master.fakes import eventually

from det_keras.client import Session
from det_keras.errors import DetError, MasterError
from det_keras.experimental.client import get_checkpoint, get_experiment, get_trial

CONFIG = "name: digits\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


@pytest.fixture
def session(world):
    """A session with the master in this process."""

    def send(request: httpx.Request) -> httpx.Response:
        url = request.url.raw_path.decode()
        answer = world.http.request(
            request.method, url, content=request.read(), headers=dict(request.headers)
        )
        return httpx.Response(answer.status_code, content=answer.content)

    return Session("http://master", world.client.token, transport=httpx.MockTransport(send))


@pytest.fixture
def running(world, session):
    """An experiment whose trial runs, and the trial's allocation."""
    number, trial, allocation = world.launch(CONFIG)
    return get_experiment(number, session=session), get_trial(trial["id"], session=session), allocation


def checkpoint(world, trial, steps: int, number: int, **metrics) -> str:
    """Report a validation and a checkpoint, and return its UUID."""
    uuid = f"{number:08}-0000-4000-8000-000000000000"
    world.client.report(trial.id, "validation", steps, metrics)
    shape = world.client.trial(trial.id)
    body = {
        "uuid": uuid, "taskId": shape["taskId"], "allocationId": f"{shape['taskId']}.1",
        "resources": {"weights": "1024", "code/": "0", "code/a.py": "5"},
        "metadata": {"steps_completed": steps}, "training": {},
    }  # fmt: skip
    world.client.post("/api/v1/checkpoints", body)
    return uuid


def rest_reports(world, trial_id: int, group: str) -> pd.DataFrame:
    """Return the reports of the REST API, read by pandas."""
    path = f"/api/v1/trials/metrics/trial_metrics?group={group}&trialIds={trial_id}"
    text = world.http.get(path, headers={"Authorization": f"Bearer {world.client.token}"}).text
    reports = [report for line in text.splitlines() for report in json.loads(line)["result"]["metrics"]]
    name = "validation_metrics" if group == "validation" else "avg_metrics"
    rows = pd.DataFrame(
        [report["metrics"][name] for report in reports],
        index=pd.Index([report["totalBatches"] for report in reports], name="steps_completed"),
    )
    return rows.replace({"NaN": math.nan, "Infinity": math.inf}).infer_objects()


@pytest.mark.parametrize("group", ["training", "validation", "mine"])
def test_frame_of_a_trial_is_what_the_api_says(world, running, group):
    _, trial, _ = running
    for step, loss in ((1, 0.5), (2, "NaN"), (3, "Infinity"), (10**6, 0.25)):
        world.client.report(trial.id, group, step, {"loss": loss, "epochs": step, "word": "a"})
    frame = trial.to_frame(group)
    pd.testing.assert_frame_equal(frame, rest_reports(world, trial.id, group), check_dtype=False)
    assert frame.index.name == "steps_completed"
    assert [str(kind) for kind in frame.dtypes] == ["float64", "int64", "object"]
    assert math.isnan(frame["loss"][2])


def test_reports_of_one_batch_are_one_row_and_gaps_keep_integers(world, running):
    _, trial, _ = running
    world.client.report(trial.id, "mine", 1, {"a": 1})
    world.client.report(trial.id, "mine", 1, {"b": 2.5})
    world.client.report(trial.id, "mine", 2, {"b": 3.5})
    frame = trial.to_frame("mine")
    assert frame.index.tolist() == [1, 2]
    assert frame["b"].tolist() == [2.5, 3.5]
    assert str(frame["a"].dtype) == "Int64"
    assert frame["a"].isna().tolist() == [False, True]
    assert frame["a"][1] == 1


def test_frame_of_an_experiment_has_the_rows_of_its_trials(world, session):
    config = CONFIG.replace("single", "random").replace("loss}", "loss, max_trials: 2}")
    experiment = get_experiment(world.client.create(config), session=session)
    trials = sorted(trial.id for trial in experiment.list_trials())
    for place, trial in enumerate(world.client.trials(experiment.id)):
        world.wait_for_launch(trial)
        world.client.report(trial["id"], "validation", 10, {"loss": float(-place)})
    frame = experiment.to_frame()
    assert frame.index.names == ["trial_id", "steps_completed"]
    assert frame.index.tolist() == [(trial, 10) for trial in trials]
    for trial in trials:
        pd.testing.assert_frame_equal(frame.loc[trial], get_trial(trial, session=session).to_frame())


def test_frame_without_reports_is_empty(running):
    experiment, trial, _ = running
    assert trial.to_frame().shape == (0, 0)
    assert experiment.to_frame().index.names == ["trial_id", "steps_completed"]


def test_frame_without_pandas_says_what_to_install(running, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(DetError, match="pip install pandas"):
        running[1].to_frame()


def test_metrics_of_a_trial_come_in_order(world, running):
    _, trial, _ = running
    for step in (1, 2, 3):
        world.client.report(trial.id, "training", step, {"loss": 1 / step})
    found = list(trial.iter_metrics("training"))
    assert [(report.steps_completed, report.metrics["loss"]) for report in found] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
    ]
    assert {(report.trial_id, report.trial_run_id, report.group) for report in found} == {
        (trial.id, 1, "training")
    }
    assert found[0].end_time.tzinfo is not None


def test_log_is_read_from_both_ends(world, running):
    experiment, trial, allocation = running
    for number in range(5):
        world.pool.say(allocation, f"line {number}")
    eventually(lambda: sum("line" in line for line in trial.iter_logs()) == 5)
    everything = list(trial.iter_logs())
    assert [line.split("line ")[1] for line in everything if "line " in line] == [str(n) for n in range(5)]
    assert list(trial.iter_logs(head=2)) == everything[:2]
    assert list(trial.iter_logs(tail=2)) == everything[-2:]
    assert list(experiment.iter_logs()) == everything
    with pytest.raises(ValueError, match="at most one"):
        trial.iter_logs(head=1, tail=1)


def test_followed_log_ends_with_the_trial(world, running):
    experiment, _, allocation = running
    world.pool.say(allocation, "first")

    def end():
        time.sleep(0.3)
        world.pool.say(allocation, "last")
        world.pool.finish(allocation)

    thread = threading.Thread(target=end)
    thread.start()
    lines = list(experiment.iter_logs(follow=True))
    thread.join()
    assert any("first" in line for line in lines)
    assert any("last" in line for line in lines)
    assert experiment.wait(0.05, timeout=30) == "COMPLETED"


def test_actions_change_the_state(world, running):
    experiment, trial, _ = running
    experiment.pause()
    assert experiment.state == "PAUSED"
    assert experiment.wait(timeout=5) == "PAUSED"
    experiment.activate()
    assert world.client.experiment(experiment.id)["state"] != "STATE_PAUSED"
    with pytest.raises(
        TimeoutError, match=rf"Experiment {experiment.id} has not ended after 0\.2 s: its state is"
    ):
        experiment.wait(0.05, timeout=0.2)
    with pytest.raises(TimeoutError, match=f"Trial {trial.id} has not ended"):
        trial.wait(0.05, timeout=0)
    experiment.kill()
    assert experiment.wait(0.05, timeout=30) == "CANCELED"
    assert trial.wait(0.05, timeout=30) == "CANCELED"
    experiment.archive()
    assert experiment.archived
    experiment.unarchive()
    assert not experiment.archived
    experiment.delete()

    def is_gone() -> bool:
        try:
            experiment.reload()
        except MasterError as error:
            return error.status == 404
        return False

    eventually(is_gone)


def test_cancel_asks_the_trial_to_stop(world, running):
    experiment, _, allocation = running
    experiment.cancel()
    assert experiment.state == "STOPPING_CANCELED"
    world.pool.finish(allocation)
    assert experiment.wait(0.05, timeout=30) == "CANCELED"


def test_one_trial_can_be_killed(running):
    _, trial, _ = running
    trial.kill()
    assert trial.wait(0.05, timeout=30) == "CANCELED"


def test_texts_and_labels_are_stored(world, session):
    experiment = get_experiment(world.client.create(CONFIG, activate=False), session=session)
    experiment.set_name("a name")
    experiment.set_description("what <it> is")
    experiment.set_notes("# Notes")
    experiment.set_labels(["b", "a"])
    experiment.add_label("c/d e")
    experiment.remove_label("a")
    stored = world.client.experiment(experiment.id)
    assert (stored["name"], stored["description"], stored["notes"]) == ("a name", "what <it> is", "# Notes")
    assert (experiment.name, experiment.description, experiment.notes) == (
        "a name",
        "what <it> is",
        "# Notes",
    )
    assert stored["labels"] == experiment.labels == ["b", "c/d e"]
    with pytest.raises(TypeError, match=r"set_labels\(\['a'\]\)"):
        experiment.set_labels("a")


def test_checkpoints_are_ordered_by_a_metric(world, running):
    experiment, trial, _ = running
    uuids = [
        checkpoint(world, trial, step, step, loss=loss, accuracy=accuracy)
        for step, loss, accuracy in ((1, 0.5, 0.9), (2, 0.25, 0.7), (3, "NaN", 0.8))
    ]
    for source in (experiment, trial):
        assert [found.uuid for found in source.list_checkpoints()] == [uuids[1], uuids[0], uuids[2]]
        assert source.top_checkpoint().uuid == uuids[1]
        assert source.top_checkpoint("accuracy", smaller_is_better=False).uuid == uuids[0]
        assert source.top_checkpoint("unknown") is None
        assert len(source.list_checkpoints(max_results=2)) == 2
        with pytest.raises(ValueError, match="Received: 0"):
            source.list_checkpoints(max_results=0)
    best = experiment.top_checkpoint()
    assert (best.trial_id, best.experiment_id, best.steps_completed) == (trial.id, experiment.id, 2)
    assert best.metrics == {"loss": 0.25, "accuracy": 0.7}
    assert best.searcher_metric == 0.25
    assert best.resources == {"weights": 1024, "code/": 0, "code/a.py": 5}
    assert "0.25" in best._repr_html_()


def test_metadata_of_a_checkpoint_is_changed(world, session, running):
    uuid = checkpoint(world, running[1], 1, 1, loss=0.5)
    found = get_checkpoint(uuid, session=session)
    found.add_metadata({"a": 1, "b": [2]})
    found.remove_metadata(["a", "unknown"])
    assert (
        get_checkpoint(uuid, session=session).metadata == found.metadata == {"steps_completed": 1, "b": [2]}
    )


def test_checkpoint_is_deleted(world, session, running):
    found = get_checkpoint(checkpoint(world, running[1], 1, 1, loss=0.5), session=session)
    found.delete()
    eventually(lambda: found.reload() or found.state == "DELETED")


def test_first_trial_is_awaited(running):
    experiment, trial, _ = running
    assert experiment.await_first_trial(timeout=5).id == trial.id


def test_best_value_is_that_of_the_reload(world, running):
    _, trial, _ = running
    assert trial.searcher_metric is None
    world.client.report(trial.id, "validation", 1, {"loss": np.float64(0.5)})
    trial.reload()
    assert trial.searcher_metric == 0.5
