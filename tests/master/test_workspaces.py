"""Workspaces and projects, by the rules that clients of Determined 0.38.1 rely on."""

from __future__ import annotations

import pytest

from master.fakes import SINGLE, Client, eventually
from master.test_doors import login

PLACED = "workspace: vision\nproject: digits\n" + SINGLE


@pytest.fixture
def admin(world) -> Client:
    return login(world, "admin", world.home.admin_password_file.read_text())


@pytest.fixture
def stranger(world, admin) -> Client:
    admin.post(
        "/api/v1/users", {"user": {"username": "other", "active": True}, "password": "A long one 4 others"}
    )
    return login(world, "other", "A long one 4 others")


def workspace(client, name="vision", **fields):
    return client.post("/api/v1/workspaces", {"name": name, **fields})["workspace"]


def project(client, workspace_id, name="digits", **fields):
    return client.post(f"/api/v1/workspaces/{workspace_id}/projects", {"name": name, **fields})["project"]


@pytest.fixture
def vision(client):
    return workspace(client)["id"]


@pytest.fixture
def digits(client, vision):
    return project(client, vision)["id"]


def workspaces(client, **params):
    return [one["name"] for one in client.get("/api/v1/workspaces", params=params)["workspaces"]]


def projects(client, workspace_id, **params):
    return [
        one["name"]
        for one in client.get(f"/api/v1/workspaces/{workspace_id}/projects", params=params)["projects"]
    ]


def experiments(client, project_id):
    found = client.get("/api/v1/experiments", params={"projectId": project_id})["experiments"]
    return sorted(one["id"] for one in found)


def ended(client, config=SINGLE, **fields):
    number = client.create(config, **fields)
    client.move(number, "kill")
    client.wait_for_state(number, "CANCELED")
    return number


def test_everything_is_in_the_first_project_which_nobody_changes(world, client, admin):
    number = client.create()
    shown = client.experiment(number)
    assert (shown["workspaceId"], shown["projectId"], shown["projectName"]) == (1, 1, "Uncategorized")
    (first,) = client.get("/api/v1/workspaces")["workspaces"]
    assert (first["id"], first["name"], first["immutable"], first["numExperiments"]) == (
        1,
        "Uncategorized",
        True,
        1,
    )
    assert client.get("/api/v1/projects/1")["project"]["immutable"]
    for kind in ("workspaces", "projects"):
        path = f"/api/v1/{kind}/1"
        for method, address, body in (
            ("PATCH", path, {"name": "mine"}),
            ("POST", f"{path}/archive", None),
            ("POST", f"{path}/unarchive", None),
            ("DELETE", path, None),
        ):
            # A user may not; for an administrator it is impossible.
            client.call(method, address, body, status=403)
            admin.call(method, address, body, status=400)
    client.post("/api/v1/workspaces/1/projects", {"name": "second"}, status=400)


def test_workspaces_are_listed_in_order_and_by_name(client):
    for name in ("_TestPatched", "_TestWS"):
        workspace(client, name)
    assert workspaces(client) == ["Uncategorized", "_TestPatched", "_TestWS"]
    assert workspaces(client, orderBy="ORDER_BY_DESC") == ["_TestWS", "_TestPatched", "Uncategorized"]
    assert set(workspaces(client, sortBy="SORT_BY_NAME")) == {"_TestPatched", "_TestWS", "Uncategorized"}
    assert workspaces(client, name="testws") == ["_TestWS"]
    assert workspaces(client, nameCaseSensitive="_testws") == []
    assert workspaces(client, users="nobody") == []
    client.get("/api/v1/workspaces", params={"sortBy": "SORT_BY_SIZE"}, status=400)


def test_own_workspace_is_pinned_until_it_is_unpinned(client, admin, vision):
    assert workspaces(client, pinned=True) == ["vision"]
    assert workspaces(admin, pinned=True) == []
    client.post(f"/api/v1/workspaces/{vision}/unpin")
    assert workspaces(client, pinned=True) == []
    client.post(f"/api/v1/workspaces/{vision}/pin")
    client.post(f"/api/v1/workspaces/{vision}/pin")
    assert client.get(f"/api/v1/workspaces/{vision}")["workspace"]["pinned"]


