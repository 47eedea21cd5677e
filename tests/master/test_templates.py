"""Templates: parts of configs under names, below what users write."""

from __future__ import annotations

import pytest

from master.fakes import SINGLE, Client
from master.test_doors import login

BASE = {"resources": {"slots_per_trial": 2}, "labels": ["team"], "max_restarts": 1}


@pytest.fixture
def stranger(world) -> Client:
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    admin.post(
        "/api/v1/users", {"user": {"username": "other", "active": True}, "password": "A long one 4 others"}
    )
    return login(world, "other", "A long one 4 others")


def make(client, name="base", config=BASE, **fields):
    return client.post(f"/api/v1/templates/{name}", {"name": name, "config": config, **fields})["template"]


def names(client, **params):
    return [one["name"] for one in client.get("/api/v1/templates", params=params)["templates"]]


@pytest.mark.parametrize("way", ["request", "config"])
def test_config_wins_over_its_template_and_that_over_the_defaults(client, way):
    make(client)
    own = SINGLE + "max_restarts: 3\nlabels: [mine]\n"
    named = {"template": "base"} if way == "request" else {}
    number = client.create(own if named else own + "template: base\n", **named)
    config = client.experiment(number)["config"]
    assert (config["resources"]["slots_per_trial"], config["max_restarts"]) == (2, 3)
    assert config["labels"] == ["mine", "team"]
    assert "template" not in config
    # It stays as it is, whatever becomes of the template.
    client.call("DELETE", "/api/v1/templates/base")
    assert client.experiment(number)["config"] == config


def test_template_may_complete_a_config(client):
    make(client, config={"entrypoint": "python3 train.py", "searcher": {"name": "single", "metric": "loss"}})
    assert client.experiment(client.create("template: base\n"))["config"]["entrypoint"] == "python3 train.py"
    client.post("/api/v1/experiments", {"config": "name: no entrypoint\n"}, status=400)


def test_unknown_template_is_told(client):
    for body in ({"config": SINGLE, "template": "nope"}, {"config": SINGLE + "template: nope\n"}):
        for is_only_validated in (True, False):
            answer = client.post(
                "/api/v1/experiments", {**body, "validateOnly": is_only_validated}, status=404
            )
            assert "template 'nope' not found" in answer["error"]["error"]
    client.post("/api/v1/commands", {"config": {"entrypoint": ["true"]}, "templateName": "nope"}, status=404)
    client.post("/api/v1/experiments", {"config": SINGLE + "template: 7\n"}, status=400)
    assert client.get("/api/v1/experiments")["experiments"] == []


def test_jobs_have_templates(client):
    make(
        client,
        config={"resources": {"slots": 2}, "entrypoint": ["sleep", "9"], "description": "of a template"},
    )
    for body in ({"config": {}, "templateName": "base"}, {"config": {"template": "base"}}):
        answer = client.post("/api/v1/commands", body)
        assert (answer["command"]["description"], answer["config"]["resources"]["slots"]) == (
            "of a template",
            2,
        )


def test_templates_are_listed_replaced_and_renamed(client):
    make(client, "b")
    make(client, "a")
    assert names(client) == ["a", "b"]
    assert names(client, orderBy="ORDER_BY_DESC", name="B") == ["b"]
    client.post("/api/v1/templates/a", {"config": {}}, status=409)
    changed = client.call("PATCH", "/api/v1/templates/a", {"max_restarts": 2, "labels": ["x"]})["template"]
    assert changed["config"] == {"max_restarts": 2, "labels": ["x"]}
    client.call("PUT", "/api/v1/templates/c", {"name": "c", "config": {"max_restarts": 4}})
    client.call("PUT", "/api/v1/templates/c", {"name": "c", "config": {"max_restarts": 5}})
    assert client.get("/api/v1/templates/c")["template"]["config"] == {"max_restarts": 5}
    client.call("PATCH", "/api/v1/template/rename", {"oldName": "c", "newName": "a"}, status=409)
    client.call("PATCH", "/api/v1/template/rename", {"oldName": "c", "newName": "d"})
    assert names(client) == ["a", "b", "d"]
    client.get("/api/v1/templates/c", status=404)


@pytest.mark.parametrize(
    "config",
    [{"max_restart": 1}, {"max_restarts": "many"}, {"template": "other"}, {"searcher": {"name": "dice"}}],
)
def test_part_of_no_config_is_refused(client, config):
    client.post("/api/v1/templates/base", {"config": config}, status=400)
    assert names(client) == []


@pytest.mark.parametrize("name", ["%20", "x" * 256, "%00", "a%0Ab"])
def test_odd_names_are_refused(client, name):
    client.post(f"/api/v1/templates/{name}", {"config": {}}, status=400)


def test_only_owners_and_administrators_change_templates(client, stranger):
    make(client)
    assert names(stranger) == ["base"]
    for method, path, body in (
        ("PATCH", "/api/v1/templates/base", {"max_restarts": 2}),
        ("PUT", "/api/v1/templates/base", {"config": {}}),
        ("PATCH", "/api/v1/template/rename", {"oldName": "base", "newName": "mine"}),
        ("DELETE", "/api/v1/templates/base", None),
    ):
        stranger.call(method, path, body, status=403)
    assert stranger.create(SINGLE + "template: base\n")


def test_secrets_of_templates_are_hidden_and_used(world, client):
    section = {"type": "s3", "bucket": "b", "access_key": "marker-1", "secret_key": "marker-2"}
    assert "marker" not in str(make(client, config={"checkpoint_storage": section}))
    assert "marker" not in str(client.get("/api/v1/templates"))
    shown = client.experiment(client.create(SINGLE + "template: base\n", activate=False))
    assert shown["config"]["checkpoint_storage"]["bucket"] == "b"
    assert "marker" not in str(shown)


def test_templates_are_in_workspaces_and_go_with_them(client):
    vision = client.post("/api/v1/workspaces", {"name": "vision"})["workspace"]["id"]
    make(client, workspaceId=vision)
    make(client, "first")
    assert names(client, workspaceIds=vision) == ["base"]
    client.post("/api/v1/templates/other", {"config": {}, "workspaceId": 99}, status=404)
    client.call("DELETE", f"/api/v1/workspaces/{vision}")
    assert names(client) == ["first"]
