"""The original client's commands about workspaces, projects, access tokens and webhooks, and its SDK's."""

from __future__ import annotations

import json

import pytest
from master.receiver import Receiver

from stock.conftest import write_experiment

pytestmark = [pytest.mark.process, pytest.mark.stock]


def test_workspaces_are_made_changed_and_deleted(stock, tmp_path):
    stock.out("workspace", "create", "vision")
    assert [row["Name"] for row in stock.table("workspace", "list")] == ["Uncategorized", "vision"]
    stock.out("workspace", "edit", "vision", "--name", "images")
    stock.out("workspace", "archive", "images")
    assert json.loads(stock.out("workspace", "describe", "images", "--json"))["archived"]
    stock.out("workspace", "unarchive", "images")
    assert "default" in stock.out("workspace", "list-pools", "images")
    storage = tmp_path / "storage.yaml"
    storage.write_text("type: shared_fs\nhost_path: /tmp/yaml\n")
    stock.out("workspace", "create", "stored", "--checkpoint-storage-config-file", str(storage))
    described = json.loads(stock.out("workspace", "describe", "stored", "--json"))
    assert described["checkpointStorageConfig"]["host_path"] == "/tmp/yaml"
    for name in ("images", "stored"):
        stock.out("workspace", "delete", name, "--yes")
    assert [row["Name"] for row in stock.table("workspace", "list")] == ["Uncategorized"]
    assert "already" in stock.refused("workspace", "create", "Uncategorized")


def test_projects_hold_experiments(stock, paused_experiment):
    stock.out("workspace", "create", "team")
    stock.out("project", "create", "team", "digits", "--description", "Handwriting")
    stock.out("project", "edit", "team", "digits", "--new_name", "letters")
    stock.out("experiment", "move", str(paused_experiment), "team", "letters")
    listed = stock.table("project", "list-experiments", "team", "letters")
    assert [row["ID"] for row in listed] == [str(paused_experiment)]
    described = json.loads(stock.out("project", "describe", "team", "letters", "--json"))
    found = described[0] if isinstance(described, list) else described
    assert (found["name"], found["description"], found["numExperiments"]) == ("letters", "Handwriting", 1)
    stock.out("project", "archive", "team", "letters")
    assert "archived" in stock.refused(
        "experiment", "move", str(paused_experiment), "Uncategorized", "Uncategorized"
    )
    stock.out("project", "unarchive", "team", "letters")
    stock.out("experiment", "move", str(paused_experiment), "Uncategorized", "Uncategorized")
    stock.out("project", "delete", "team", "letters", "--yes")
    assert stock.table("workspace", "list-projects", "team") == []
    stock.out("workspace", "delete", "team", "--yes")


def test_experiment_is_created_in_a_project(stock):
    stock.out("workspace", "create", "new")
    stock.out("project", "create", "new", "digits")
    name = write_experiment(stock, "placed")
    place = ("--config", "workspace=new", "--config", "project=digits")
    created = stock.out("experiment", "create", name, ".", "--paused", *place)
    number = created.split("Created experiment ")[1].split()[0]
    assert [row["ID"] for row in stock.table("project", "list-experiments", "new", "digits")] == [number]
    stock.out("experiment", "kill", number)
    stock.out("experiment", "move", number, "Uncategorized", "Uncategorized")
    stock.out("workspace", "delete", "new", "--yes")


def test_access_tokens_are_made_shown_changed_and_revoked(stock):
    made = json.loads(
        stock.out("token", "create", "--description", "nightly", "--expiration-days", "2", "--json")
    )
    number = str(made["tokenId"])
    (listed,) = stock.table("token", "list")
    assert (listed["ID"], listed["Description"], listed["Revoked"]) == (number, "nightly", "False")
    assert "Successfully updated" in stock.out("token", "edit", number, "--description", "weekly")
    assert "weekly" in stock.out("token", "describe", number)
    assert "Authenticated as determined" in stock.out("token", "login", made["token"])
    stock.out("user", "login", "determined", typed=f"{stock.environment['DET_PASS']}\n")
    assert "Successfully revoked" in stock.out("token", "revoke", number)
    assert stock.table("token", "list") == []


