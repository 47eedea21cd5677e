"""A master that is killed while it sends to a webhook: the event arrives at least once, with one id."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from master.fakes import SINGLE, eventually
from master.receiver import Receiver

pytestmark = [pytest.mark.process, pytest.mark.kill]


@pytest.fixture
def receiver(monkeypatch):
    # Inherited by the master.
    monkeypatch.setenv("DET_KERAS_WEBHOOK_NETWORKS", "127.0.0.0/8")
    made = Receiver()
    yield made
    made.close()


def kill(real) -> None:
    os.kill(real.running.pid, signal.SIGKILL)
    if psutil.pid_exists(real.running.pid):
        psutil.Process(real.running.pid).wait(60)


def test_event_whose_outcome_was_not_stored_is_sent_again_with_its_id(receiver, real):
    workspace = real.client.post("/api/v1/workspaces", {"name": "vision"})["workspace"]["id"]
    project = real.client.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "digits"})["project"][
        "id"
    ]
    trigger = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "CANCELED"}}
    body = {"url": receiver.url, "webhookType": "WEBHOOK_TYPE_DEFAULT", "workspaceId": workspace}
    webhook = real.client.post("/api/v1/webhooks", {**body, "triggers": [trigger]})["webhook"]["id"]
    # The event has arrived, and the master learns nothing of it.
    receiver.answer = lambda handler: kill(real)
    number = real.client.create(SINGLE, activate=False, projectId=project)
    real.client.move(number, "kill")
    receiver.wait(1)
    eventually(lambda: not psutil.pid_exists(real.running.pid))
    receiver.answer = 200
    real.start()
    receiver.wait(2)
    path = f"/api/v1/webhooks/{webhook}/deliveries"
    (delivery,) = eventually(
        lambda: [one for one in real.client.get(path)["deliveries"] if one["state"] == "DELIVERED"]
    )
    assert {headers["X-Det-Keras-Event-ID"] for _, headers, _ in receiver.requests} == {delivery["eventId"]}
    assert {told["event_data"]["experiment"]["id"] for told in receiver.bodies} == {number}
    assert len(receiver.requests) == 2
