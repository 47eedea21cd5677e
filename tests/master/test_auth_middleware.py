"""Who gets in, and how refusals look."""

from __future__ import annotations

import hashlib
import stat

import pytest
from sqlalchemy import select, text
from starlette.routing import Route

from det_keras.master.database.models import TokenRow
from det_keras.protocol.values import hash_password
from master.fakes import Client, eventually

OPEN = {
    ("GET", "/info"),
    ("POST", "/api/v1/auth/login"),
    ("GET", "/api/v1/master"),
    ("GET", "/login"),
    ("GET", "/signin"),
    ("GET", "/static/{name}"),
    ("GET", "/shared/{token}"),
}


def every_route(app) -> list[tuple[str, str]]:
    found = [
        (method, route.path)
        for route in _flat(app.routes)
        if isinstance(route, Route) or hasattr(route, "methods")
        for method in route.methods
    ]
    return [(method, path) for method, path in found if (method, path) not in OPEN and method != "HEAD"]


def _flat(routes) -> list:
    """Return routes with those of included routers, which may include others."""
    found = []
    for route in routes:
        router = getattr(route, "original_router", None)
        found += [route] if router is None else _flat(router.routes)
    return found


def test_every_call_needs_a_token(world):
    routes = every_route(world.http.app)
    assert len(routes) > 150
    # A page, too.
    assert ("GET", "/experiments/{experiment_id}/report") in routes
    for method, path in routes:
        response = world.http.request(method, path.replace("{", "").replace("}", ""))
        assert response.status_code == 401, (method, path, response.text)


def test_open_calls_need_none(world):
    info = world.http.get("/info").json()
    assert (info["version"], info["telemetry"]) == ("0.38.1", {"enabled": False})
    assert world.http.get("/api/v1/master").json()["clusterId"] == world.master.identity.cluster_id


def test_refusal_without_a_token_is_in_the_nested_form(world):
    response = world.http.get("/api/v1/me")
    assert response.json() == {"error": {"code": 16, "reason": "Unauthenticated", "error": "token missing"}}


@pytest.mark.parametrize("header", ["Bearer nonsense", "nonsense", "Bearer ", "Basic abc"])
def test_wrong_token_is_refused(world, header):
    response = world.http.get("/api/v1/me", headers={"Authorization": header})
    assert (response.status_code, response.json()["error"]["error"]) == (401, "invalid credentials")


def test_user_token_wins_over_a_task_token_and_a_cookie(world):
    good = {"Authorization": f"Bearer {world.client.token}"}
    bad = {"Grpc-Metadata-x-allocation-token": "Bearer bad", "Cookie": "auth=bad"}
    assert world.http.get("/api/v1/me", headers={**good, **bad}).status_code == 200
    swapped = {"Authorization": "Bearer bad", "Cookie": f"auth={world.client.token}"}
    assert world.http.get("/api/v1/me", headers=swapped).status_code == 401


def test_cookie_alone_is_enough(world):
    response = world.http.get("/api/v1/me", headers={"Cookie": f"auth={world.client.token}"})
    assert response.json()["user"]["username"] == "determined"


@pytest.mark.parametrize("is_hashed", [True, False])
def test_password_of_the_first_start_logs_in(world, is_hashed):
    password = world.home.password_file.read_text()
    sent = hash_password(password) if is_hashed else password
    body = {"username": "determined", "password": sent, "isHashed": is_hashed}
    answer = Client(world.http, "").post("/api/v1/auth/login", body)
    assert answer["user"]["admin"] is False
    fresh = Client(world.http, answer["token"])
    assert fresh.get("/api/v1/me")["user"]["username"] == "determined"
    fresh.post("/api/v1/auth/logout")
    fresh.get("/api/v1/me", status=401)
    world.client.get("/api/v1/me")


@pytest.mark.parametrize(
    ("username", "password", "status"),
    [
        ("determined", "", 401),
        ("determined", "wrong", 401),
        ("admin", "", 401),
        ("admin", "anything", 401),
        ("nobody", "", 401),
        ("", "", 400),
    ],
)
def test_login_without_the_password_is_refused(world, username, password, status):
    body = {"username": username, "password": hash_password(password), "isHashed": True}
    Client(world.http, "").post("/api/v1/auth/login", body, status=status)


def test_token_and_password_are_for_the_owner_alone(world):
    for path in (world.home.token_file, world.home.password_file):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_database_holds_hashes_of_tokens_only(world):
    with world.master.store.engine.connect() as connection:
        stored = {row[0] for row in connection.execute(text("SELECT hash FROM tokens"))}
    assert stored == {hashlib.sha256(world.client.token.encode()).hexdigest()}


