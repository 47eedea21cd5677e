"""`det experiment share` and `unshare` against masters that share reports, and others."""

from __future__ import annotations

import json

import httpx
import pytest

from cli.conftest import Det
from cli.test_report import asked
from det_keras.home import Home
from det_keras.master import process

__all__ = ["asked"]


@pytest.mark.process
def test_a_report_is_shared_and_unshared(tmp_path):
    det = Det(tmp_path / "root", tmp_path)
    det.write("const.yaml", "entrypoint: 'true'\nsearcher: {name: single, metric: loss}\n")
    try:
        det.out("deploy", "local", "cluster-up")
        det.out("experiment", "create", "const.yaml", "--paused")
        refused = det("experiment", "share", "1")
        assert (refused.returncode, "cluster-up --shared-links" in refused.stderr) == (1, True)
        assert "without --shared-links" in det("deploy", "local", "cluster-up", "--shared-links").stderr
        det.out("deploy", "local", "cluster-down")
        det.out("deploy", "local", "cluster-up", "--shared-links")
        (url,) = det.out("experiment", "share", "1").splitlines()
        assert httpx.get(url, trust_env=False).status_code == 200
        made = json.loads(det.out("experiment", "share", "1", "--days", "30", "--json"))
        listed = det.out("experiment", "share", "1", "--list").splitlines()
        assert listed[0].split() == ["ID", "Made", "by", "Made", "Until"]
        assert listed[-2].endswith("it is revoked")
        assert made["link"]["expiresAt"][:10] in listed[-1]
        assert det.json("experiment", "share", "1", "--list")[1]["id"] == made["link"]["id"]
        assert det.out("experiment", "unshare", "1", str(made["link"]["id"])) == (
            "Revoked 1 link to the report of experiment 1.\n"
        )
        assert httpx.get(made["url"], trust_env=False).status_code == 404
        assert httpx.get(url, trust_env=False).status_code == 200
        assert "has no shared link 9" in det("experiment", "unshare", "1", "9").stderr
        det.out("experiment", "unshare", "1")
        assert httpx.get(url, trust_env=False).status_code == 404
    finally:
        process.stop(Home(det.home), kill_tasks=True)


def test_another_master_shares_nothing(asked, stub):
    stub.answers["/info"] = {"version": "0.38.1"}
    for arguments in (["share", "7"], ["share", "7", "--list"], ["unshare", "7"]):
        done = asked("experiment", *arguments)
        assert done.returncode == 1
        assert "Only a master of det_keras shares reports" in done.stderr
    assert not any(path.endswith("/links") for _, path, _ in stub.calls)