def test_names_are_unique_and_of_a_length(client, vision, digits):
    client.post("/api/v1/workspaces", {"name": "vision"}, status=409)
    other = workspace(client, "text")["id"]
    client.call("PATCH", f"/api/v1/workspaces/{other}", {"name": "vision"}, status=409)
    client.post(f"/api/v1/workspaces/{vision}/projects", {"name": "digits"}, status=409)
    # In another workspace it is another project.
    second = project(client, other)
    client.post(f"/api/v1/projects/{second['id']}/move", {"destinationWorkspaceId": vision}, status=409)
    for name in ("", "  ", "x" * 81, "a\0b", "a\nb"):
        client.post("/api/v1/workspaces", {"name": name}, status=400)
        client.post(f"/api/v1/workspaces/{vision}/projects", {"name": name}, status=400)


def test_keys_are_made_of_names_and_are_unique(client, vision):
    first, second = project(client, vision, "MNIST digits"), project(client, vision, "MNIST letters")
    assert (first["key"], second["key"]) == ("MNI", "MNI1")
    assert client.get("/api/v1/projects/key/mni1")["project"]["id"] == second["id"]
    client.call("PATCH", f"/api/v1/projects/{second['id']}", {"key": "MNI"}, status=409)
    client.call("PATCH", f"/api/v1/projects/{second['id']}", {"key": "longer than five"}, status=400)


def test_archived_workspace_takes_nothing_with_all_its_projects(client, vision, digits):
    other = workspace(client, "text")["id"]
    client.post(f"/api/v1/workspaces/{vision}/archive")
    assert client.get(f"/api/v1/workspaces/{vision}")["workspace"]["archived"]
    assert client.get(f"/api/v1/projects/{digits}")["project"]["archived"]
    client.call("PATCH", f"/api/v1/workspaces/{vision}", {"name": "seen"}, status=400)
    client.post(f"/api/v1/workspaces/{vision}/projects", {"name": "new"}, status=400)
    for verb in ("archive", "unarchive"):
        client.post(f"/api/v1/projects/{digits}/{verb}", status=400)
    client.post(f"/api/v1/projects/{digits}/move", {"destinationWorkspaceId": other}, status=400)
    client.post("/api/v1/experiments", {"config": PLACED}, status=400)
    client.post("/api/v1/commands", {"config": {"entrypoint": ["true"]}, "workspaceId": vision}, status=404)
    client.post(f"/api/v1/workspaces/{vision}/unarchive")
    assert client.experiment(client.create(PLACED))["projectId"] == digits


def test_archived_project_neither_takes_nor_gives_experiments(client, vision, digits):
    number = client.create(PLACED)
    client.post(f"/api/v1/projects/{digits}/archive")
    client.post(f"/api/v1/experiments/{number}/move", {"destinationProjectId": 1}, status=400)
    client.post(f"/api/v1/experiments/{client.create()}/move", {"destinationProjectId": digits}, status=400)
    client.call("PATCH", f"/api/v1/projects/{digits}", {"name": "letters"}, status=400)
    assert client.experiment(number)["parentArchived"]
    assert projects(client, vision, archived=True) == ["digits"]
    assert projects(client, vision, archived=False) == []


def test_experiment_is_where_config_or_request_say(client, vision, digits):
    by_config, by_request = client.create(PLACED), client.create(projectId=digits)
    shown = client.experiment(by_config)
    assert (shown["workspaceName"], shown["projectName"]) == ("vision", "digits")
    assert experiments(client, digits) == [by_config, by_request]
    assert experiments(client, 1) == []
    # A fork is beside its parent.
    fork = client.create(parentId=by_request)
    assert client.experiment(fork)["projectId"] == digits
    for refused, status in (
        ({"config": "workspace: nowhere\nproject: digits\n" + SINGLE}, 404),
        ({"config": "workspace: vision\nproject: letters\n" + SINGLE}, 404),
        ({"config": "workspace: vision\n" + SINGLE}, 400),
        ({"config": SINGLE, "projectId": 99}, 404),
        ({"config": PLACED, "projectId": 1}, 400),
    ):
        for is_only_validated in (True, False):
            client.post("/api/v1/experiments", {**refused, "validateOnly": is_only_validated}, status=status)
    assert experiments(client, 99) == []


def test_experiments_move_between_projects(client, vision, digits):
    numbers = [client.create() for _ in range(3)]
    client.post(f"/api/v1/experiments/{numbers[0]}/move", {"destinationProjectId": digits})
    answer = client.post(
        "/api/v1/projects/1/experiments/move",
        {"experimentIds": [*numbers, 99], "destinationProjectId": digits},
    )
    errors = {result["id"]: result["error"] for result in answer["results"]}
    assert errors[numbers[1]] == errors[numbers[2]] == ""
    assert "not in project 1" in errors[numbers[0]]
    assert "not found" in errors[99]
    assert experiments(client, digits) == numbers


