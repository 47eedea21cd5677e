"""Times that a client sends, at the limits of what a calendar and a database represent."""

from __future__ import annotations

import time

import pytest

from det_keras.display import time_text

UUID = "11111111-2222-3333-4444-555555555555"
REPRESENTABLE = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T12:00:00-05:00"]
OUTSIDE = ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "0001-01-01T00:00:00+23:59"]
PAGES = [
    *(
        "/trials/{trial}",
        "/trials/{trial}/logs",
        "/experiments/{experiment}",
        "/experiments/{experiment}/report",
    ),
    *(
        "/experiments/{experiment}/checkpoints",
        "/figures/wall?trial={trial}",
        "/figures/system?trial={trial}",
    ),
    *("/figures/lines?trial={trial}&metric=training.loss&x=time", "/experiments/{experiment}/search"),
]


def sending_calls(trial_id: int, task_id: str, moment: str):
    """Return every call that takes a time: method, path, parameters, body."""
    metrics = f"/api/v1/trials/{trial_id}/metrics"
    sent = {"trialRunId": 1, "stepsCompleted": 3, "reportTime": moment}
    for group, values in [
        ("training", {"loss": 1.0}),
        ("validation", {"loss": 1.0}),
        ("cpu", {"cpu_util": 1}),
    ]:
        body = {"group": group, "metrics": {**sent, "metrics": {"avgMetrics": values}}}
        yield "POST", metrics, {}, body
    media = {"kind": "text", "name": "a", "step": 1, "size": 1, "file": f"{'0' * 20}-1.txt"}
    yield "POST", f"/api/v1/trials/{trial_id}/media", {}, {**media, "reportTime": moment}
    checkpoint = {"uuid": UUID, "taskId": task_id, "metadata": {"steps_completed": 1}}
    yield "POST", "/api/v1/checkpoints", {}, {**checkpoint, "reportTime": moment}
    yield "POST", "/api/v1/task/logs", {}, {"logs": [{"taskId": task_id, "log": "x", "timestamp": moment}]}
    for name in ("timestampBefore", "timestampAfter"):
        yield "GET", f"/api/v1/trials/{trial_id}/logs", {name: moment, "follow": False}, None


def send(client, method, path, params, body):
    headers = {"Authorization": f"Bearer {client.token}"}
    return client.http.request(method, path, params=params, headers=headers, json=body)


@pytest.mark.parametrize("moment", OUTSIDE)
def test_time_outside_the_calendar_is_refused_with_its_text(world, moment):
    _, trial, _ = world.launch()
    for call in sending_calls(trial["id"], trial["taskId"], moment):
        answer = send(world.client, *call)
        assert answer.status_code == 400, (call, answer.text)
        assert moment in answer.text
        assert "year 9999" in answer.text


@pytest.mark.parametrize("moment", REPRESENTABLE)
def test_time_at_the_limit_of_the_calendar_is_stored_and_shown(world, moment):
    experiment_id, trial, _ = world.launch()
    for call in sending_calls(trial["id"], trial["taskId"], moment):
        answer = send(world.client, *call)
        assert answer.status_code == 200, (call, answer.text)
    assert world.client.get(f"/api/v1/checkpoints/{UUID}")["checkpoint"]["reportTime"][:4] == moment[:4]
    headers = {"Cookie": f"auth={world.client.token}", "Accept": "text/html, */*"}
    for page in PAGES:
        path = page.format(trial=trial["id"], experiment=experiment_id)
        answer = world.http.get(path, headers=headers)
        assert answer.status_code == 200, (path, answer.text[:300])


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
@pytest.mark.parametrize("moment", REPRESENTABLE)
def test_time_without_a_local_time_is_shown_in_utc(zone, moment, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert time_text(moment)[:2] in ("00", "99")
    finally:
        monkeypatch.undo()
        time.tzset()
