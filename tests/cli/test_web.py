"""`det web` against a master with pages, and another."""

from __future__ import annotations

import pytest

from det_keras.protocol.api.accounts import OWN_VERSION_KEY


@pytest.fixture
def asked(det, stub):
    """`det`, pointed at a master with one experiment."""
    stub.answers["/api/v1/experiments/7"] = {"experiment": {"id": 7}}
    stub.answers["/info"] = {OWN_VERSION_KEY: "1"}
    return det.with_variables(DET_MASTER=stub.url, DET_USER_TOKEN="t")


def test_address_logs_in_and_leads_to_the_experiment(asked, stub):
    stub.answers["/api/v1/auth/web-code"] = {"url": "http://here/login?code=c"}
    assert asked.out("web") == "http://here/login?code=c\n"
    assert asked.out("web", "7") == "http://here/login?code=c&next=%2Fexperiments%2F7\n"


def test_no_address_for_what_is_not_there(asked, stub):
    stub.answers["/api/v1/auth/web-code"] = {"url": "http://here/login?code=c"}
    done = asked("web", "8")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr


def test_page_of_a_real_cluster_is_its_own(asked, stub):
    stub.answers["/info"] = {"version": "0.38.1"}
    assert asked.out("web") == f"{stub.url}/det/\n"
    assert asked.out("web", "7") == f"{stub.url}/det/experiments/7\n"
