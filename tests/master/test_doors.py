"""Who may not, may not: expired sessions, other people's accounts, pages of other sites, paths that lead out."""

from __future__ import annotations

import http.client
import posixpath
from datetime import timedelta
from urllib.parse import urlsplit

import psutil
import pytest

from det_keras.master.accounts import auth
from det_keras.protocol.values import hash_password, now
from master.fakes import Client
from master.test_auth_middleware import every_route

NEW = "correct horse battery"


def login(world, username: str, password: str, status: int = 200) -> Client:
    body = {"username": username, "password": hash_password(password), "isHashed": True}
    answer = Client(world.http, "").post("/api/v1/auth/login", body, status=status)
    return Client(world.http, answer.get("token", ""))


@pytest.fixture
def admin(world) -> Client:
    return login(world, "admin", world.home.admin_password_file.read_text())


@pytest.fixture
def other(world, admin) -> Client:
    """Another ordinary user."""
    user = {"username": "Other", "active": True}
    admin.post("/api/v1/users", {"user": user, "password": hash_password(NEW), "isHashed": True})
    return login(world, "other", NEW)


def me(client: Client) -> int:
    return client.get("/api/v1/me")["user"]["id"]


def set_password(client: Client, user_id: int, password: str, **options):
    body = {"password": hash_password(password), "isHashed": True}
    return client.call("PATCH", f"/api/v1/users/{user_id}", body, **options)


# --- Users.


def test_user_changes_the_own_password_and_other_logins_end(world, other):
    second = login(world, "other", NEW)
    set_password(other, me(other), "another password")
    other.get("/api/v1/me")
    second.get("/api/v1/me", status=401)
    login(world, "other", NEW, status=401)
    login(world, "other", "another password")


def test_user_may_not_change_the_password_of_another(world, other):
    refused = set_password(other, me(world.client), "another password", status=403)
    assert refused["error"]["reason"] == "PermissionDenied"
    login(world, "determined", world.home.password_file.read_text())


@pytest.mark.parametrize("change", [{"admin": True}, {"username": "root"}, {"active": False}])
def test_user_may_not_do_to_himself_what_administrators_do(other, change):
    other.call("PATCH", f"/api/v1/users/{me(other)}", change, status=403)


def test_only_administrators_make_users(world, other):
    body = {"user": {"username": "third"}, "password": NEW}
    for client in (other, world.client):
        client.post("/api/v1/users", body, status=403)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"admin": True}, 403),
        ({"user": {"admin": True}}, 400),
        ({"isAdmin": True}, 400),
        ({}, 400),
    ],
    ids=["admin", "as in a creation", "unknown", "empty"],
)
def test_user_does_not_become_an_administrator_and_is_not_answered_as_if(other, body, status):
    other.call("PATCH", f"/api/v1/users/{me(other)}", body, status=status)
    assert not other.get("/api/v1/me")["user"]["admin"]


def test_administrator_changes_and_deactivates_a_user(admin, other):
    user_id = me(other)
    changes = {"username": "renamed", "displayName": "Re Named"}
    shown = admin.call("PATCH", f"/api/v1/users/{user_id}", changes)["user"]
    assert (shown["username"], shown["displayName"]) == ("renamed", "Re Named")
    assert other.get("/api/v1/me")["user"]["username"] == "renamed"
    admin.call("PATCH", f"/api/v1/users/{user_id}", {"active": False})
    other.get("/api/v1/me", status=403)
    names = [one["username"] for one in admin.get("/api/v1/users?active=true")["users"]]
    assert names == ["admin", "determined"]
    admin.call("PATCH", f"/api/v1/users/{user_id}", {"active": True})
    # Its logins do not return with it.
    other.get("/api/v1/me", status=401)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"user": {"username": "x"}, "password": "", "isHashed": True}, 400),
        ({"user": {"username": "x"}, "password": "zz", "isHashed": True}, 400),
        ({"user": {"username": "x"}, "password": "short"}, 400),
        ({"user": {"username": " "}, "password": NEW}, 400),
        ({"user": {"username": "DETERMINED"}, "password": NEW}, 409),
    ],
)
def test_user_without_a_name_of_its_own_or_a_password_is_refused(admin, body, status):
    admin.post("/api/v1/users", body, status=status)


