"""`det token` against a real master."""

from __future__ import annotations

import dataclasses
import json

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def det(cluster):
    cluster.write("const.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: loss}\n")
    return cluster


def test_program_submits_with_a_token_until_it_is_revoked(det, tmp_path):
    url = json.loads((det.home / "master.json").read_text())["url"]
    number, token = (line.split()[1] for line in det.out("token", "create", "-d", "nightly").splitlines())
    variables = {"DET_MASTER": url, "DET_USER": "determined", "DET_USER_TOKEN": token}
    elsewhere = dataclasses.replace(det, home=tmp_path / "elsewhere", variables=variables)
    assert elsewhere.out("user", "whoami").endswith("as determined\n")
    assert "Created experiment" in elsewhere.out("experiment", "create", "const.yaml", "--paused")
    det.out("token", "edit", number, "-d", "weekly")
    (listed,) = det.json("token", "list")
    assert (listed["description"], listed["expiry"] is not None) == ("weekly", True)
    assert det.out("token", "revoke", number) == f"Revoked token {number}.\n"
    refused = elsewhere("user", "whoami")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    assert det.json("token", "list") == []
    assert "revoked" in det.out("token", "describe", number)


def test_token_logs_in_and_may_have_no_end(det, tmp_path):
    url = json.loads((det.home / "master.json").read_text())["url"]
    made = det.json("token", "create", "--forever")
    other = dataclasses.replace(det, home=tmp_path / "other", variables={"DET_MASTER": url})
    assert other.out("token", "login", made["token"]) == "Authenticated as determined.\n"
    assert other.out("experiment", "list")
    assert det.out("token", "list").splitlines()[-1].endswith("never")
    assert "invalid" in other("token", "login", "a guess").stderr
    assert "Only administrators" in det("token", "create", "admin").stderr
    assert "not found" in det("token", "revoke", "99").stderr
