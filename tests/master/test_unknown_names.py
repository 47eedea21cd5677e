"""Fields of bodies and parameters of addresses that no call has are refused with the nearest name, never dropped."""

from __future__ import annotations

import pytest

from master.fakes import SINGLE
from master.test_doors import login


def refused(client, method, path, body=None, **options) -> str:
    return client.call(method, path, body, status=400, **options)["error"]["error"]


def test_unknown_fields_of_bodies_are_named_with_the_nearest(client):
    text = refused(
        client, "POST", "/api/v1/experiments", {"config": SINGLE, "templatename": "gpu", "projectID": 1}
    )
    assert "There is no field `templatename`. Did you mean `template`?" in text
    assert "There is no field `projectID`. Did you mean `projectId`?" in text
    assert client.get("/api/v1/experiments")["experiments"] == []
    nested = {"user": {"username": "a", "agentUserGroup": {"agentUid": 1}}, "password": "A long one 4 others"}
    assert "There is no field `agentUserGroup`" in refused(client, "POST", "/api/v1/users", nested)
    # Without a value it says nothing.
    client.create(SINGLE, nonsense=None)


def test_number_of_the_path_may_be_repeated_in_the_body(client):
    number = client.create()
    for body in ({"id": number, "notes": "a"}, {"experimentId": number, "notes": "b"}):
        client.call("PATCH", f"/api/v1/experiments/{number}", body)
    assert "`trialId`" in refused(
        client, "PATCH", f"/api/v1/experiments/{number}", {"trialId": 1, "notes": "c"}
    )
    assert client.experiment(number)["notes"] == "b"


@pytest.mark.parametrize(
    ("path", "name", "near"),
    [
        ("experiments", "projectNumber", "projectId"),
        ("experiments", "sortby", "sortBy"),
        ("users", "nam", "name"),
        ("commands", "userIDs", "userIds"),
        ("tasks", "limit", ""),
        ("experiments/1/trials", "sortsBy", "sortBy"),
    ],
)
def test_unknown_parameters_are_named_with_the_nearest(client, path, name, near):
    client.create()
    text = refused(client, "GET", f"/api/v1/{path}", params={name: "1"})
    assert f"There is no parameter `{name}`." in text
    assert (f"Did you mean `{near}`?" in text) == bool(near)


def test_parameters_that_change_nothing_here_are_taken(client):
    for path, params in (
        ("notebooks", {"users": "a", "sortBy": "SORT_BY_ID"}),
        ("resource-pools", {"unbound": "true"}),
        ("experiments", {"showTrialData": "true"}),
    ):
        client.get(f"/api/v1/{path}", params=params)


def test_users_are_listed_by_name(world, client):
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    user = {"username": "grace", "displayName": "Hopper", "active": True}
    admin.post("/api/v1/users", {"user": user, "password": "A long one 4 others"})

    def names(**params):
        return [one["username"] for one in client.get("/api/v1/users", params=params)["users"]]

    assert names(name="GRA") == names(name="hopp") == ["grace"]
    assert names(admin="true") == ["admin"]
    assert "grace" in names(admin="false", active="true")
