"""Calls of the original that this master does not serve say what stands in for them."""

from __future__ import annotations

import re

import pytest

from det_keras.cli.command_tree import command_tree
from det_keras.cli.main import command_parser
from det_keras.master.server.unserved import _INSTEAD


@pytest.mark.parametrize("word", sorted(word for word in _INSTEAD if "/" not in word))
def test_sentence_names_commands_that_exist(client, word):
    answer = client.post(f"/api/v1/{word}/anything", status=501)
    text = answer["error"]["error"]
    assert text.startswith(f"POST /api/v1/{word}/anything is not served by this master. ")
    known = {command.path for command in command_tree(command_parser()).walk()}
    assert {f"det {command}" for command in re.findall(r"`det ([a-z -]+)`", text)} <= known


def test_groups_of_users_are_not_served(client):
    body = {"userIds": [1], "addGroups": [1], "removeGroups": []}
    text = client.call("PATCH", "/api/v1/users/assignments", body, status=501)["error"]["error"]
    assert text.startswith("PATCH /api/v1/users/assignments is not served by this master. Every user may")


def test_other_calls_are_named_alone(client):
    answer = client.get("/api/v1/nothing", status=501)
    assert answer["error"]["error"] == "GET /api/v1/nothing is not served by this master."
