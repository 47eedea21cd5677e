"""TensorBoards as tasks: what they run, when they are ready, and where browsers are sent."""

from __future__ import annotations

import importlib.util

import pytest

from master.fakes import eventually

PATH = "/api/v1/tensorboards"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """Whether TensorBoard is installed where the master runs."""
    names = {"tensorboard": True}
    found = importlib.util.find_spec

    def find_spec(name, *rest):
        return (object() if names[name] else None) if name in names else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    return names


@pytest.fixture
def board(world, client):
    """A TensorBoard whose process was started, and its allocation."""
    number = client.create(activate=False)
    body = {"config": {}, "experimentIds": [number], "trialIds": None, "files": []}
    board = client.post(PATH, body)["tensorboard"]
    allocation = world.wait_for_launch({"taskId": board["id"]})
    running = f"/api/v1/allocations/{allocation}"
    eventually(lambda: client.get(running)["allocation"]["state"] == "STATE_RUNNING")
    return board, allocation


def is_ready(client, board):
    return client.get(f"/api/v1/tasks/{board['id']}")["task"]["allocations"][0]["isReady"]


def visit(client, path):
    headers = {"Authorization": f"Bearer {client.token}"}
    return client.http.get(path, headers=headers, follow_redirects=False)


def test_task_needs_no_slot_and_shows_what_was_asked_for(world, client, board):
    shown, allocation = board
    launched = world.pool.launched[allocation]
    assert launched.argv[1:] == ["-m", "det_keras.cli.tensorboard_task", "1"]
    assert launched.variables["DET_TASK_TYPE"] == "TENSORBOARD"
    assert launched.variables["DET_SLOT_IDS"] == "[]"
    assert (shown["experimentIds"], shown["trialIds"]) == ([1], [])
    (listed,) = client.get(PATH, params={"users": ["determined"]})["tensorboards"]
    assert (listed["id"], listed["state"]) == (shown["id"], "STATE_RUNNING")
    assert client.get(PATH, params={"users": ["admin"]})["tensorboards"] == []
    (job,) = client.get("/api/v1/job-queues-v2")["jobs"]
    assert job["full"]["type"] == "TYPE_TENSORBOARD"
    assert client.get("/api/v1/commands")["commands"] == []
    client.get(f"/api/v1/commands/{shown['id']}", status=404)


def test_browser_is_sent_there_as_soon_as_it_says_that_it_serves(client, board):
    shown, allocation = board
    assert not is_ready(client, shown)
    assert visit(client, shown["serviceAddress"]).status_code == 503
    here = f"/api/v1/allocations/{allocation}"
    client.post(f"{here}/proxy_address", {"proxyAddress": "127.0.0.1:4321"})
    client.post(f"{here}/ready")
    assert is_ready(client, shown)
    for path in (shown["serviceAddress"], f"/det/interactive/{shown['id']}/tensorboard/x/default/y?z=1"):
        answer = visit(client, path)
        assert (answer.status_code, answer.headers["location"]) == (302, "http://127.0.0.1:4321/")
    assert client.http.get(shown["serviceAddress"]).status_code == 401


@pytest.mark.parametrize("address", ["10.0.0.1:80", "127.0.0.1:80.example.org", "127.0.0.1:80/x", ""])
def test_browser_is_sent_to_this_machine_only(client, board, address):
    shown, allocation = board
    client.post(f"/api/v1/allocations/{allocation}/proxy_address", {"proxyAddress": address})
    client.post(f"/api/v1/allocations/{allocation}/ready")
    assert visit(client, shown["serviceAddress"]).status_code == 503


def test_killed_one_is_over_and_serves_nothing(world, client, board):
    shown, _ = board
    client.post(f"{PATH}/{shown['id']}/kill")
    eventually(lambda: client.get(f"{PATH}/{shown['id']}")["tensorboard"]["state"] == "STATE_TERMINATED")
    assert visit(client, shown["serviceAddress"]).status_code == 503


def test_what_cannot_be_shown_is_refused(client):
    client.post(PATH, {"experimentIds": [7]}, status=404)
    client.post(PATH, {"trialIds": [7]}, status=404)
    assert "experimentIds" in client.post(PATH, {"config": {}}, status=400)["error"]["error"]
    client.post(f"{PATH}/nobody/kill", status=404)
    number = client.create(activate=False)
    refused = client.post(PATH, {"experimentIds": [number], "config": {"resources": "many"}}, status=400)
    assert "resources" in refused["error"]["error"]


def test_missing_tensorboard_is_named_with_what_to_install(client, installed):
    installed["tensorboard"] = False
    number = client.create(activate=False)
    refused = client.post(PATH, {"experimentIds": [number]}, status=400)
    assert "pip install 'det_keras[tensorboard]'" in refused["error"]["error"]


def test_other_tasks_are_ready_when_they_run(world, client):
    _, trial, _ = world.launch()
    eventually(lambda: is_ready(client, {"id": trial["taskId"]}))