def test_templates_complete_configs(stock, tmp_path):
    part = tmp_path / "template.yaml"
    part.write_text("max_restarts: 4\n")
    stock.out("template", "create", "base", str(part))
    assert [row["Name"] for row in stock.table("template", "list")] == ["base"]
    part.write_text("max_restarts: 2\nlabels: [of-a-template]\n")
    stock.out("template", "set-value", "config", "base", str(part))
    assert "max_restarts: 2" in stock.out("template", "describe", "base")
    name = write_experiment(stock, "templated")
    created = stock.out("experiment", "create", name, ".", "--paused", "--template", "base")
    number = created.split("Created experiment ")[1].split()[0]
    assert "of-a-template" in stock.out("experiment", "config", number)
    refused = stock.refused("command", "run", "--template", "nope", "true")
    assert "template 'nope' not found" in refused
    stock.out("template", "remove", "base")
    stock.out("experiment", "kill", number)


def test_sdk_has_workspaces_and_projects(stock):
    result = stock.sdk("""
        made = client.create_workspace("sdk")
        project = made.create_project("digits", description="d")
        project.set_name("letters")
        project.add_note("a", "b")
        project.reload()
        project.archive()
        project.unarchive()
        result = {
            "project": [project.name, project.description, [note["name"] for note in project.notes]],
            "projects": [one.name for one in made.list_projects()],
            "workspaces": [one.name for one in client.list_workspaces()],
        }
        made.delete_project("letters")
        client.delete_workspace("sdk")
        result["first"] = client.get_workspace("Uncategorized").id
    """)
    assert result["project"] == ["letters", "d", ["a"]]
    assert (result["projects"], result["workspaces"]) == (["letters"], ["Uncategorized", "sdk"])
    assert result["first"] == 1


def test_webhooks_are_told_of_states_lines_and_alerts(stock):
    stock.out("workspace", "create", "hooks")
    receiver = Receiver()
    created = stock.sdk(f"""
        from determined.common.api import bindings
        from determined.experimental import client
        client.login()
        session = client._determined._session
        workspace = next(one for one in bindings.get_GetWorkspaces(session).workspaces if one.name == "hooks").id
        state = bindings.v1Trigger(
            triggerType=bindings.v1TriggerType.EXPERIMENT_STATE_CHANGE, condition={{"state": "COMPLETED"}}
        )
        line = bindings.v1Trigger(
            triggerType=bindings.v1TriggerType.TASK_LOG, condition={{"regex": "run 1 starts at 0"}}
        )
        custom = bindings.v1Trigger(triggerType=bindings.v1TriggerType.CUSTOM)
        made = bindings.post_PostWebhook(session, body=bindings.v1Webhook(
            url="{receiver.url}",
            webhookType=bindings.v1WebhookType.DEFAULT,
            triggers=[state, line, custom],
            mode=bindings.v1WebhookMode.SPECIFIC,
            name="mine",
            workspaceId=workspace,
        )).webhook
        listed = bindings.get_GetWebhooks(session).webhooks
        assert [one.name for one in listed if one.id == made.id] == ["mine"]
        bindings.patch_PatchWebhook(session, body=bindings.v1PatchWebhook(url="{receiver.url}/new"), id=made.id)
        result = [made.id, bindings.post_TestWebhook(session, id=made.id).completed]
    """)
    webhook_id, is_completed = created
    assert is_completed
    assert receiver.requests[0][0] == "/hook/new"
    stock.out("project", "create", "hooks", "digits")
    name = write_experiment(stock, "told")
    place = ("--config", "workspace=hooks", "--config", "project=digits")
    named = ("--config", "integrations.webhooks.webhook_name=['mine']")
    number = (
        stock.out("experiment", "create", name, ".", *place, *named)
        .split("Created experiment ")[1]
        .split()[0]
    )
    stock.finish(number)
    stock.sdk(f"""
        from determined.common.api import bindings
        client.login()
        session = client._determined._session
        data = bindings.v1CustomWebhookEventData(title="Done", description="", level=bindings.v1LogLevel.WARNING)
        bindings.post_PostWebhookEventData(
            session, body=bindings.v1PostWebhookEventDataRequest(data=data, experimentId={number})
        )
        result = None
    """)
    told = receiver.wait(4)[1:]
    kinds = {body["event_type"]: body["event_data"] for body in told}
    assert set(kinds) == {"EXPERIMENT_STATE_CHANGE", "TASK_LOG", "CUSTOM"}
    assert kinds["EXPERIMENT_STATE_CHANGE"]["experiment"]["state"] == "COMPLETED"
    assert kinds["CUSTOM"]["custom_data"]["title"] == "Done"
    stock.sdk(f"""
        from determined.common.api import bindings
        client.login()
        bindings.delete_DeleteWebhook(client._determined._session, id={webhook_id})
        result = None
    """)
    receiver.close()
    stock.out("experiment", "delete", number, "--yes")