def test_tables_show_projects_and_follow_their_names(client, vision, digits):
    number = client.create(PLACED)
    client.create()
    for path, column in (("/experiments.csv", "id"), ("/trials.csv", "experiment")):
        address = f"{path}?q=project:digits&columns={column},workspace,project"
        found = client.http.get(
            address, headers={"Authorization": f"Bearer {client.token}"}
        ).text.splitlines()
        assert len(found) == 2
        assert found[1].endswith("vision,digits")
    client.call("PATCH", f"/api/v1/projects/{digits}", {"name": "letters"})
    client.call("PATCH", f"/api/v1/workspaces/{vision}", {"name": "seen"})
    params = {"q": "project:letters workspace=seen", "columns": "experiment"}
    found = client.get("/api/v1/trials", params=params)
    place = [column["key"] for column in found["columns"]].index("experiment")
    assert [row[place] for row in found["rows"]] == [number]


@pytest.mark.parametrize(
    ("verb", "state"), [("pause", "PAUSED"), ("kill", "CANCELED"), ("cancel", "STOPPING_CANCELED")]
)
def test_actions_reach_all_that_filters_find(client, digits, verb, state):
    chosen = [client.create("name: chosen\n" + PLACED) for _ in range(2)]
    left = client.create("name: left\n" + PLACED)
    elsewhere = client.create("name: chosen\n" + SINGLE)
    path = f"/api/v1/projects/{digits}/experiments/{verb}"
    answer = client.post(path, {"filters": {"name": "CHOSEN"}})
    assert answer["results"] == [{"id": number, "error": ""} for number in chosen]
    for number in chosen:
        client.wait_for_state(number, state)
    assert {client.experiment(number)["state"] for number in (left, elsewhere)}.isdisjoint({f"STATE_{state}"})
    client.post(f"/api/v1/projects/{digits}/experiments/paint", {"experimentIds": chosen}, status=400)


def test_notes_are_added_and_replaced(client, digits):
    path = f"/api/v1/projects/{digits}/notes"
    client.post(path, {"name": "Hello", "contents": "one"})
    assert len(client.post(path, {"name": "Hello 2", "contents": "two"})["notes"]) == 2
    kept = client.call("PUT", path, {"notes": [{"name": "Hello 2", "contents": "two"}], "projectId": digits})
    assert kept["notes"] == [{"name": "Hello 2", "contents": "two"}]
    assert client.get(f"/api/v1/projects/{digits}")["project"]["notes"] == kept["notes"]


def test_only_owners_and_administrators_change_what_is_theirs(client, stranger, admin, vision, digits):
    for method, path, body in (
        ("PATCH", f"/api/v1/workspaces/{vision}", {"name": "mine"}),
        ("POST", f"/api/v1/workspaces/{vision}/archive", None),
        ("DELETE", f"/api/v1/workspaces/{vision}", None),
        ("PATCH", f"/api/v1/projects/{digits}", {"name": "mine"}),
        ("POST", f"/api/v1/projects/{digits}/archive", None),
        ("POST", f"/api/v1/projects/{digits}/move", {"destinationWorkspaceId": vision}),
        ("DELETE", f"/api/v1/projects/{digits}", None),
    ):
        stranger.call(method, path, body, status=403)
    # What says something about a project may come from everybody.
    assert stranger.call("PATCH", f"/api/v1/projects/{digits}", {"description": "seen"})["project"][
        "description"
    ]
    stranger.post(f"/api/v1/projects/{digits}/notes", {"name": "a", "contents": "b"})
    admin.call("PATCH", f"/api/v1/workspaces/{vision}", {"name": "ours"})


