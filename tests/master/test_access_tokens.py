"""Access tokens: logins for programs, by the rules of Determined 0.38.1."""

from __future__ import annotations

from datetime import timedelta

import pytest

from det_keras.protocol.values import now, parse_timestamp
from master.fakes import Client
from master.test_doors import login

PASSWORD = "A long one 4 others"


@pytest.fixture
def admin(world) -> Client:
    return login(world, "admin", world.home.admin_password_file.read_text())


@pytest.fixture
def other(world, admin) -> Client:
    admin.post("/api/v1/users", {"user": {"username": "other", "active": True}, "password": PASSWORD})
    return login(world, "other", PASSWORD)


def token(client, **fields):
    """A new token, and its number."""
    answer = client.post("/api/v1/tokens", fields)
    return Client(client.http, answer["token"]), answer["tokenId"]


def listed(client, **params):
    return client.get("/api/v1/tokens", params=params)["tokenInfo"]


def test_token_acts_as_its_user_until_it_is_revoked(client, other):
    program, number = token(other, description="nightly")
    assert program.get("/api/v1/me")["user"]["username"] == "other"
    assert program.experiment(program.create())["username"] == "other"
    (known,) = listed(other)
    assert (known["id"], known["description"], known["revoked"]) == (number, "nightly", False)
    assert "token" not in known
    revoked = other.call("PATCH", f"/api/v1/tokens/{number}", {"setRevoked": True})["tokenInfo"]
    assert revoked["revoked"]
    program.get("/api/v1/me", status=401)
    assert listed(other) == []
    assert [one["id"] for one in listed(other, showInactive=True)] == [number]
    # For good.
    other.call("PATCH", f"/api/v1/tokens/{number}", {"setRevoked": False, "description": "again"})
    program.get("/api/v1/me", status=401)


def test_token_outlasts_a_restart_and_its_end_does_too(make_world):
    world = make_world()
    kept, _ = token(world.client)
    revoked, number = token(world.client)
    world.client.call("PATCH", f"/api/v1/tokens/{number}", {"setRevoked": True})
    make_world.stop()
    again = make_world()
    assert Client(again.http, kept.token).get("/api/v1/me")["user"]["username"] == "determined"
    Client(again.http, revoked.token).get("/api/v1/me", status=401)


@pytest.mark.parametrize(
    ("lifespan", "length"),
    [("", timedelta(days=30)), ("48h", timedelta(hours=48)), ("1h30m", timedelta(hours=1.5))],
)
def test_token_ends_when_it_says(client, monkeypatch, lifespan, length):
    program, _ = token(client, lifespan=lifespan)
    end = parse_timestamp(listed(client)[0]["expiry"])
    assert abs(end - now() - length) < timedelta(minutes=1)
    late = end + timedelta(seconds=1)
    monkeypatch.setattr("det_keras.master.accounts.auth.now", lambda: late)
    program.get("/api/v1/me", status=401)


def test_token_without_an_end_is_last_in_the_order_of_ends(client):
    (_, forever), (_, short) = token(client, lifespan="-1"), token(client, lifespan="1h")
    assert [one["id"] for one in listed(client, sortBy="SORT_BY_EXPIRY")] == [short, forever]
    assert listed(client, tokenIds=forever)[0]["expiry"] is None


@pytest.mark.parametrize("lifespan", ["0h", "soon", "-2", "1d", "h", "9999999999h", "99999999h"])
def test_odd_lifespans_are_refused(client, lifespan):
    client.post("/api/v1/tokens", {"lifespan": lifespan}, status=400)
    assert listed(client) == []


def test_users_manage_their_own_tokens_and_administrators_all(client, other, admin):
    _, number = token(other)
    mine = other.get("/api/v1/me")["user"]["id"]
    client.post("/api/v1/tokens", {"userId": mine}, status=403)
    client.get("/api/v1/tokens", params={"username": "other"}, status=403)
    client.call("PATCH", f"/api/v1/tokens/{number}", {"setRevoked": True}, status=403)
    assert listed(client) == []
    client.get("/api/v1/tokens", params={"tokenIds": number}, status=404)
    assert [one["id"] for one in listed(admin)] == [number]
    program, _ = token(admin, userId=mine)
    assert program.get("/api/v1/me")["user"]["username"] == "other"
    admin.post("/api/v1/tokens", {"userId": 99}, status=404)
    admin.get("/api/v1/tokens", params={"username": "nobody"}, status=404)
    client.call("PATCH", "/api/v1/tokens/99", {}, status=404)


def test_token_is_no_login(client):
    """What it leaves must not outlive it."""
    program, number = token(client)
    program.post("/api/v1/auth/web-code", status=403)
    program.post("/api/v1/auth/logout", status=400)
    me = program.get("/api/v1/me")["user"]["id"]
    program.call(
        "PATCH", f"/api/v1/users/{me}", {"password": "A new one 4 me", "isHashed": False}, status=403
    )
    assert program.get("/api/v1/me")
    client.call("PATCH", f"/api/v1/tokens/{number}", {"setRevoked": True})
    program.get("/api/v1/me", status=401)


def test_token_survives_logouts_and_passwords_but_not_a_deactivation(world, other, admin):
    program, _ = token(other)
    me = other.get("/api/v1/me")["user"]["id"]
    other.call("PATCH", f"/api/v1/users/{me}", {"password": "Another one 4 me", "isHashed": False})
    other.post("/api/v1/auth/logout")
    assert program.get("/api/v1/me")
    admin.call("PATCH", f"/api/v1/users/{me}", {"active": False})
    program.get("/api/v1/me", status=403)
    admin.post("/api/v1/tokens", {"userId": me}, status=400)
    admin.call("PATCH", f"/api/v1/users/{me}", {"active": True})
    program.get("/api/v1/me", status=401)


def test_task_may_not_make_tokens(world):
    _, _, allocation = world.launch()
    task = Client(world.http, world.pool.launched[allocation].variables["DET_SESSION_TOKEN"])
    assert task.get("/api/v1/me")
    task.post("/api/v1/tokens", {}, status=403)
    task.get("/api/v1/tokens", status=403)


def test_number_of_tokens_has_a_bound(client, monkeypatch):
    monkeypatch.setattr("det_keras.master.accounts.access_tokens.MOST_TOKENS", 2)
    _, first = token(client)
    token(client)
    client.post("/api/v1/tokens", {}, status=400)
    client.call("PATCH", f"/api/v1/tokens/{first}", {"setRevoked": True})
    token(client)


def test_only_hashes_are_stored(world):
    program, _ = token(world.client)
    for path in world.home.root.rglob("*"):
        if path.is_file():
            assert program.token.encode() not in path.read_bytes(), path
