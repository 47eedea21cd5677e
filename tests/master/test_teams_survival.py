"""A master that is killed among changes of what a team shares: what it answered holds, and nothing is doubled."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass, field

import httpx
import pytest

from det_keras.master import process
from master.fakes import SINGLE, eventually, store_checkpoint

pytestmark = [pytest.mark.process, pytest.mark.kill]

MOST = 400


@dataclass
class Told:
    """What was asked for, and what the master answered.

    Attributes:
        versions: the number of each checkpoint that was registered.
        project: where the experiment was moved last.
        asked_project: where it was to be moved next.
        tokens: the tokens that were made, and whether their revocation was answered.
        revoking: tokens whose revocation was not answered.
    """

    versions: dict[str, int] = field(default_factory=dict)
    project: int = 1
    asked_project: int = 1
    tokens: dict[str, bool] = field(default_factory=dict)
    revoking: set[str] = field(default_factory=set)


def change_all(client, told, checkpoints, number, projects, started):
    """Register, move, make and revoke, until the master is gone."""
    try:
        for turn in range(MOST):
            uuid = checkpoints[turn % len(checkpoints)]
            body = {"checkpointUuid": uuid, "createModel": True, "aliases": ["champion"]}
            made = client.post("/api/v1/models/digits/versions", body)["modelVersion"]
            assert told.versions.setdefault(uuid, made["version"]) == made["version"]
            told.asked_project = projects[turn % 2]
            client.post(f"/api/v1/experiments/{number}/move", {"destinationProjectId": told.asked_project})
            told.project = told.asked_project
            token = client.post("/api/v1/tokens", {"lifespan": "1h"})
            told.tokens[token["token"]] = False
            if turn % 2:
                told.revoking.add(token["token"])
                path = f"/api/v1/tokens/{token['tokenId']}"
                client.call("PATCH", path, {"setRevoked": True})
                told.tokens[token["token"]] = True
            # Both kinds of tokens are made by now.
            if turn:
                started.set()
    except httpx.HTTPError:
        pass


def stored_checkpoints(real, count):
    number = real.client.create(SINGLE, activate=False)
    (trial,) = eventually(lambda: real.client.trials(number))
    made = [store_checkpoint(real.home, real.client, trial, steps) for steps in range(1, count + 1)]
    return number, made


@pytest.mark.parametrize("delay_s", [0.0, 0.007, 0.031])
def test_what_was_answered_holds_and_nothing_is_doubled(real, delay_s):
    number, checkpoints = stored_checkpoints(real, 40)
    workspace = real.client.post("/api/v1/workspaces", {"name": "team"})["workspace"]["id"]
    made = real.client.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "other"})
    project = made["project"]["id"]
    told, started = Told(), threading.Event()
    changing = threading.Thread(
        target=change_all, args=(real.client, told, checkpoints, number, (project, 1), started)
    )
    changing.start()
    assert started.wait(60)
    time.sleep(delay_s)
    os.kill(real.running.pid, signal.SIGKILL)
    changing.join(timeout=60)
    assert True in told.tokens.values()
    eventually(lambda: process.find(real.home) is None)
    real.http.close()
    real.start()

    listed = real.client.get("/api/v1/models/digits/versions")["modelVersions"]
    stored = {one["checkpoint"]["uuid"]: one["version"] for one in listed}
    assert len(stored) == len(listed)
    assert told.versions.items() <= stored.items()
    assert sorted(stored.values()) == list(range(1, len(stored) + 1))
    # The call that was not answered is made again.
    for uuid in checkpoints:
        body = {"checkpointUuid": uuid}
        again = real.client.post("/api/v1/models/digits/versions", body)["modelVersion"]["version"]
        assert stored.setdefault(uuid, again) == again
    assert sorted(stored.values()) == list(range(1, len(checkpoints) + 1))

    assert real.client.experiment(number)["projectId"] in (told.project, told.asked_project)
    for token, is_revoked in told.tokens.items():
        answer = real.http.get("/api/v1/me", headers={"Authorization": f"Bearer {token}"})
        expected = {401} if is_revoked else {200, 401} if token in told.revoking else {200}
        assert answer.status_code in expected
