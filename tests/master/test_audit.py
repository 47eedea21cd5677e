"""The record of who changed what."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from det_keras.master.accounts import audit
from det_keras.master.database.acts import REPORTS, act_of, is_report
from det_keras.master.database.attribution import Author, acting
from det_keras.master.database.models import AuditRow, ExperimentRow
from det_keras.protocol.values import now
from master.fakes import SINGLE, Client, eventually
from master.test_access_tokens import PASSWORD, token
from master.test_doors import login


@pytest.fixture
def admin(world) -> Client:
    return login(world, "admin", world.home.admin_password_file.read_text())


@pytest.fixture
def ada(world, admin) -> Client:
    admin.post("/api/v1/users", {"user": {"username": "ada", "active": True}, "password": PASSWORD})
    return login(world, "ada", PASSWORD)


def entries(client, **params):
    return client.get("/api/v1/audit", params=params)["entries"]


def told(client, **params):
    """What was done, by whom and with what, oldest first."""
    return [
        (entry["username"], entry["verb"], entry["kind"], entry["objectId"])
        for entry in reversed(entries(client, **params))
    ]


def stored(world):
    with world.master.store.reading() as session:
        return session.scalars(select(AuditRow).order_by(AuditRow.id)).all()


@pytest.mark.parametrize(
    ("method", "route", "parameters", "told"),
    [
        ("POST", "experiments/{experiment_id}/kill", {"experiment_id": 7}, "kill experiment 7"),
        ("POST", "experiments", {}, "create experiment None"),
        ("PUT", "experiments/by-external-id/{external_id:path}", {"external_id": "x"}, "set experiment None"),
        (
            "PUT",
            "experiments/{experiment_id}/labels/{label:path}",
            {"experiment_id": 7, "label": "a/b"},
            "change labels experiment 7 a/b",
        ),
        (
            "DELETE",
            "experiments/{experiment_id}/links/{link_id}",
            {"experiment_id": 7, "link_id": 3},
            "delete link 3 of experiment 7",
        ),
        (
            "POST",
            "projects/{project_id}/experiments/{verb}",
            {"project_id": 2, "verb": "kill"},
            "kill experiment None of project 2",
        ),
        ("POST", "experiments/{experiment_id}/searcher/narrow", {"experiment_id": 7}, "narrow experiment 7"),
        ("PATCH", "template/rename", {}, "rename template None"),
        ("POST", "auth/logout", {}, "logout user None"),
        ("POST", "checkpoints/rm", {}, "delete files checkpoint None"),
        ("POST", "master/prune", {}, "prune master None"),
        ("POST", "new-things/{id}/polish", {"id": 1}, "polish master None"),
    ],
)
def test_route_says_what_is_done_with_what(method, route, parameters, told):
    act = act_of(method, f"/api/v1/{route}", parameters)
    of = f" of {act.parent[0].kind} {act.parent[1]}" if act.parent else ""
    assert f"{act.verb} {act.noun.kind} {act.id}{of} {act.detail}".rstrip() == told


def test_routes_of_reports_exist(world):
    described = world.client.get("/openapi.json")["paths"]
    assert described.keys() >= REPORTS


def test_changes_are_recorded_with_user_time_address_object_and_new_state(client, ada):
    before = now()
    number = client.create()
    ada.move(number, "pause")
    ada.move(number, "kill")
    ada.call("PUT", f"/api/v1/experiments/{number}/labels/slow")
    ada.call("PATCH", f"/api/v1/experiments/{number}", {"notes": "secret thoughts", "name": "best"})
    killed = entries(client, kind="experiment", id=str(number))[2]
    assert killed["detail"].startswith("state ")
    assert killed["time"] >= before.isoformat()[:19]
    assert entries(ada, kind="experiment", id=str(number), user="ada")[0]["address"] == "testclient"
    assert told(client, kind="experiment", id=str(number)) == [
        ("determined", "create", "experiment", str(number)),
        ("ada", "pause", "experiment", str(number)),
        ("ada", "kill", "experiment", str(number)),
        ("ada", "change labels", "experiment", str(number)),
        ("ada", "change", "experiment", str(number)),
    ]
    changed = entries(client, kind="experiment", id=str(number))[0]["detail"]
    assert "name" in changed
    assert "notes" in changed
    assert "secret thoughts" not in changed


def test_call_that_changes_nothing_or_is_refused_leaves_no_entry(world, client):
    number = client.create()
    client.move(number, "pause")
    known = len(stored(world))
    client.move(number, "pause")
    client.move(number, "archive", status=400)
    client.post("/api/v1/experiments", {"config": SINGLE, "validateOnly": True})
    client.get("/api/v1/experiments")
    client.http.get("/experiments", headers={"Authorization": f"Bearer {client.token}"})
    assert len(stored(world)) == known


def test_entry_is_in_the_transaction_of_the_change(world, client):
    number = client.create()
    scope = {"method": "POST", "path": f"/api/v1/experiments/{number}/archive", "client": ("1.2.3.4", 5)}
    known = len(stored(world))

    def fail():
        with acting(Author(scope, 1, "admin")), world.master.store.writing() as tx:
            tx.get(ExperimentRow, number).archived = True
            tx.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(stored(world)) == known
    assert not client.experiment(number)["archived"]


def test_call_with_several_transactions_has_one_entry_for_each_thing(world, client):
    number = client.create()
    known = len(stored(world))
    path = f"/api/v1/experiments/{number}/notes"
    scope = {"method": "PUT", "path": path, "path_params": {}, "client": ("1.2.3.4", 5)}
    with acting(Author(scope, 1, "admin")):
        for text in ("one", "two"):
            with world.master.store.writing() as tx:
                tx.get(ExperimentRow, number).notes = text
    assert [entry.verb for entry in stored(world)[known:]] == ["change notes"]


def test_each_experiment_of_a_bulk_call_has_its_entry(client):
    numbers = [client.create() for _ in range(3)]
    client.post("/api/v1/projects/1/experiments/kill", {"projectId": 1, "experimentIds": numbers[:2]})
    for number, is_killed in zip(numbers, (True, True, False), strict=True):
        found = entries(client, kind="experiment", id=str(number))
        assert (found[0]["verb"] == "kill") == is_killed
        if is_killed:
            assert (found[0]["ofKind"], found[0]["ofId"]) == ("project", "1")


def test_created_things_are_named_by_their_numbers_and_where_they_belong(client):
    workspace = client.post("/api/v1/workspaces", {"name": "vision"})["workspace"]["id"]
    project = client.post(f"/api/v1/workspaces/{workspace}/projects", {"name": "digits"})["project"]["id"]
    assert told(client, kind="workspace", id=str(workspace)) == [
        ("determined", "create", "workspace", str(workspace)),
        ("determined", "create", "project", str(project)),
    ]
    client.post("/api/v1/templates/base", {"config": {"max_restarts": 1}})
    client.call("PATCH", "/api/v1/template/rename", {"oldName": "base", "newName": "small"})
    assert told(client, kind="template")[0] == ("determined", "create", "template", "base")


def test_tokens_and_tasks_are_named(world, client, ada):
    program, number = token(ada)
    experiment_id, _, allocation_id = world.launch()
    program.move(experiment_id, "pause")
    (paused,) = entries(client, user="ada", kind="experiment")
    assert (paused["tokenId"], paused["allocationId"]) == (number, None)
    launched = world.pool.launched[allocation_id]
    task = Client(world.http, launched.variables["DET_USER_TOKEN"])
    task.call("PATCH", f"/api/v1/experiments/{experiment_id}", {"description": "mine"})
    assert entries(client, kind="experiment")[0]["allocationId"] == allocation_id


def test_reports_of_trainings_leave_no_entry(world, client):
    _, trial, allocation_id = world.launch()
    known = len(stored(world))
    number = trial["id"]
    client.report(number, "training", 1, {"loss": 1.0})
    client.post(f"/api/v1/trials/{number}/progress", {"progress": 0.5})
    client.post("/api/v1/runs/start", {"runId": number})
    client.post(f"/api/v1/runs/{number}/metadata", {"runId": number, "metadata": {"a": 1}})
    client.post(f"/api/v1/allocations/{allocation_id}/ready", {})
    uuid = "00000000-0000-0000-0000-000000000001"
    client.post(
        "/api/v1/checkpoints",
        {
            "uuid": uuid,
            "taskId": trial["taskId"],
            "metadata": {"steps_completed": 1},
            "state": "STATE_COMPLETED",
        },
    )
    assert len(stored(world)) == known
    assert not is_report("DELETE", "/api/v1/checkpoints")
    client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
    (entry,) = stored(world)[known:]
    assert (entry.verb, entry.kind, entry.object_id, entry.of_id) == (
        "delete",
        "checkpoint",
        uuid,
        str(number),
    )


def test_logins_logouts_and_refused_logins_are_recorded(world, ada):
    for name in ("ada", "my password by mistake"):
        answer = world.http.post("/api/v1/auth/login", json={"username": name, "password": "wrong"})
        assert answer.status_code == 401
    ada.post("/api/v1/auth/logout")
    ada = login(world, "ada", PASSWORD)
    found = entries(ada, kind="user")
    assert [entry["verb"] for entry in found] == ["login", "logout", "refused login", "login", "create"]
    assert [entry["username"] for entry in found] == ["ada", "ada", "", "ada", "admin"]
    assert not any("mistake" in entry.detail for entry in stored(world))


def test_secrets_are_not_recorded(world, client, admin):
    secret = "canary-71ab"
    client.create(SINGLE + f"data: {{secrets: {{token: {secret}}}}}\nname: {secret[:6]}\n")
    client.post("/api/v1/templates/base", {"config": {"data": {"secrets": {"token": secret}}}})
    made, _ = token(client, description="for the nightly run")
    admin.call("PATCH", "/api/v1/users/2", {"password": f"{secret} is long"})
    code = client.post("/api/v1/auth/web-code")["url"].split("code=")[1]
    world.http.get("/login", params={"code": code}, follow_redirects=False)
    text = "\n".join(repr(vars(row)) for row in stored(world))
    assert "'login'" in text
    assert not any(word in text for word in (secret, made.token, code, PASSWORD))


def test_users_see_their_own_deeds_and_things_and_administrators_everything(world, client, ada, admin):
    theirs, own = client.create(), ada.create()
    client.move(own, "kill")
    ada.move(theirs, "pause")
    assert told(ada, kind="experiment") == [
        ("ada", "create", "experiment", str(own)),
        ("determined", "kill", "experiment", str(own)),
        ("ada", "pause", "experiment", str(theirs)),
    ]
    assert [entry["address"] for entry in entries(ada, kind="experiment")] == [
        "testclient",
        None,
        "testclient",
    ]
    assert len(told(admin, kind="experiment")) == 4
    assert entries(admin, kind="experiment")[1]["address"] == "testclient"
    assert told(admin, user="nobody-known") == []
    # The thing of a trial is that of its experiment's owner.
    trial = ada.trials(own)[0]["id"]
    assert told(ada, kind="trial", id=str(trial))[-1][1] == "kill"


def test_entries_are_paged_and_filtered(client):
    number = client.create()
    for verb in ("pause", "activate", "pause"):
        client.move(number, verb)
    answer = client.get("/api/v1/audit", params={"kind": "experiment", "limit": 2, "offset": 1})
    assert [entry["verb"] for entry in answer["entries"]] == ["activate", "pause"]
    assert answer["pagination"] == {"offset": 1, "limit": 2, "total": 4}
    assert entries(client, since=(now() + timedelta(hours=1)).isoformat()) == []
    client.get("/api/v1/audit", params={"since": "yesterday"}, status=400)
    client.get("/api/v1/audit", params={"id": "7"}, status=400)


def test_log_of_a_trial_names_who_killed_it(world, client, ada):
    experiment_id, trial, _ = world.launch()
    ada.move(experiment_id, "kill")
    client.wait_for_state(experiment_id, "CANCELED")
    lines = [line["message"] for line in client.log(trial["id"])]
    assert any(f"Trial {trial['id']} was killed by ada." in line for line in lines)


def test_log_of_a_trial_does_not_name_who_killed_an_earlier_attempt(world, client, ada):
    experiment_id, _, _ = world.launch()
    ada.move(experiment_id, "kill")
    client.wait_for_state(experiment_id, "CANCELED")
    with world.master.store.writing() as tx:
        # Long before the attempt.
        tx.execute(update(AuditRow).values(made_at=now() - timedelta(days=1)))
    with world.master.store.reading() as session:
        began = audit.now() - timedelta(minutes=5)
        assert audit.killer(session, [("experiment", experiment_id)], None) == "ada"
        assert audit.killer(session, [("experiment", experiment_id)], began) == ""


def test_job_tells_who_killed_it(world, client, ada):
    task_id = client.post("/api/v1/commands", {"config": {"entrypoint": ["sleep", "9"]}})["command"]["id"]
    eventually(lambda: f"{task_id}.1" in world.pool.launched)
    ada.post(f"/api/v1/commands/{task_id}/kill")
    eventually(lambda: client.get(f"/api/v1/commands/{task_id}")["command"]["exitStatus"])
    answer = world.http.get(
        f"/api/v1/tasks/{task_id}/logs", headers={"Authorization": f"Bearer {client.token}"}
    )
    assert "The job was killed by ada." in answer.text


def test_old_entries_are_deleted_by_age_and_by_administrators_alone(world, client, admin):
    client.create()
    with world.master.store.writing() as tx:
        tx.execute(update(AuditRow).values(made_at=now() - timedelta(days=audit.KEPT_DAYS + 1)))
    client.create()
    client.post("/api/v1/master/prune", {"auditDays": 0}, status=403)
    before = len(stored(world))
    dry = admin.post("/api/v1/master/prune", {"auditDays": audit.KEPT_DAYS})["pruned"][0]
    assert (dry["count"], len(stored(world))) == (before - 1, before)
    world.master.garbage_collector._swept_at = None
    world.master.garbage_collector.tidy()
    assert [entry.kind for entry in stored(world)] == ["experiment"]
    admin.post("/api/v1/master/prune", {"auditDays": 0, "isDry": False})
    # What was deleted is recorded in its place.
    assert [(entry.verb, entry.kind) for entry in stored(world)] == [("prune", "master")]


def test_refused_logins_do_not_fill_the_disk(world):
    known = len(stored(world))
    for number in range(200):
        world.master.audit_trail.note_refused_login("ada", f"10.0.0.{number}")
    assert len(stored(world)) - known == 60


def shown(world, path):
    answer = world.http.get(path, headers={"Accept": "text/html", "Cookie": f"auth={world.client.token}"})
    assert answer.status_code == 200, answer.text
    return " ".join(answer.text.split())


def test_pages_of_things_tell_who_changed_them(world, client, ada):
    experiment_id, trial, _ = world.launch()
    ada.move(experiment_id, "kill")
    for path in (f"/experiments/{experiment_id}", f"/trials/{trial['id']}", "/audit"):
        assert "killed by ada" in shown(world, path), path
    assert "killed by ada" not in shown(world, "/audit?user=determined")
    assert f"/audit?kind=experiment&amp;id={experiment_id}" in shown(world, f"/experiments/{experiment_id}")
    assert "0 entries" in shown(world, "/audit?kind=experiment&id=x")


def test_page_of_changes_has_pages(world, client, monkeypatch):
    monkeypatch.setattr("det_keras.master.web.teams.audit._ENTRIES", 2)
    number = client.create()
    for verb in ("pause", "activate", "pause"):
        client.move(number, verb)
    first = shown(world, "/audit?kind=experiment")
    assert "4 entries" in first
    assert "Newer" not in first
    last = shown(world, "/audit?kind=experiment&offset=2")
    assert "created by determined" in last
    assert "Older" not in last


def test_calls_on_many_runs_name_what_they_changed(world, client):
    number, trial, _ = world.launch()
    for verb in ("pause", "resume", "kill"):
        client.post(f"/api/v1/runs/{verb}", {"runIds": [trial["id"]]})
    client.wait_for_state(number, "CANCELED")
    client.post("/api/v1/runs/archive", {"runIds": [trial["id"]]})
    done = {(verb, kind, identity) for _, verb, kind, identity in told(client)}
    assert {(verb, "experiment", str(number)) for verb in ("pause", "resume", "archive")} <= done
    assert ("kill", "trial", str(trial["id"])) in done
    assert not [entry for entry in done if entry[1] == "master"]
