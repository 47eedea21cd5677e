"""`det user`: an administrator makes users, who log in and change their passwords."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.process

PASSWORD = "A long one 4 ada"


@pytest.fixture(scope="module")
def det(cluster):
    admin = (cluster.home / "admin-password").read_text().strip()
    assert cluster.with_variables(DET_USER="admin", DET_PASS=admin)("user", "login").returncode == 0
    return cluster


def names(det, *options):
    return {
        row.split()[0]: row.split()[-1]
        for row in det.out("-u", "admin", "user", "list", *options).splitlines()[2:]
    }


def test_users_are_created_by_administrators_alone(det):
    refused = det("-u", "determined", "user", "create", "ada", input=f"{PASSWORD}\n")
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False)
    weak = det("-u", "admin", "user", "create", "ada", input="short\n")
    assert weak.returncode == 1
    assert det("-u", "admin", "user", "create", "ada", input=f"{PASSWORD}\n").stdout == "Created user ada\n"
    assert names(det)["ada"] == "yes"
    entered = det("user", "login", "ada", input=f"{PASSWORD}\n")
    assert entered.stdout.endswith("as ada\n"), entered.stderr
    assert "as ada" in det.out("-u", "ada", "user", "whoami")


def test_password_and_access_change(det):
    changed = det("-u", "ada", "user", "change-password", input=f"{PASSWORD} again\n")
    assert "Changed the password of ada" in changed.stdout, changed.stderr
    assert det("user", "login", "ada", input=f"{PASSWORD}\n").returncode == 1
    assert det("user", "login", "ada", input=f"{PASSWORD} again\n").returncode == 0
    assert "ada" in det.out("-u", "admin", "user", "deactivate", "ada")
    assert "ada" not in names(det)
    assert names(det, "--all")["ada"] == "no"
    assert det("-u", "ada", "user", "whoami").returncode == 1
    det.out("-u", "admin", "user", "activate", "ada")
    assert det("user", "login", "ada", input=f"{PASSWORD} again\n").returncode == 0
    assert "not found" in det("-u", "admin", "user", "deactivate", "nobody").stderr