def test_changed_first_password_is_no_longer_written_down(world, admin):
    set_password(admin, me(world.client), NEW)
    assert not world.home.password_file.exists()
    # The owner of the machine's account still gets in, by the token file.
    world.client.get("/api/v1/me")
    login(world, "determined", NEW)


def test_built_in_users_are_not_locked_out(admin, world):
    admin.call("PATCH", f"/api/v1/users/{me(admin)}", {"admin": False}, status=400)
    admin.call("PATCH", f"/api/v1/users/{me(world.client)}", {"active": False}, status=400)


@pytest.mark.parametrize("variable", ["DET_SESSION_TOKEN", "DET_USER_TOKEN"])
def test_task_may_not_take_over_the_account(world, variable):
    _, _, allocation_id = world.launch()
    task = Client(world.http, world.pool.launched[allocation_id].variables[variable])
    set_password(task, me(world.client), NEW, status=403)
    task.post("/api/v1/auth/web-code", status=403)


# --- Tokens.


def test_session_expires(world, monkeypatch):
    client = login(world, "determined", world.home.password_file.read_text())
    later = now() + timedelta(days=7, seconds=1)
    client.get("/api/v1/me")
    monkeypatch.setattr(auth, "now", lambda: later)
    assert client.get("/api/v1/me", status=401)["error"]["error"] == "invalid credentials"
    world.client.get("/api/v1/me")


def test_web_code_logs_a_browser_in_once(world):
    url = world.client.post("/api/v1/auth/web-code")["url"]
    path = url.removeprefix("http://127.0.0.1:8080")
    answer = world.http.get(path, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    token = cookie.split("auth=")[1].split(";")[0]
    assert Client(world.http, token).get("/api/v1/me")["user"]["username"] == "determined"
    # A browser that is logged in needs no code, any other is told what to do.
    world.http.cookies.set("auth", token)
    assert world.http.get(f"{path}&next=/cluster", follow_redirects=False).headers["location"] == "/cluster"
    world.http.cookies.clear()
    answer = world.http.get(path)
    assert answer.status_code == 401
    assert "`det web` prints another" in answer.text


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "/\tevil"])
def test_web_code_leads_nowhere_else(world, target):
    url = world.client.post("/api/v1/auth/web-code")["url"].removeprefix("http://127.0.0.1:8080")
    answer = world.http.get(url, params={"code": url.split("=")[1], "next": target}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


def test_web_code_that_is_old_or_guessed_is_refused(world, monkeypatch):
    path = urlsplit(world.client.post("/api/v1/auth/web-code")["url"])
    later = now() + timedelta(minutes=11)
    monkeypatch.setattr(auth, "now", lambda: later)
    assert world.http.get(f"{path.path}?{path.query}").status_code == 401
    assert world.http.get("/login?code=guess").status_code == 401
    assert world.http.get("/login").status_code == 401


# --- Pages of other sites.

OTHER_SITES = [
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "http://testserver:9999"},
    {"Origin": "null"},
    {},
]


@pytest.mark.parametrize("headers", OTHER_SITES, ids=str)
def test_page_of_another_site_may_not_act_by_cookie(world, headers):
    experiment_id = world.client.create(activate=False)
    cookie = {"Cookie": f"auth={world.client.token}"}
    path = f"/api/v1/experiments/{experiment_id}/kill"
    answer = world.http.post(path, headers={**cookie, **headers})
    assert (answer.status_code, answer.json()["error"]["reason"]) == (403, "PermissionDenied")
    assert world.client.experiment(experiment_id)["state"] == "STATE_PAUSED"


