"""Settings that clients keep for users, users that are changed together, and how many tasks run."""

from __future__ import annotations

import pytest

from master.fakes import eventually
from master.test_doors import NEW, login, me

PATH = "/api/v1/users/setting"


@pytest.fixture
def admin(world):
    return login(world, "admin", world.home.admin_password_file.read_text())


def values(client):
    return {(one["storagePath"], one["key"]): one["value"] for one in client.get(PATH)["settings"]}


def keep(client, *settings, **options):
    fields = ("storagePath", "key", "value")
    return client.post(
        PATH, {"settings": [dict(zip(fields, one, strict=False)) for one in settings]}, **options
    )


def test_settings_are_kept_for_their_user_alone(world, admin):
    keep(world.client, ("pages", "width", "7"), ("", "theme", "dark"))
    keep(world.client, ("pages", "width", "8"))
    keep(admin, ("pages", "width", "1"))
    assert values(world.client) == {("pages", "width"): "8", ("", "theme"): "dark"}
    keep(world.client, ("", "theme"))
    assert values(world.client) == {("pages", "width"): "8"}
    world.client.post(f"{PATH}/reset")
    assert (values(world.client), values(admin)) == ({}, {("pages", "width"): "1"})


def test_settings_have_bounds(world):
    many = [("", f"key-{number}", "x") for number in range(1000)]
    keep(world.client, *many)
    assert "1,000 settings" in keep(world.client, ("", "one more", "x"), status=400)["error"]["error"]
    assert len(values(world.client)) == 1000
    for wrong in (("", "", "x"), ("", "key", "x" * 100_001), ("p" * 1001, "key", "x")):
        keep(world.client, wrong, status=400)


def test_users_are_deactivated_together(world, admin):
    user = {"username": "other", "active": True}
    number = admin.post("/api/v1/users", {"user": user, "password": NEW})["user"]["id"]
    answer = admin.call("PATCH", "/api/v1/users", {"userIds": [number, me(admin), 99], "activate": False})
    errors = {one["id"]: one["error"] for one in answer["results"]}
    assert errors[number] == ""
    assert "built in" in errors[me(admin)]
    assert "not found" in errors[99]
    assert not admin.get(f"/api/v1/users/{number}")["user"]["active"]
    (refused,) = world.client.call("PATCH", "/api/v1/users", {"userIds": [number], "activate": True})[
        "results"
    ]
    assert "Only administrators" in refused["error"]


def test_running_tasks_are_counted(world):
    assert world.client.get("/api/v1/tasks/count") == {
        "commands": 0,
        "notebooks": 0,
        "shells": 0,
        "tensorboards": 0,
    }
    job = world.client.post("/api/v1/commands", {"config": {"entrypoint": ["a"]}})["command"]["id"]
    eventually(lambda: f"{job}.1" in world.pool.launched)
    assert world.client.get("/api/v1/tasks/count")["commands"] == 1
