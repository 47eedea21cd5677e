"""The model registry: models, versions that are checkpoints, aliases, and what is kept because of them."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.protocol.registry import ModelReference, name_problem
from master.fakes import Client, eventually, store_checkpoint
from master.test_doors import login


@pytest.fixture
def stranger(world) -> Client:
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    admin.post(
        "/api/v1/users", {"user": {"username": "other", "active": True}, "password": "A long one 4 others"}
    )
    return login(world, "other", "A long one 4 others")


@pytest.fixture
def client(world) -> Client:
    return world.client


@pytest.fixture
def trained(world):
    """A running trial, its launch, and a function that writes a checkpoint of it after some batches."""
    number, trial, launch = world.launch()
    return number, trial["id"], launch, partial(store_checkpoint, world.home, world.client, trial)


def state_of(client, uuid):
    return client.get(f"/api/v1/checkpoints/{uuid}")["checkpoint"]["state"]


def make(client, name="digits", **fields):
    return client.post("/api/v1/models", {"name": name, **fields})["model"]


def register(client, uuid, name="digits", **fields):
    body = {"checkpointUuid": uuid, "modelName": name, **fields}
    return client.post(f"/api/v1/models/{name}/versions", body)["modelVersion"]


def versions(client, name="digits"):
    listed = client.get(f"/api/v1/models/{name}/versions")["modelVersions"]
    return {one["version"]: one for one in listed}


def test_version_is_a_checkpoint_with_all_that_is_known_of_it(client, trained):
    number, trial, _, report = trained
    client.report(trial, "validation", 20, {"loss": 0.25})
    uuid = report(20)
    make(client, description="Handwriting", labels=["vision"], metadata={"team": "a"})
    made = register(client, uuid, comment="the first", labels=["new"], aliases=["champion"])
    assert (made["version"], made["aliases"], made["labels"], made["comment"]) == (
        1,
        ["champion"],
        ["new"],
        "the first",
    )
    training = made["checkpoint"]["training"]
    assert (training["experimentId"], training["searcherMetric"]) == (number, 0.25)
    model = client.get("/api/v1/models/Digits")["model"]
    assert (model["numVersions"], model["aliases"], model["metadata"]) == (1, {"champion": 1}, {"team": "a"})
    assert client.get(f"/api/v1/models/{model['id']}")["model"] == model
    assert client.get(f"/api/v1/checkpoints/{uuid}")["checkpoint"]["modelVersions"] == [
        {"modelName": "digits", "version": 1}
    ]


def test_registering_again_doubles_nothing_and_moves_no_alias_back(client, trained):
    *_, report = trained
    make(client)
    first, second = report(10), report(20)
    register(client, first, aliases=["champion"])
    register(client, second, aliases=["champion"])
    again = register(client, first, aliases=["champion"], comment="again")
    assert (again["version"], again["aliases"], again["comment"]) == (1, [], "")
    assert {number: one["aliases"] for number, one in versions(client).items()} == {1: [], 2: ["champion"]}


def test_number_of_a_deleted_version_is_not_used_again(client, trained):
    *_, report = trained
    make(client)
    uuid = report(10)
    register(client, uuid)
    client.call("DELETE", "/api/v1/models/digits/versions/1")
    assert versions(client) == {}
    assert register(client, uuid)["version"] == 2


def test_alias_moves_and_goes(client, trained):
    *_, report = trained
    make(client)
    for steps in (10, 20, 30):
        register(client, report(steps))
    for version in (1, 3):
        client.call("PUT", "/api/v1/models/digits/aliases/champion", {"version": version})
    assert client.get("/api/v1/models/digits")["model"]["aliases"] == {"champion": 3}
    found = client.get("/api/v1/models/digits/aliases/champion")["modelVersion"]
    newest = client.get("/api/v1/models/digits/aliases/latest")["modelVersion"]
    assert (found["version"], newest["version"]) == (3, 3)
    client.call("DELETE", "/api/v1/models/digits/aliases/champion")
    client.get("/api/v1/models/digits/aliases/champion", status=404)
    client.call("DELETE", "/api/v1/models/digits/aliases/latest", status=400)
    for bad in ("latest", "v3", "3", "a b", "ä"):
        client.call("PUT", f"/api/v1/models/digits/aliases/{bad}", {"version": 1}, status=400)


@pytest.mark.parametrize(
    "name", ["", "  ", "7", "a/b", "a\\b", "a@b", "a:1", "two  spaces", "\0", "x" * 256, " edge"]
)
def test_name_that_could_not_be_addressed_is_refused(client, name):
    client.post("/api/v1/models", {"name": name}, status=400)


def test_names_differ_by_more_than_case(client):
    make(client, "Digits")
    client.post("/api/v1/models", {"name": "dIGITS"}, status=409)
    make(client, "ac - Dc")
    client.call("PATCH", "/api/v1/models/ac - Dc", {"name": "digits"}, status=409)
    client.call("PATCH", "/api/v1/models/digits", {"name": "digits"})
    assert client.get("/api/v1/models", params={"name": "DIG"})["models"][0]["name"] == "digits"


@given(st.text(max_size=12))
@settings(max_examples=300, deadline=None)
def test_every_valid_name_can_be_referred_to(name):
    if name_problem(name):
        return
    assert ModelReference.parse(name) == ModelReference(name)
    assert ModelReference.parse(f"{name}:12") == ModelReference(name, version=12)
    assert ModelReference.parse(f"{name}@champion") == ModelReference(name, alias="champion")


@pytest.mark.parametrize(
    "text", ["", "digits:", "digits@", "digits:x", "digits@1", "a:1@b", "@champion", "7", "a/b"]
)
def test_malformed_reference_is_refused(text):
    with pytest.raises(ValueError, match="'digits:3'"):
        ModelReference.parse(text)


def test_archived_model_takes_no_changes(client, trained):
    *_, report = trained
    make(client)
    uuid = report(10)
    register(client, uuid)
    client.post("/api/v1/models/digits/archive", {})
    calls = (
        ("PATCH", "", {"description": "x"}),
        ("POST", "/versions", {"checkpointUuid": report(20)}),
        ("PATCH", "/versions/1", {"notes": "x"}),
        ("PUT", "/aliases/champion", {"version": 1}),
        ("DELETE", "/versions/1", None),
    )
    for method, path, body in calls:
        answer = client.call(method, f"/api/v1/models/digits{path}", body, status=400)
        assert "archived" in answer["error"]["error"]
    client.post("/api/v1/models/digits/unarchive", {})
    client.call("PATCH", "/api/v1/models/digits/versions/1", {"notes": "# Read me", "name": "first"})
    assert versions(client)[1]["notes"] == "# Read me"


def test_only_the_owner_deletes_and_moves_and_any_user_registers(client, stranger, trained):
    *_, report = trained
    make(client)
    client.post("/api/v1/workspaces", {"name": "vision"})
    register(stranger, report(10), aliases=["candidate"])
    register(client, report(20))
    refused = (
        ("DELETE", "", None),
        ("POST", "/archive", {}),
        ("POST", "/move", {"destinationWorkspaceId": 2}),
        ("PATCH", "", {"workspaceName": "vision"}),
        ("DELETE", "/versions/2", None),
    )
    for method, path, body in refused:
        stranger.call(method, f"/api/v1/models/digits{path}", body, status=403)
    stranger.call("DELETE", "/api/v1/models/digits/versions/1")
    client.call("PATCH", "/api/v1/models/digits", {"workspaceName": "vision"})
    assert client.get("/api/v1/models", params={"workspaceNames": "vision"})["models"][0]["workspaceId"] == 2
    client.get("/api/v1/models", params={"workspaceNames": "nope"}, status=404)
    client.call("DELETE", "/api/v1/workspaces/2", status=400)
    client.call("DELETE", "/api/v1/models/digits")
    client.get("/api/v1/models/digits", status=404)
    client.call("DELETE", "/api/v1/workspaces/2")


def test_garbage_collection_keeps_what_is_registered(world, client, trained):
    number, _, launch, report = trained
    client.call("PATCH", f"/api/v1/experiments/{number}", {"checkpointStorage": {
        "saveExperimentBest": 0, "saveTrialBest": 0, "saveTrialLatest": 1}})  # fmt: skip
    first, second, third = report(10), report(20), report(30)
    make(client)
    register(client, first)
    world.pool.finish(launch)
    eventually(lambda: state_of(client, second) == "STATE_DELETED")
    states = [state_of(client, uuid) for uuid in (first, third)]
    assert states == ["STATE_COMPLETED"] * 2


def test_what_is_registered_is_not_deleted(world, client, trained):
    number, _, launch, report = trained
    uuid = report(10)
    make(client)
    register(client, uuid)
    world.pool.finish(launch)
    client.wait_for_state(number, "COMPLETED")
    for method, path, body in (
        ("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]}),
        ("POST", "/api/v1/checkpoints/rm", {"checkpointUuids": [uuid], "checkpointGlobs": ["code/**"]}),
        ("DELETE", f"/api/v1/experiments/{number}", None),
    ):
        answer = client.call(method, path, body, status=400)
        assert "version 1 of the model 'digits'" in answer["error"]["error"]
    bulk = client.post("/api/v1/projects/1/experiments/delete", {"experimentIds": [number]})
    assert "digits" in bulk["results"][0]["error"]
    client.call("DELETE", "/api/v1/models/digits")
    client.call("DELETE", f"/api/v1/experiments/{number}")
    eventually(lambda: not client.get("/api/v1/experiments")["experiments"])


def test_deleted_checkpoint_is_no_version(world, client, trained):
    *_, report = trained
    make(client)
    uuid = report(10)
    client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
    body = {"checkpointUuid": uuid}
    assert "COMPLETED" in client.post("/api/v1/models/digits/versions", body, status=400)["error"]["error"]
    client.post("/api/v1/models/digits/versions", {"checkpointUuid": str(uuid4())}, status=404)


def test_lists_are_filtered_sorted_and_paged(client, stranger):
    for name, labels in (("b", ["x", "y"]), ("a", ["x"]), ("C", [])):
        make(client, name, labels=labels, description=f"the {name}")
    make(stranger, "d")

    def names(**params):
        return [one["name"] for one in client.get("/api/v1/models", params=params)["models"]]

    assert names() == ["b", "a", "C", "d"]
    assert names(sortBy="SORT_BY_NAME") == ["a", "b", "C", "d"]
    assert names(sortBy="SORT_BY_NAME", orderBy="ORDER_BY_DESC", limit=2, offset=1) == ["C", "b"]
    assert names(labels=["x", "y"]) == ["b"]
    assert names(users=["other"]) == ["d"]
    assert names(description="THE C") == ["C"]
    client.post("/api/v1/models/b/archive", {})
    assert names(archived="true") == ["b"]
    assert client.get("/api/v1/model/labels")["labels"] == ["x", "y"]
    client.get("/api/v1/models", params={"sortBy": "SORT_BY_NOPE"}, status=400)


def test_trial_says_what_it_uses(client, trained, world):
    _, trial, _, report = trained
    uuid = report(10)
    model = make(client)
    register(client, uuid)
    user = world.launch()[1]["id"]
    info = {
        "trialId": user,
        "checkpointUuid": uuid,
        "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
    }
    for _ in range(2):
        client.post(
            "/api/v1/trial-source-info",
            {"trialSourceInfo": {**info, "modelId": model["id"], "modelVersion": 1}},
        )
    client.report(user, "test", 5, {"accuracy": 0.5})
    for path in (f"/api/v1/checkpoints/{uuid}/metrics", "/api/v1/models/digits/versions/1/metrics"):
        (found,) = client.get(path)["metrics"]
        assert (found["trialId"], found["group"], found["metrics"]["avg_metrics"]) == (
            user,
            "test",
            {"accuracy": 0.5},
        )
        assert client.get(path, params={"metricGroup": "training"})["metrics"] == []
    client.post("/api/v1/trial-source-info", {"trialSourceInfo": {**info, "trialId": 99}}, status=404)
    assert trial != user


def test_record_says_who_changed_a_model(client, stranger, trained):
    *_, report = trained
    first, second = report(10), report(20)
    body = {"checkpointUuid": first, "createModel": True, "aliases": ["champion"]}
    client.post("/api/v1/models/Digits/versions", body)
    register(stranger, second)
    stranger.call("PUT", "/api/v1/models/digits/aliases/champion", {"version": 2})
    number = client.get("/api/v1/models/digits")["model"]["id"]
    client.call("PATCH", f"/api/v1/models/{number}", {"description": "Handwriting"})
    client.call("DELETE", "/api/v1/models/digits/versions/1")
    client.call("DELETE", "/api/v1/models/digits")
    entries = client.get("/api/v1/audit", params={"kind": "model", "id": number})["entries"]
    assert [(one["username"], one["verb"], one["detail"]) for one in reversed(entries)] == [
        ("determined", "create version", ""),
        ("other", "create version", "newest version 1 → 2"),
        ("other", "set alias", "champion, aliases {'champion': 1} → {'champion': 2}"),
        ("determined", "change", "description"),
        ("determined", "delete version", "1"),
        ("determined", "delete", ""),
    ]
