"""Views of pages that users saved."""

from __future__ import annotations

import pytest

from det_keras.protocol.values import hash_password
from master.test_doors import login


def put(client, name, address="/trials?q=loss<1", **fields):
    return client.call("PUT", "/api/v1/views", {"name": name, "address": address, **fields})["id"]


def names(client):
    return [view["name"] for view in client.get("/api/v1/views")["views"]]


@pytest.fixture
def ada(world):
    """Another user."""
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    user = {"username": "ada", "active": True}
    admin.post("/api/v1/users", {"user": user, "password": hash_password("Lovelace 1815"), "isHashed": True})
    return login(world, "ada", "Lovelace 1815")


def test_view_is_that_of_its_user_unless_it_is_shared(world, ada):
    put(world.client, "mine")
    shared = put(world.client, "Ours", isShared=True)
    put(ada, "hers")
    assert names(world.client) == ["mine", "Ours"]
    assert names(ada) == ["hers", "Ours"]
    (ours,) = [view for view in ada.get("/api/v1/views")["views"] if view["name"] == "Ours"]
    assert (ours["address"], ours["isOwn"], ours["username"]) == ("/trials?q=loss<1", False, "determined")
    # It is not theirs to change.
    ada.call("DELETE", f"/api/v1/views/{shared}", status=404)
    assert names(world.client) == ["mine", "Ours"]
    world.client.call("DELETE", f"/api/v1/views/{shared}")
    assert names(ada) == ["hers"]


def test_same_name_of_the_same_user_is_replaced(world, ada):
    first = put(world.client, "best", "/trials?sort=-val_accuracy", isShared=True)
    assert put(world.client, "best", "/trials?sort=loss") == first
    assert put(ada, "best", "/jobs") != first
    (view,) = world.client.get("/api/v1/views")["views"]
    assert (view["address"], view["isShared"]) == ("/trials?sort=loss", False)


def test_views_survive_a_restart(make_world):
    world = make_world()
    put(world.client, "kept")
    make_world.stop()
    assert names(make_world().client) == ["kept"]


@pytest.mark.parametrize(
    "fields",
    [
        {"address": "https://elsewhere.example/"},
        {"address": "//elsewhere.example/"},
        {"address": "/\\elsewhere.example/"},
        {"address": "javascript:alert(1)"},
        {"address": "/trials\n"},
        {"address": "/" + "x" * 10_000},
        {"name": ""},
        {"name": "x" * 256},
    ],
)
def test_address_of_another_place_and_odd_names_are_refused(world, fields):
    body = {"name": "a view", "address": "/trials", **fields}
    world.client.call("PUT", "/api/v1/views", body, status=400)
    assert names(world.client) == []


def test_number_of_views_has_a_bound(world, monkeypatch):
    monkeypatch.setattr("det_keras.master.accounts.views.MOST_VIEWS", 2)
    put(world.client, "one")
    put(world.client, "two")
    put(world.client, "two")
    body = {"name": "three", "address": "/trials"}
    assert "2 views" in world.client.call("PUT", "/api/v1/views", body, status=400)["error"]["error"]
