"""`det slot` and `det agent` that take slots out of use, against a real master."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def det(cluster):
    return cluster


def test_slots_and_machines_are_disabled_and_enabled(det):
    (machine,) = {row["agent"] for row in det.json("slot", "list")}
    assert "Only administrators" in det("slot", "disable", machine, "0").stderr
    admin = det.with_variables(
        DET_USER="admin", DET_PASS=(det.home / "admin-password").read_text().strip(), HOME=str(det.directory)
    )
    assert admin.out("slot", "disable", machine, "0") == f"Disabled slot 0 of machine {machine}\n"
    states = {row["slot"]: (row["enabled"], row["draining"]) for row in det.json("slot", "list")}
    assert states[0] == (False, False)
    assert "disabled" in det.out("slot", "list")
    admin.out("slot", "enable", machine, "0")
    assert {row["enabled"] for row in det.json("slot", "list")} == {True}
    printed = admin.out("agent", "disable", machine, "--drain")
    assert printed == f"Disabled machine {machine}\nNothing runs there.\n"
    assert "draining" in det.out("agent", "list")
    assert admin.out("agent", "enable", "--all") == f"Enabled machine {machine}\n"
    assert "enabled" in det.out("agent", "list")
    wrong = admin("agent", "disable", "nope")
    assert (wrong.returncode, "agent 'nope' not found" in wrong.stderr) == (1, True)
    assert admin("agent", "disable").returncode == 2