def test_checkpoints_are_stored_where_the_workspace_says(client, tmp_path):
    section = {"type": "directory", "container_path": str(tmp_path), "save_trial_latest": 3}
    kept = workspace(client, checkpointStorageConfig=section)
    assert kept["checkpointStorageConfig"] == section
    project(client, kept["id"])
    stored = client.experiment(client.create(PLACED))["config"]["checkpoint_storage"]
    assert (stored["container_path"], stored["save_trial_latest"]) == (str(tmp_path), 3)
    own = client.create(PLACED + "checkpoint_storage: {save_trial_latest: 7}\n")
    stored = client.experiment(own)["config"]["checkpoint_storage"]
    assert (stored["container_path"], stored["save_trial_latest"]) == (str(tmp_path), 7)
    changed = client.call("PATCH", f"/api/v1/workspaces/{kept['id']}", {"checkpointStorageConfig": {}})
    assert changed["workspace"]["checkpointStorageConfig"] is None
    stored = client.experiment(client.create(PLACED))["config"]["checkpoint_storage"]
    assert stored["container_path"] != str(tmp_path)
    for wrong in (
        {"type": "tape"},
        {"type": "shared_fs"},
        {"type": "directory", "container_path": "a", "x": 1},
    ):
        client.post("/api/v1/workspaces", {"name": "bad", "checkpointStorageConfig": wrong}, status=400)


def test_credentials_of_a_workspace_are_hidden(client):
    section = {"type": "s3", "bucket": "b", "access_key": "marker-1", "secret_key": "marker-2"}
    assert "marker" not in str(workspace(client, checkpointStorageConfig=section))
    assert "marker" not in str(client.get("/api/v1/workspaces"))


@pytest.mark.parametrize("field", [{"defaultComputePool": "gpus"}, {"agentUserGroup": {"agentUid": 1}}])
def test_what_this_master_does_not_have_is_refused_instead_of_dropped(client, field):
    client.post("/api/v1/workspaces", {"name": "vision", **field}, status=400)
    assert workspaces(client) == ["Uncategorized"]


def test_jobs_are_in_workspaces(client, vision):
    job = client.post("/api/v1/commands", {"config": {"entrypoint": ["sleep", "9"]}, "workspaceId": vision})
    assert job["command"]["workspaceId"] == vision
    client.post("/api/v1/commands", {"config": {"entrypoint": ["true"]}})
    found = client.get("/api/v1/commands", params={"workspaceId": vision})["commands"]
    assert [one["id"] for one in found] == [job["command"]["id"]]
    client.get("/api/v1/commands", params={"workspaceId": 99}, status=404)


def test_empty_workspace_and_project_are_deleted_at_once(client, vision, digits):
    assert client.call("DELETE", f"/api/v1/projects/{digits}")["completed"]
    client.get(f"/api/v1/projects/{digits}", status=404)
    assert client.call("DELETE", f"/api/v1/workspaces/{vision}")["completed"]
    client.get(f"/api/v1/workspaces/{vision}", status=404)
    # Its number is never used again.
    assert workspace(client)["id"] > vision


def test_workspace_is_deleted_with_its_experiments_once_they_have_ended(world, client, vision, digits):
    running = client.create(PLACED)
    refused = client.call("DELETE", f"/api/v1/workspaces/{vision}", status=400)
    assert f"have not ended: {running}" in refused["error"]["error"]
    client.move(running, "kill")
    client.wait_for_state(running, "CANCELED")
    other = ended(client)
    job = client.post("/api/v1/commands", {"config": {"entrypoint": ["sleep", "9"]}, "workspaceId": vision})
    job_id = job["command"]["id"]
    assert not client.call("DELETE", f"/api/v1/workspaces/{vision}")["completed"]
    eventually(lambda: workspaces(client) == ["Uncategorized"])
    client.get(f"/api/v1/experiments/{running}", status=404)
    assert client.experiment(other)["projectId"] == 1
    eventually(lambda: world.pool.kills or client.get(f"/api/v1/commands/{job_id}")["command"]["exitStatus"])


def test_deletion_goes_on_after_a_restart(make_world):
    """The rows say what is left to do."""
    world = make_world()
    vision = workspace(world.client)["id"]
    project(world.client, vision)
    numbers = [ended(world.client, PLACED) for _ in range(3)]
    world.master.garbage_collector.stop()
    assert not world.client.call("DELETE", f"/api/v1/workspaces/{vision}")["completed"]
    shown = world.client.get(f"/api/v1/workspaces/{vision}")["workspace"]
    assert (shown["state"], shown["numExperiments"]) == ("WORKSPACE_STATE_DELETING", 3)
    world.client.post(f"/api/v1/workspaces/{vision}/projects", {"name": "late"}, status=400)
    make_world.stop()
    again = make_world()
    eventually(lambda: workspaces(again.client) == ["Uncategorized"])
    for number in numbers:
        again.client.get(f"/api/v1/experiments/{number}", status=404)
