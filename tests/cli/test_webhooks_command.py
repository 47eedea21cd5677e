"""`det webhook` against a real master."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


def test_webhooks_are_made_shown_changed_and_deleted(cluster):
    det = cluster
    det.out("workspace", "create", "hooks")
    place = ("--workspace", "hooks", "--name", "mine")
    assert "--on-state" in det("webhook", "create", "https://192.0.2.1/hook", *place).stderr
    local = det("webhook", "create", "http://127.0.0.1:1/hook", "--on-alert", *place)
    assert (local.returncode, "DET_KERAS_WEBHOOK_NETWORKS" in local.stderr) == (1, True)
    told = ("--on-state", "ERROR", "--on-log", "nan", "--on-alert")
    assert "Only the owner" in det("webhook", "create", "https://93.184.215.14/hook", *told).stderr
    made = det.out("webhook", "create", "https://93.184.215.14/hook", *told, *place, "--specific", "--slack")
    number = made.split("webhook ")[1].split(".")[0]
    row = det.out("webhook", "list").splitlines()[-1]
    assert "ERROR, log /nan/, alerts" in row
    assert "hooks" in row
    det.out("webhook", "edit", number, "--url", "https://93.184.215.14/other")
    described = det.out("webhook", "describe", number)
    assert "https://93.184.215.14/other" in described
    assert "those that name it" in described
    assert det.json("webhook", "describe", number)["webhookType"] == "WEBHOOK_TYPE_SLACK"
    assert det.json("webhook", "deliveries", number) == []
    assert det.out("webhook", "delete", number) == f"Deleted webhook {number}.\n"
    assert "no webhook" in det("webhook", "describe", number).stderr
