"""Configs among the files of a context directory, whose secrets are masked."""

from __future__ import annotations

import json

import pytest

from det_keras.config import load_yaml
from det_keras.config.copies import MOST_BYTES, conceal
from det_keras.config.secrets import secret_values

MASK = "********"
CONFIG = """\
# The key is hunter2-token, ask the team.
entrypoint: python3 train.py
data:
  secrets: {token: hunter2-token, pin: 4711, "nested": [hunter2-deep]}   # two
environment:
  environment_variables:
    - WANDB_API_KEY=hunter2-wandb
    - DATABASE=postgresql://me:hunter2-url@host/name
    - HOME=/home/me
  registry_auth: {username: me, password: hunter2-password}
"""
SECRETS = {"hunter2-token", "4711", "hunter2-deep", "hunter2-wandb", "hunter2-url", "hunter2-password"}


def test_secrets_are_what_views_hide() -> None:
    assert secret_values(load_yaml(CONFIG)) == SECRETS
    assert secret_values({"data": {"secrets": {"a": MASK, "b": None, "c": True}}}) == frozenset()
    assert secret_values({"entrypoint": "python3 train.py"}) == frozenset()


def test_config_loses_its_secrets_also_in_comments_and_keeps_the_rest() -> None:
    concealed = conceal(CONFIG.encode(), SECRETS).decode()
    assert not any(secret in concealed for secret in SECRETS)
    environment = load_yaml(concealed)["environment"]
    assert environment["environment_variables"] == [
        f"WANDB_API_KEY={MASK}",
        f"DATABASE=postgresql://me:{MASK}@host/name",
        "HOME=/home/me",
    ]
    assert environment["registry_auth"]["username"] == "me"


@pytest.mark.parametrize(
    "text",
    [
        'entrypoint: a\ndata: {secrets: {token: "hunter2\\u002dtoken"}}',
        "entrypoint: a\ndata:\n  secrets:\n    token: >\n      hunter2\n      token\n",
        "entrypoint: python3 e.py\ndata: {secrets: {token: e}}",
        '{"entrypoint": "a", "data": {"secrets": {"a": "b\\tc"}}}',
    ],
    ids=["escaped", "folded", "short", "json"],
)
def test_secret_that_is_written_otherwise_is_masked_too(text: str) -> None:
    content = conceal(text.encode(), SECRETS)
    concealed = load_yaml(content.decode())
    assert set(concealed["data"]["secrets"].values()) == {MASK}
    assert concealed["entrypoint"] == load_yaml(text)["entrypoint"]
    assert not text.startswith("{") or json.loads(content) == concealed


@pytest.mark.parametrize(
    "content",
    [
        b"TOKEN = 'hunter2-token'\nprint(TOKEN)\n",
        b"database: {password: hunter2-password}\n",
        b"data: {secrets: {token: of another program}}\n",
        b"entrypoint: hunter2-token\n",
        b"\xff\xfe entrypoint hunter2-token",
        b"entrypoint: a\ndata: {secrets: {token: hunter2-token}}\n# " + MOST_BYTES * b"#",
        b"entrypoint: [\n",
    ],
    ids=["script", "settings", "other secrets", "no secret of a config", "no text", "large", "no yaml"],
)
def test_file_that_is_no_config_stays_as_it_is(content: bytes) -> None:
    assert conceal(content, SECRETS) == content


@pytest.mark.parametrize("secrets", [{"hunter2-token"}, set()], ids=["same", "replaced by the command line"])
def test_each_config_with_an_entrypoint_is_masked_whatever_was_submitted(secrets: set[str]) -> None:
    content = b"entrypoint: a\ndata: {secrets: {token: hunter2-other}}\n"
    assert b"hunter2" not in conceal(content, secrets)