@pytest.mark.parametrize(
    "headers", [{"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://testserver"}], ids=str
)
def test_page_of_the_master_may_act_by_cookie_and_its_token(world, headers):
    experiment_id = world.client.create(activate=False)
    own = {"Cookie": f"auth={world.client.token}", **headers}
    path = f"/api/v1/experiments/{experiment_id}/kill"
    for wrong in ({}, {"X-CSRF-Token": "guess"}, {"X-CSRF-Token": auth.page_token("another login")}):
        assert world.http.post(path, headers={**own, **wrong}).status_code == 403
    own["X-CSRF-Token"] = auth.page_token(world.client.token)
    assert world.http.post(path, headers=own).status_code == 200


def test_browser_that_has_to_log_in_is_shown_where(world):
    answer = world.http.get("/experiments/3?x=1", headers={"Accept": "text/html"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/signin?next=%2Fexperiments%2F3%3Fx%3D1",
    )
    assert world.http.get("/experiments/3", headers={"Accept": "*/*"}).status_code == 401


def test_page_of_another_site_may_not_log_a_browser_in_as_somebody(world):
    body = {"username": "determined", "password": world.home.password_file.read_text()}
    headers = {"Origin": "http://evil.example"}
    assert world.http.post("/api/v1/auth/login", json=body, headers=headers).status_code == 403


# --- Paths and sizes.


@pytest.mark.parametrize("way", ["..%2F..%2Fetc%2Fpasswd", "%2Fetc%2Fpasswd", "..", "%00", "a" * 5000])
def test_path_that_leads_out_finds_nothing(world, way):
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "application/gzip"}
    routes = list(every_route(world.http.app))
    for method, path in routes:
        if "{" not in path:
            continue
        filled = "/".join(way if part.startswith("{") else part for part in path.split("/"))
        answer = world.http.request(
            method, f"{filled}?timeout_seconds=0", headers=headers, follow_redirects=False
        )
        # Clients shorten `/x/..` by themselves: what is left may be the first page, or another call.
        if way == ".." and posixpath.normpath(filled) in {"/", *(known for _, known in routes)}:
            continue
        status = answer.status_code
        # Wrong numbers are 400; the reads that have nothing to say about an unknown id say so.
        assert status in (400, 404, 415, 501) or "preemption" in path or "labels" in path, (method, filled)


@pytest.mark.parametrize("glob", ["../*", "/etc/*", "a/../../b", ""])
def test_glob_that_leads_out_of_the_checkpoint_is_refused(client, glob):
    body = {"checkpointUuids": [], "checkpointGlobs": [glob]}
    client.post("/api/v1/checkpoints/rm", body, status=400)


GIB = 1 << 30


@pytest.mark.process
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length known", "chunked"])
def test_upload_of_a_gibibyte_is_refused_and_not_kept_in_memory(shared, is_chunked):
    process = psutil.Process(shared.running.pid)
    before = process.memory_info().rss
    connection = http.client.HTTPConnection(urlsplit(shared.running.url).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {shared.client.token}"}
    headers.update({"Transfer-Encoding": "chunked"} if is_chunked else {"Content-Length": str(GIB)})
    connection.putrequest("POST", "/api/v1/experiments")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    sent = _send_until_refused(connection, is_chunked=is_chunked)
    answer = connection.getresponse()
    assert answer.status == 413
    assert b"128 MiB" in answer.read()
    assert sent < 256 << 20
    assert process.memory_info().rss - before < 300 << 20
    assert shared.client.get("/api/v1/me")


def _send_until_refused(connection: http.client.HTTPConnection, *, is_chunked: bool) -> int:
    piece, sent = b"x" * (1 << 20), 0
    while sent < GIB:
        try:
            connection.send(b"%x\r\n%s\r\n" % (len(piece), piece) if is_chunked else piece)
        except OSError:
            break
        sent += len(piece)
    return sent


def test_login_outlasts_a_restart_of_the_master(make_world):
    world = make_world()
    token = login(world, "admin", world.home.admin_password_file.read_text()).token
    make_world.stop()
    assert me(Client(make_world().http, token))
