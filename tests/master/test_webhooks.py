"""Webhooks: which events are queued, how they are sent, and where to."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import socket
from datetime import timedelta

import pytest
from sqlalchemy import select, update

from det_keras.config import LogPatterns
from det_keras.master.database.models import DeliveryRow, ExperimentRow
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.services import webhook_sender
from det_keras.master.teams import outgoing, webhooks
from det_keras.master.teams.outgoing import Networks
from det_keras.protocol.values import now
from master.fakes import SINGLE, Client, eventually
from master.receiver import Receiver
from master.test_access_tokens import PASSWORD
from master.test_doors import login

LOOPBACK = Networks.parse("127.0.0.0/8")
PATH = "/api/v1/webhooks"
COMPLETED = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "COMPLETED"}}
CANCELED = {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "CANCELED"}}
CUSTOM = {"triggerType": "TRIGGER_TYPE_CUSTOM"}


def on_line(regex):
    return {"triggerType": "TRIGGER_TYPE_TASK_LOG", "condition": {"regex": regex}}


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def world(make_world):
    made = make_world()
    made.master.webhook_sender.networks = LOOPBACK
    return made


@pytest.fixture
def client(world) -> Client:
    return world.client


@pytest.fixture
def admin(world) -> Client:
    return login(world, "admin", world.home.admin_password_file.read_text())


@pytest.fixture
def ada(world, admin) -> Client:
    admin.post("/api/v1/users", {"user": {"username": "ada", "active": True}, "password": PASSWORD})
    return login(world, "ada", PASSWORD)


def make(client, url, *triggers, status=200, **fields):
    body = {
        "url": url,
        "name": "",
        "webhookType": "WEBHOOK_TYPE_DEFAULT",
        "mode": "WEBHOOK_MODE_WORKSPACE",
        "triggers": list(triggers or (CANCELED,)),
        **fields,
    }
    answer = client.post(PATH, body, status=status)
    return answer["webhook"]["id"] if status == 200 else answer["error"]["error"]


def workspace(client, name="vision"):
    """A workspace and its project."""
    number = client.post("/api/v1/workspaces", {"name": name})["workspace"]["id"]
    project = client.post(f"/api/v1/workspaces/{number}/projects", {"name": "digits"})["project"]["id"]
    return number, project


def deliveries(client, webhook_id):
    return client.get(f"{PATH}/{webhook_id}/deliveries")["deliveries"]


def queued(world):
    with world.master.store.reading() as session:
        return session.scalars(select(DeliveryRow).order_by(DeliveryRow.id)).all()


def end(client):
    """An experiment that was killed."""
    number = client.create(SINGLE + "name: best\n", activate=False)
    client.move(number, "kill")
    return number


def test_change_of_state_is_sent_signed_with_an_id(world, client, admin, receiver):
    number = make(admin, receiver.url)
    experiment_id = end(client)
    (body,) = receiver.wait(1)
    assert body["event_type"] == "EXPERIMENT_STATE_CHANGE"
    assert body["condition"] == {"state": "CANCELED"}
    told = body["event_data"]["experiment"]
    assert (told["id"], told["state"], told["name"]) == (experiment_id, "CANCELED", "best")
    assert (told["workspace"], told["project"], told["slots_per_trial"]) == (
        "Uncategorized",
        "Uncategorized",
        1,
    )
    path, headers, sent = receiver.requests[0]
    assert (path, headers["Content-Type"]) == ("/hook", "application/json; charset=UTF-8")
    assert headers["X-Det-Keras-Event-ID"] == body["event_id"]
    key = world.home.webhook_key_file.read_text().encode()
    moment = headers["X-Determined-AI-Signature-Timestamp"]
    expected = hmac.new(key, f"{moment},{sent.decode()}".encode(), hashlib.sha256).hexdigest()
    assert headers["X-Determined-AI-Signature"] == expected
    assert world.home.webhook_key_file.stat().st_mode & 0o777 == 0o600
    (delivery,) = eventually(
        lambda: [one for one in deliveries(admin, number) if one["state"] == "DELIVERED"]
    )
    assert (delivery["status"], delivery["answer"], delivery["attempts"]) == (200, "heard", 1)
    assert delivery["about"] == f"experiment {experiment_id} CANCELED"


def test_message_of_slack(client, admin, receiver):
    make(admin, receiver.url, COMPLETED, CANCELED, webhookType="WEBHOOK_TYPE_SLACK")
    experiment_id = end(client)
    (body,) = receiver.wait(1)
    assert body["blocks"][0]["text"] == {
        "type": "plain_text",
        "text": "The status of your experiment is CANCELED",
    }
    (attachment,) = body["attachments"]
    assert attachment["color"] == "#13B670"
    assert attachment["blocks"][0]["text"]["text"] == f"best (#{experiment_id})"
    assert attachment["blocks"][0]["fields"][1] == {"type": "mrkdwn", "text": "*Duration*: 0h 0min"}


def test_event_is_in_the_transaction_of_the_change(world, client, admin, receiver):
    make(admin, receiver.url)
    number = client.create(SINGLE, activate=False)

    def fail():
        with world.master.store.writing() as tx:
            tx.get(ExperimentRow, number).state = "CANCELED"
            tx.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert queued(world) == []
    client.move(number, "kill")
    assert len(queued(world)) == 1


def test_only_the_wanted_state_is_told(world, client, admin, receiver):
    make(admin, receiver.url, COMPLETED)
    end(client)
    assert queued(world) == []


@pytest.mark.parametrize(
    ("integrations", "is_told"),
    [
        ("", False),
        ("integrations: {webhooks: {webhook_name: [mine]}}\n", True),
        ("integrations: {webhooks: {webhook_name: [other]}}\n", False),
        ("integrations: {webhooks: {webhook_id: [1]}}\n", True),
        ("integrations: {webhooks: {webhook_id: [1], exclude: true}}\n", False),
    ],
)
def test_specific_webhook_is_told_of_experiments_that_name_it(
    world, client, admin, receiver, integrations, is_told
):
    number, project = workspace(client)
    make(admin, receiver.url, name="mine", mode="WEBHOOK_MODE_SPECIFIC", workspaceId=number)
    experiment_id = client.create(SINGLE + integrations, activate=False, projectId=project)
    client.move(experiment_id, "kill")
    assert bool(queued(world)) == is_told


def test_webhook_of_a_workspace_is_told_of_its_experiments(world, client, admin, receiver):
    number, project = workspace(client)
    make(client, receiver.url, workspaceId=number)
    end(client)
    assert queued(world) == []
    inside = client.create(SINGLE, activate=False, projectId=project)
    client.move(inside, "kill")
    assert len(queued(world)) == 1
    excluded = "integrations: {webhooks: {exclude: true}}\n"
    client.move(client.create(SINGLE + excluded, activate=False, projectId=project), "kill")
    assert len(queued(world)) == 1


def test_line_of_a_log_is_told_once_for_each_task(world, client, admin, receiver):
    make(admin, receiver.url, on_line("loss: nan"))
    make(admin, receiver.url, on_line("loss: nan"), webhookType="WEBHOOK_TYPE_SLACK")
    make(admin, receiver.url, on_line("cuda"))
    _, trial, allocation_id = world.launch()
    for count in range(1, 4):
        world.pool.say(allocation_id, "epoch 1, loss: nan <!channel>\n")
        # One by one: each is looked at in a transaction of its own.
        eventually(
            lambda count=count: sum("nan" in line["message"] for line in client.log(trial["id"])) == count
        )
    told, slack = sorted(receiver.wait(2), key=len, reverse=True)
    assert told["event_type"] == "TASK_LOG"
    assert told["condition"] == {"regex": "loss: nan"}
    log = told["event_data"]["task_log"]
    assert (log["task_id"], log["node_name"]) == (trial["taskId"], "machine-0")
    assert log["triggering_log"] == "epoch 1, loss: nan <!channel>"
    text = slack["blocks"][0]["text"]["text"]
    assert "This log matched the regex" in text
    # Nothing of a log calls everybody in a channel.
    assert "&lt;!channel&gt;" in text
    assert len(queued(world)) == 2


def test_pattern_that_branches_does_not_hold_up_the_master(world, client, admin, receiver):
    make(admin, receiver.url, on_line("(a+)+$"), on_line("(a|aa)+b"), on_line("(.*)*x"))
    _, trial, allocation_id = world.launch()
    world.pool.say(allocation_id, "a" * 8_000 + "!\n")
    eventually(lambda: any("a!" in line["message"] for line in client.log(trial["id"])))
    assert queued(world) == []


def test_patterns_of_all_webhooks_are_bounded(admin, receiver):
    for _ in range(10):
        make(admin, receiver.url, *[on_line("nan")] * 10)
    assert "at most 100 patterns" in make(admin, receiver.url, on_line("nan"), status=400)
    make(admin, receiver.url)


def test_patterns_that_are_too_large_together_are_matched_one_by_one():
    texts = ["(a|aa)+b", "loss: nan", *(f"(a|aa)+b{number}.{{0,200}}c" for number in range(200))]
    patterns = LogPatterns(texts)
    assert patterns._together is None
    assert list(patterns.in_line("loss: nan\n")) == [1]
    assert sorted(LogPatterns(texts[:2]).in_line("loss: nan aab\n")) == [0, 1]
    assert list(LogPatterns([]).in_line("x")) == []


def test_alert_of_a_script_is_told_once_whatever_is_repeated(world, client, admin, receiver):
    make(admin, receiver.url, CUSTOM)
    make(admin, receiver.url, CUSTOM, webhookType="WEBHOOK_TYPE_SLACK")
    experiment_id, trial, _ = world.launch()
    data = {"title": "Diverged", "description": "loss is nan", "level": "LOG_LEVEL_ERROR"}
    sent = {"experimentId": experiment_id, "trialId": trial["id"], "data": data}
    for _ in range(2):
        client.post(f"{PATH}/custom", {**sent, "eventId": "6f1"})
    told, slack = sorted(receiver.wait(2), key=lambda body: "blocks" in body)
    assert (told["event_type"], told["event_data"]["custom_data"]) == ("CUSTOM", data)
    assert told["event_data"]["experiment"]["trial_id"] == trial["id"]
    fields = [field["text"] for field in slack["blocks"][0]["fields"]]
    assert fields == ["*Level*: LOG_LEVEL_ERROR", "*Title*: Diverged", "*Description*: loss is nan"]
    assert len(queued(world)) == 2
    client.post(f"{PATH}/custom", sent)
    assert len(queued(world)) == 4
    client.post(f"{PATH}/custom", {**sent, "trialId": 99}, status=404)
    client.post(f"{PATH}/custom", {**sent, "data": {"level": "LOUD"}}, status=400)


def test_event_that_is_refused_is_sent_again_with_the_same_id(world, client, admin, receiver, monkeypatch):
    monkeypatch.setattr(webhook_sender, "wait_s", lambda attempts: 0.0)
    receiver.answer = 500
    number = make(admin, receiver.url)
    end(client)
    receiver.wait(2)
    receiver.answer = 204
    (delivery,) = eventually(
        lambda: [one for one in deliveries(admin, number) if one["state"] == "DELIVERED"]
    )
    assert delivery["attempts"] >= 3
    ids = {headers["X-Det-Keras-Event-ID"] for _, headers, _ in receiver.requests}
    assert ids == {delivery["eventId"]}


def test_event_is_given_up_after_many_attempts(world, client, admin, receiver, monkeypatch):
    monkeypatch.setattr(webhook_sender, "wait_s", lambda attempts: 0.0)
    receiver.answer = 404
    number = make(admin, receiver.url)
    end(client)
    (delivery,) = eventually(lambda: [one for one in deliveries(admin, number) if one["state"] == "FAILED"])
    assert (delivery["attempts"], delivery["status"]) == (webhooks.MOST_ATTEMPTS, 404)
    assert len(receiver.requests) == webhooks.MOST_ATTEMPTS


def test_waits_grow_up_to_an_hour():
    assert [webhook_sender.wait_s(number) for number in (1, 2, 3, 12, 15)] == [2, 4, 8, 3600, 3600]


def test_master_that_was_killed_sends_what_waits(make_world, receiver):
    world = make_world()
    admin = login(world, "admin", world.home.admin_password_file.read_text())
    world.master.webhook_sender.networks = LOOPBACK
    number = make(admin, receiver.url)
    # Its outcome is never stored.
    world.master.webhook_sender._store_outcome = lambda event, answer: None
    world.master.webhook_sender.step = lambda: 60.0
    end(world.client)
    assert [row.state for row in queued(world)] == ["WAITING"]
    make_world.stop()
    again = make_world()
    again.master.webhook_sender.networks = LOOPBACK
    with again.master.store.writing() as tx:
        # It may have been tried before its networks were set.
        tx.execute(update(DeliveryRow).values(due_at=now()))
        tx.notify("deliveries")
    receiver.wait(1)
    admin = login(again, "admin", again.home.admin_password_file.read_text())
    eventually(lambda: deliveries(admin, number)[0]["state"] == "DELIVERED")


def test_test_tells_whether_the_receiver_answers(admin, receiver):
    number = make(admin, receiver.url)
    assert admin.post(f"{PATH}/{number}/test") == {"completed": True}
    assert receiver.bodies[0]["event_data"] == {"data": "test"}
    receiver.answer = 403
    refused = admin.post(f"{PATH}/{number}/test", status=400)
    assert "403" in refused["error"]["error"]
    # Once only.
    assert [one["state"] for one in deliveries(admin, number)] == ["FAILED", "DELIVERED"]


def test_receiver_that_does_not_answer_holds_up_no_other(world, client, admin, receiver):
    dead = make(admin, "http://127.0.0.1:1/")
    first = end(client)
    with world.master.store.writing() as tx:
        (row,) = tx.scalars(select(DeliveryRow)).all()
        fields = {name: getattr(row, name) for name in ("about", "payload", "state", "made_at", "answer")}
        rows = [
            DeliveryRow(
                webhook_id=dead,
                event_id=f"{number}",
                reason=f"{number}",
                due_at=now(),
                most_attempts=15,
                **fields,
            )
            for number in range(300)
        ]
        tx.add_all(rows)
    make(admin, receiver.url)
    second = end(client)
    (told,) = receiver.wait(1)
    assert told["event_data"]["experiment"]["id"] == second != first


def test_events_that_wait_are_bounded(world, client, admin, receiver, monkeypatch, caplog):
    monkeypatch.setattr(webhooks, "MOST_WAITING", 2)
    monkeypatch.setattr(world.master.webhook_sender, "step", lambda: 60.0)
    make(admin, receiver.url)
    for _ in range(3):
        end(client)
    assert len(queued(world)) == 2
    assert "too much waits" in caplog.text


def test_second_address_of_a_name_is_tried(receiver, monkeypatch):
    port = int(receiver.url.split(":")[2].split("/")[0])
    found = socket.getaddrinfo

    def resolve(host, *arguments, **options):
        if host == "two.example":
            return [(2, 1, 6, "", (address, port)) for address in ("127.0.0.9", "127.0.0.1")]
        return found(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert LOOPBACK.post(f"http://two.example:{port}/hook", b"{}", {}).status == 200


def test_redirects_are_not_followed(client, admin, receiver):
    receiver.answer = 307
    number = make(admin, receiver.url)
    assert "307" in admin.post(f"{PATH}/{number}/test", status=400)["error"]["error"]
    assert len(receiver.requests) == 1


def test_receiver_that_never_ends_its_answer_is_left(receiver):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):
            while True:
                handler.wfile.write(b"a")
                handler.wfile.flush()

    receiver.answer = drip
    answer = LOOPBACK.post(receiver.url, b"{}", {}, limit_s=0.2)
    assert len(answer.text) <= outgoing.MOST_ANSWER_BYTES


def test_receiver_that_sends_nothing_is_left(receiver):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert LOOPBACK.post(url, b"{}", {}, limit_s=0.2).status is None


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::",
        "fe80::1",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::1",
    ],
)
def test_addresses_of_own_networks_are_refused_unless_allowed(address):
    assert not Networks().allows(address)
    network = ipaddress.ip_network(address)
    assert Networks([network]).allows(address)
    assert Networks().allows("93.184.215.14")
    assert LOOPBACK.allows("::ffff:127.0.0.1")
    assert Networks().allows("2606:2800:21f:cb07:6820:80da:af6b:8b2c")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_webhook_at_an_own_network_is_refused(world, admin, host):
    world.master.webhook_sender.networks = Networks()
    assert "network" in make(admin, f"http://{host}:8080/", status=400)


def test_name_that_resolves_to_another_address_later_is_refused_when_it_is_sent(receiver, monkeypatch):
    port = int(receiver.url.split(":")[2].split("/")[0])
    answers = [[(2, 1, 6, "", ("93.184.215.14", port))], [(2, 1, 6, "", ("127.0.0.1", port))]]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers.pop(0))
    url = f"http://rebinding.example:{port}/"
    Networks().check_url(url)
    answer = Networks().post(url, b"{}", {})
    assert (answer.status, "network" in answer.text) == (None, True)
    assert receiver.requests == []


def test_connection_goes_to_the_address_that_was_checked(receiver, monkeypatch):
    port = int(receiver.url.split(":")[2].split("/")[0])
    asked = []

    def resolve(host, port, *_, **__):
        asked.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert LOOPBACK.post(f"http://receiver.example:{port}/hook", b"{}", {}).status == 200
    # The name once; then only the address.
    assert asked == ["receiver.example", "127.0.0.1"]
    assert receiver.requests[0][1]["Host"] == f"receiver.example:{port}"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://example.com/",
        "http://",
        "http://u:p@example.com/",
        "http://a b/",
        "http://x\n/",
        "http:///x",
    ],
)
def test_malformed_address_is_refused(url):
    with pytest.raises(InvalidArgumentError, match="valid url required"):
        Networks().check_url(url)


@pytest.mark.parametrize(
    ("trigger", "why"),
    [
        ({"triggerType": "TRIGGER_TYPE_METRIC_THRESHOLD_EXCEEDED", "condition": {}}, "context.alert"),
        ({"triggerType": "TRIGGER_TYPE_NEW"}, "is not one of"),
        (
            {"triggerType": "TRIGGER_TYPE_EXPERIMENT_STATE_CHANGE", "condition": {"state": "DONE"}},
            "COMPLETED",
        ),
        (on_line("(a"), "regular expression"),
        (on_line("a" * 1_001), "1000"),
        (on_line(7), "regular expression"),
    ],
)
def test_trigger_that_cannot_fire_is_refused(admin, receiver, trigger, why):
    assert why in make(admin, receiver.url, trigger, status=400)


def test_webhook_without_triggers_or_with_too_many_is_refused(admin, receiver):
    assert "at least one trigger" in make(admin, receiver.url, status=400, triggers=[])
    make(admin, receiver.url, *[CUSTOM] * 11, status=400)


def test_owners_of_workspaces_and_administrators_alone_make_see_and_change_webhooks(
    client, ada, admin, receiver
):
    make(ada, receiver.url, status=403)
    of_all = make(admin, receiver.url)
    number, _ = workspace(ada)
    own = make(ada, receiver.url, workspaceId=number)
    make(client, receiver.url, workspaceId=number, status=403)
    make(client, receiver.url, workspaceId=99, status=404)

    def seen(caller):
        return [one["id"] for one in caller.get(PATH)["webhooks"]]

    assert (seen(client), seen(ada), seen(admin)) == ([of_all], [of_all, own], [of_all, own])
    # The address may be a secret.
    assert client.get(f"{PATH}/{of_all}")["webhook"]["url"] == receiver.url.replace("hook", "********")
    for caller, webhook_id, status in ((client, of_all, 403), (client, own, 404), (ada, of_all, 403)):
        path = f"{PATH}/{webhook_id}"
        caller.call("PATCH", path, {"url": receiver.url}, status=status)
        caller.call("DELETE", path, status=status)
        caller.post(f"{path}/test", status=status)
        caller.get(f"{path}/deliveries", status=status)
    assert receiver.requests == []
    ada.call("PATCH", f"{PATH}/{own}", {"url": f"{receiver.url}/other"})
    assert ada.get(f"{PATH}/{own}")["webhook"]["url"] == f"{receiver.url}/other"
    ada.call("DELETE", f"{PATH}/{own}")
    assert seen(ada) == [of_all]


def test_deleted_webhook_is_told_of_nothing(world, client, admin, receiver):
    number = make(admin, receiver.url)
    end(client)
    receiver.wait(1)
    admin.call("DELETE", f"{PATH}/{number}")
    end(client)
    assert queued(world) == []
    admin.get(f"{PATH}/{number}", status=404)


def test_webhooks_of_a_deleted_workspace_are_gone(world, client, receiver):
    number, _ = workspace(client)
    make(client, receiver.url, workspaceId=number)
    client.call("DELETE", f"/api/v1/workspaces/{number}")
    eventually(lambda: client.get(PATH)["webhooks"] == [])


def test_old_deliveries_are_deleted(world, client, admin, receiver):
    number = make(admin, receiver.url)
    end(client)
    eventually(lambda: deliveries(admin, number)[0]["state"] == "DELIVERED")
    with world.master.store.writing() as tx:
        tx.execute(update(DeliveryRow).values(ended_at=now() - timedelta(days=31)))
    world.master.garbage_collector._swept_at = None
    world.master.garbage_collector.tidy()
    assert queued(world) == []


def test_address_of_a_webhook_is_not_in_the_record_of_changes(client, admin, receiver):
    number = make(admin, f"{receiver.url}/canary-secret")
    admin.call("PATCH", f"{PATH}/{number}", {"url": f"{receiver.url}/canary-two"})
    found = admin.get("/api/v1/audit", params={"kind": "webhook"})["entries"]
    assert [entry["verb"] for entry in found] == ["change", "create"]
    assert found[0]["detail"] == "url"
    assert not any("canary" in str(entry) for entry in found)


def shown(world, caller):
    answer = world.http.get("/webhooks", headers={"Accept": "text/html", "Cookie": f"auth={caller.token}"})
    assert answer.status_code == 200, answer.text
    return " ".join(answer.text.split())


def test_page_shows_webhooks_and_what_was_sent_to_the_own_ones(world, client, admin, receiver):
    assert "There is none" in shown(world, client)
    number = make(admin, receiver.url, CANCELED, on_line("<nan>"), CUSTOM)
    experiment_id = end(client)
    eventually(lambda: deliveries(admin, number)[0]["state"] == "DELIVERED")
    page = shown(world, admin)
    assert "CANCELED, log /&lt;nan&gt;/, alerts" in page
    assert f"experiment {experiment_id} CANCELED" in page
    assert "delivered" in page
    assert f"/api/v1/webhooks/{number}/test" in page
    of_others = shown(world, client)
    assert receiver.url not in of_others
    assert f"experiment {experiment_id} CANCELED" not in of_others
    assert f"/api/v1/webhooks/{number}/test" not in of_others
