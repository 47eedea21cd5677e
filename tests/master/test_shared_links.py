"""Links to reports: whoever has one sees one page without a login, and nothing else."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
import threading
import time
from datetime import timedelta

import httpx
import psutil
import pytest
from sqlalchemy import select, text

from det_keras.launch.network import free_port
from det_keras.master import process
from det_keras.master.accounts import links
from det_keras.master.database.models import ExperimentRow, SharedLinkRow, UserRow
from det_keras.master.web import shared
from det_keras.protocol.values import hash_password, now
from master.conftest import RealMaster
from master.fakes import eventually, file_entry
from master.test_auth_middleware import every_route
from master.test_doors import login

MARKER = "marker-7c1e"
OTHER = "another-experiment-93b2"
CONFIG = f"""
name: digits
entrypoint: python3 train.py --key {MARKER}
hyperparameters: {{lr: 0.5}}
searcher: {{name: single, metric: loss}}
data: {{place: {MARKER}, secrets: {{token: {MARKER}}}}}
environment: {{environment_variables: ["PLAIN={MARKER}", "API_TOKEN={MARKER}"], registry_auth: {{username: {MARKER}}}}}
"""


@pytest.fixture
def world(make_world):
    """A master that serves shared links."""
    return make_world(shared_links=True)


@pytest.fixture
def experiment(world):
    """The number of an experiment with a metric, and with a marker in all that a report must not show."""
    world.client.create(config=f"name: {OTHER}\nentrypoint: a\nsearcher: {{name: single, metric: loss}}\n")
    code = file_entry("train.py", f"KEY = '{MARKER}'".encode())
    number, trial, allocation = world.launch(CONFIG, modelDefinition=[code])
    world.client.report(trial["id"], "validation", 1, {"loss": 0.25})
    line = {"taskId": trial["taskId"], "log": f"{MARKER}\n", "allocationId": allocation}
    world.client.post("/api/v1/task/logs", {"logs": [line]})
    return number


@pytest.fixture
def ada(world):
    """Another user."""
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    user = {"username": "ada", "active": True}
    admin.post("/api/v1/users", {"user": user, "password": hash_password("Lovelace 1815"), "isHashed": True})
    return login(world, "ada", "Lovelace 1815")


def share(client, experiment, **body):
    return client.post(f"/api/v1/experiments/{experiment}/links", body)


def listed(client, experiment):
    return client.get(f"/api/v1/experiments/{experiment}/links")["links"]


def visit(world, path, **headers):
    """Open a link as a browser without a login."""
    world.http.cookies.clear()
    return world.http.get(path, headers={"Accept": "text/html", **headers}, follow_redirects=False)


def test_link_shows_the_report_without_a_login_and_without_a_cookie(world, experiment):
    answer = visit(world, share(world.client, experiment)["path"])
    assert answer.status_code == 200
    assert "digits" in answer.text
    assert "0.25" in answer.text
    assert "set-cookie" not in answer.headers
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["X-Robots-Tag"] == "noindex"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert policy.endswith("frame-ancestors 'none'")


def test_page_behind_a_link_is_as_the_experiment_is(world, experiment, monkeypatch):
    monkeypatch.setattr(shared, "_KEPT_S", 0.0)
    monkeypatch.setattr(shared, "_KEPT_TIMES", 0)
    path = share(world.client, experiment)["path"]
    assert "0.9373" not in visit(world, path).text
    world.client.report(world.client.trials(experiment)[0]["id"], "validation", 2, {"loss": 0.9373})
    assert "0.9373" in visit(world, path).text


def test_shared_report_shows_neither_secrets_nor_commands_logs_code_or_other_experiments(world, experiment):
    page = visit(world, share(world.client, experiment)["path"]).text
    assert "hyperparameters:" in page
    assert MARKER not in page
    assert OTHER not in page
    assert str(world.home.root) not in page


def test_token_of_a_link_opens_nothing_else(world, experiment):
    token = share(world.client, experiment)["path"].rpartition("/")[2]
    world.http.cookies.clear()
    ways = (
        {"Authorization": f"Bearer {token}"},
        {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"},
        {"Cookie": f"auth={token}"},
    )
    routes = every_route(world.http.app)
    assert ("GET", "/experiments/{experiment_id}") in routes
    for method, path in routes:
        address = path.replace("{experiment_id}", str(experiment)).replace("{", "").replace("}", "")
        for headers in ways:
            answer = world.http.request(method, address, headers=headers)
            # Changes by a cookie are refused before it is looked at.
            assert answer.status_code in ((401, 403) if "Cookie" in headers else (401,)), (method, path)
        for below in (
            f"/shared/{token}{address}",
            f"/shared/{token}%2f..{address}",
            f"{address}?token={token}",
        ):
            assert world.http.request(method, below).status_code == 401, (method, below)
        if method != "GET":
            assert world.http.request(method, f"/shared/{token}").status_code in (401, 405)


def test_only_the_owner_and_administrators_make_list_and_revoke_links(world, experiment, ada):
    own = share(world.client, experiment)
    address = f"/api/v1/experiments/{experiment}/links"
    refused = ada.call("POST", address, {}, status=403)["error"]["error"]
    assert "Only the owner" in refused
    ada.call("GET", address, status=403)
    ada.call("DELETE", address, status=403)
    ada.call("DELETE", f"{address}/{own['link']['id']}", status=403)
    assert visit(world, own["path"]).status_code == 200
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    share(admin, experiment, days=3)
    assert [link["username"] for link in listed(admin, experiment)] == ["determined", "admin"]
    assert listed(admin, experiment) == listed(world.client, experiment)
    assert world.client.call("DELETE", address) == {"revoked": 2}
    assert listed(world.client, experiment) == []


def test_task_shares_nothing(world, experiment):
    with world.master.store.writing() as tx:
        user = tx.scalars(select(UserRow).where(UserRow.username == "determined")).one()
        token = world.master.accounts.issue(tx, user, is_task=True)
    headers = {"Grpc-Metadata-x-allocation-token": f"Bearer {token}"}
    address = f"/api/v1/experiments/{experiment}/links"
    for method in ("GET", "POST", "DELETE"):
        content = {"content": b"{}"} if method == "POST" else {}
        assert world.http.request(method, address, headers=headers, **content).status_code == 403


def test_revoked_link_is_dead_at_once(world, experiment):
    first, second = share(world.client, experiment), share(world.client, experiment)
    # The page is in memory now.
    assert visit(world, first["path"]).status_code == 200
    world.client.call("DELETE", f"/api/v1/experiments/{experiment}/links/{first['link']['id']}")
    assert visit(world, first["path"]).status_code == 404
    assert visit(world, second["path"]).status_code == 200
    missing = f"/api/v1/experiments/{experiment}/links/{first['link']['id']}"
    assert "no shared link" in world.client.call("DELETE", missing, status=404)["error"]["error"]


def test_link_of_another_experiment_is_not_revoked_by_its_number(world, experiment):
    made = share(world.client, experiment)
    world.client.call("DELETE", f"/api/v1/experiments/1/links/{made['link']['id']}", status=404)
    assert visit(world, made["path"]).status_code == 200


def test_links_are_served_and_made_only_if_the_master_was_started_so(make_world):
    world = make_world(shared_links=True)
    experiment = world.client.create()
    made = share(world.client, experiment)
    make_world.stop()
    world = make_world()
    assert visit(world, made["path"]).status_code == 404
    address = f"/api/v1/experiments/{experiment}/links"
    assert "--shared-links" in world.client.call("POST", address, {}, status=400)["error"]["error"]
    answer = world.client.get(address)
    assert (answer["isAllowed"], [link["id"] for link in answer["links"]]) == (False, [made["link"]["id"]])
    make_world.stop()
    world = make_world(shared_links=True)
    assert visit(world, made["path"]).status_code == 200


@pytest.mark.parametrize("token", ["x" * 43, "x", "x" * 5000, "%00" * 43, "é" * 43])
def test_wrong_token_is_a_plain_page_that_is_not_found(world, experiment, token):
    answer = visit(world, f"/shared/{token}")
    assert (answer.status_code, answer.text) == (404, "There is no such page.\n")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'")
    assert answer.headers["Cache-Control"] == "no-store"
    assert "set-cookie" not in answer.headers


def test_wrong_token_writes_no_page_and_a_right_one_is_written_once_for_many(world, experiment, monkeypatch):
    written = []
    write = shared._write
    monkeypatch.setattr(shared, "_write", lambda *args: written.append(args) or write(*args))
    monkeypatch.setattr(shared, "_KEPT_S", 600.0)
    path = share(world.client, experiment)["path"]
    visit(world, f"/shared/{'x' * 43}")
    assert written == []
    assert len({visit(world, path).text for _ in range(5)}) == 1
    assert len(written) == 1


def test_link_ends_at_its_time(world, experiment, monkeypatch):
    made = share(world.client, experiment, days=2)
    monkeypatch.setattr(links, "now", lambda: now() + timedelta(days=1.9))
    assert visit(world, made["path"]).status_code == 200
    monkeypatch.setattr(links, "now", lambda: now() + timedelta(days=2.1))
    assert visit(world, made["path"]).status_code == 404
    (link,) = listed(world.client, experiment)
    assert link["isOver"] is True
    # Links that are over make room.
    share(world.client, experiment)
    assert [one["isOver"] for one in listed(world.client, experiment)] == [False]


@pytest.mark.parametrize("days", [0, -1, 36_501, "soon"])
def test_odd_number_of_days_is_refused(world, experiment, days):
    world.client.call("POST", f"/api/v1/experiments/{experiment}/links", {"days": days}, status=400)
    assert listed(world.client, experiment) == []


def test_number_of_links_has_a_bound(world, experiment, monkeypatch):
    monkeypatch.setattr(links, "MOST_LINKS", 1)
    share(world.client, experiment)
    refused = world.client.call("POST", f"/api/v1/experiments/{experiment}/links", {}, status=400)
    assert "at most 1 links" in refused["error"]["error"]


def test_link_is_gone_with_its_experiment(world):
    number = world.client.create(activate=False)
    path = share(world.client, number)["path"]
    assert visit(world, path).status_code == 200
    world.client.post(f"/api/v1/experiments/{number}/kill")
    world.client.call("DELETE", f"/api/v1/experiments/{number}")
    # Not only when all of it is deleted.
    assert visit(world, path).status_code == 404

    def rows():
        with world.master.store.reading() as session:
            return [session.scalars(select(model.id)).all() for model in (ExperimentRow, SharedLinkRow)]

    eventually(lambda: rows() == [[], []])


def test_link_rests_while_its_maker_is_deactivated(world, ada):
    number = ada.create()
    path = share(ada, number)["path"]
    assert visit(world, path).status_code == 200
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    user = admin.get("/api/v1/users/ada/by-username")["user"]["id"]
    admin.call("PATCH", f"/api/v1/users/{user}", {"active": False})
    assert visit(world, path).status_code == 404


def test_database_has_the_hash_of_a_token_only(world, experiment):
    made = share(world.client, experiment)
    token = made["path"].rpartition("/")[2]
    assert len(token) == 43
    with world.master.store.engine.connect() as connection:
        rows = [dict(row._mapping) for row in connection.execute(text("SELECT * FROM shared_links"))]
    assert [row["hash"] for row in rows] == [hashlib.sha256(token.encode()).hexdigest()]
    assert token not in str(rows)
    assert token not in str(listed(world.client, experiment))


def test_token_of_a_link_is_in_no_log(world, experiment, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    token = share(world.client, experiment)["path"].rpartition("/")[2]
    # What the test's own client logs is not the master's.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    assert visit(world, f"/shared/{token}").status_code == 200

    def fail(*_):
        raise RuntimeError("no report today")

    monkeypatch.setattr(shared.SharedPages, "page", fail)
    answer = visit(world, f"/shared/{token}")
    assert (answer.status_code, answer.text) == (500, "The page cannot be written.\n")
    monkeypatch.setattr(world.master.shared_links, "find", fail)
    assert visit(world, f"/shared/{token}").status_code == 500
    visit(world, f"/shared/{token}/more")
    assert "no report today" in caplog.text
    assert token not in caplog.text


@pytest.fixture
def sharing(used_home):
    """A master in a process of its own that serves shared links."""
    options = process.MasterOptions(port=free_port("127.0.0.1"), shared_links=True)
    master = RealMaster(used_home, options=options)
    yield master
    master.close()


def stop_by_force(master: RealMaster) -> None:
    os.kill(master.running.pid, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(master.running.pid).wait(60)


@pytest.mark.process
@pytest.mark.kill
def test_killed_master_has_a_working_link_or_none(sharing):
    number = sharing.client.create(activate=False)
    known: list[str] = []
    for delay_s in (0.0, 0.003, 0.01, 0.05):
        answers: list[httpx.Response] = []
        client = httpx.Client(base_url=sharing.running.url, timeout=30.0, trust_env=False)
        headers = {"Authorization": f"Bearer {sharing.client.token}"}

        def ask(client=client, headers=headers, answers=answers) -> None:
            with contextlib.suppress(httpx.TransportError):
                answers.append(client.post(f"/api/v1/experiments/{number}/links", json={}, headers=headers))

        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(delay_s)
        stop_by_force(sharing)
        asking.join()
        client.close()
        # As after a crash: with the options that are remembered.
        sharing.start()
        known += [answer.json()["path"] for answer in answers if answer.status_code == 200]
        assert [sharing.http.get(path).status_code for path in known] == [200] * len(known)
        found = listed(sharing.client, number)
        assert len(known) <= len(found)
        # Those of which nobody has the answer can be revoked as well.
        assert all(link["isOver"] is False for link in found)
    assert sharing.client.call("DELETE", f"/api/v1/experiments/{number}/links")["revoked"] == len(found)
    assert [sharing.http.get(path).status_code for path in known] == [404] * len(known)


@pytest.mark.process
def test_files_of_a_master_have_no_token_of_a_link(sharing):
    number = sharing.client.create(activate=False)
    token = share(sharing.client, number)["path"].rpartition("/")[2]
    for path in (f"/shared/{token}", f"/shared/{token}/x", f"/shared/{token}x"):
        sharing.http.get(path)
    sharing.http.post(f"/shared/{token}")
    process.stop(sharing.home)
    for path in sharing.home.root.rglob("*"):
        if path.is_file():
            assert token.encode() not in path.read_bytes(), path