def test_token_file_outlives_a_restart_and_is_made_again_when_lost(make_world):
    first = make_world().client.token
    make_world.stop()
    assert make_world().client.token == first
    make_world.stop()
    world = make_world()
    world.home.token_file.unlink()
    make_world.stop()
    again = make_world()
    assert again.client.token != first
    again.client.get("/api/v1/me")


def test_token_file_with_other_content_is_made_again(make_world):
    world = make_world()
    world.home.token_file.write_bytes("ü".encode() + b"\xff")
    make_world.stop()
    make_world().client.get("/api/v1/me")


def test_task_token_acts_as_the_owner_and_dies_with_the_allocation(world, monkeypatch):
    from datetime import timedelta

    from det_keras.master.accounts import auth

    monkeypatch.setattr(auth, "_GRACE", timedelta(seconds=0))
    experiment_id, _, allocation_id = world.launch()
    token = world.pool.launched[allocation_id].variables["DET_SESSION_TOKEN"]
    header = {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"}
    assert world.http.get("/api/v1/me", headers=header).json()["user"]["username"] == "determined"
    assert world.http.post("/api/v1/auth/logout", headers=header).status_code == 400
    world.pool.finish(allocation_id)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    eventually(lambda: world.http.get("/api/v1/me", headers=header).status_code == 401)
    with world.master.store.reading() as session:
        own = session.scalars(select(TokenRow).where(TokenRow.allocation_id == allocation_id)).all()
    assert own
    assert all(token.expires_at is not None for token in own)


def test_call_that_is_not_served_is_named(client):
    error = client.post("/api/v1/notebooks", {}, status=501)["error"]
    assert error["code"] == 12
    assert "POST /api/v1/notebooks" in error["error"]


def test_wrong_verb_of_a_known_path_is_not_served_either(client):
    assert client.call("PUT", "/api/v1/me", status=501)["error"]["reason"] == "Unimplemented"


def test_plain_routes_answer_plain_messages(client):
    assert client.get("/nowhere", status=404) == {"message": "Not Found"}
    uuid = "11111111-2222-3333-4444-555555555555"
    assert "message" in client.get(f"/checkpoints/{uuid}", status=415)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/v1/experiments", "{"),
        ("/api/v1/experiments", "[]"),
        ("/api/v1/experiments", "{}"),
        ("/api/v1/experiments", '{"config": 3}'),
        ("/api/v1/trials/x/metrics", "{}"),
        ("/api/v1/trials/1/metrics", '{"group": "training", "metrics": {"trialRunId": "x"}}'),
    ],
)
def test_malformed_request_is_a_400_in_the_nested_form(world, path, body):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    response = world.http.post(path, headers=headers, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == 3


def test_fault_of_the_master_is_a_500_in_the_nested_form(world, monkeypatch):
    monkeypatch.setattr(world.master.experiments, "delete", lambda _: 1 / 0)
    error = world.client.call("DELETE", "/api/v1/experiments/1", status=500)["error"]
    assert (error["code"], error["reason"]) == (13, "Internal")


def test_trailing_slash_and_snake_case_are_taken(world):
    experiment_id = world.client.create(activate=False)
    body = {
        "config": "entrypoint: a\nsearcher: {name: single, metric: m}\n",
        "validate_only": True,
        "parent_id": None,
    }
    assert world.client.post("/api/v1/experiments/", body)["experiment"]["id"] == 0
    page = world.client.get(
        "/api/v1/experiments/", params={"order_by": "ORDER_BY_DESC", "sort_by": "SORT_BY_NAME"}
    )
    assert [one["id"] for one in page["experiments"]] == [experiment_id]


def test_unknown_enum_is_a_400_that_names_the_known(client):
    message = client.get("/api/v1/experiments", params={"sortBy": "SORT_BY_LUCK"}, status=400)["error"][
        "error"
    ]
    assert "SORT_BY_ID" in message


def test_stopping_master_asks_to_come_again(world):
    world.master.notifier.close()
    response = world.http.get("/api/v1/me", headers={"Authorization": f"Bearer {world.client.token}"})
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert response.json()["error"]["code"] == 14


def test_body_that_is_too_large_is_refused_before_it_is_read(world):
    headers = {"Authorization": f"Bearer {world.client.token}", "Content-Length": str(200 * 1024 * 1024)}
    response = world.http.post("/api/v1/experiments", headers=headers, content=b"{}")
    assert response.status_code == 413
