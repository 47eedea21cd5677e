"""The original client's commands about slots and machines that are out of use."""

from __future__ import annotations

import json

import pytest

from stock.conftest import write_experiment
from stock.test_stock_client import created

pytestmark = [pytest.mark.process, pytest.mark.stock]


@pytest.fixture
def administrator(stock, stock_master):
    first = stock_master.home.admin_password_file.read_text()
    stock.out("user", "login", "admin", typed=f"{first}\n")
    return stock


def listed(stock, noun):
    return json.loads(stock.out(noun, "list", "--json"))


def test_slots_are_disabled_and_enabled(administrator):
    slot = listed(administrator, "slot")[0]
    administrator.out("-u", "admin", "slot", "disable", slot["agent_id"], slot["slot_id"])
    found = administrator.sdk(f"""
        from determined.common.api import bindings
        client.get_workspace("Uncategorized")
        answer = bindings.get_GetSlot(client._determined._session, agentId={slot["agent_id"]!r}, slotId="0")
        agent = bindings.get_GetAgent(client._determined._session, agentId={slot["agent_id"]!r}).agent
        slots = bindings.get_GetSlots(client._determined._session, agentId={slot["agent_id"]!r}).slots
        result = [answer.slot.enabled, answer.slot.draining, agent.enabled, len(slots)]
    """)
    assert found == [False, False, True, len(listed(administrator, "slot"))]
    administrator.out("-u", "admin", "slot", "enable", slot["agent_id"], slot["slot_id"])
    assert listed(administrator, "slot")[0]["enabled"]


def test_drained_machine_lets_its_trial_end_and_starts_no_other(administrator, until):
    master = administrator.master.client
    (machine,) = {row["agent_id"] for row in listed(administrator, "slot")}
    config = write_experiment(administrator, "drained", steps=40)
    number = created(administrator.out("experiment", "create", config, "."))
    until(lambda: master.trials(number)[0]["totalBatchesProcessed"] > 0, 60)
    tasks = json.loads(administrator.out("-u", "admin", "agent", "disable", "--drain", "--json", machine))
    assert len(tasks) == 1
    waiting = created(administrator.out("experiment", "create", config, "."))
    (agent,) = listed(administrator, "agent")
    assert (agent["enabled"], agent["draining"]) == (False, True)
    master.wait_for_state(number, "COMPLETED", 90)
    assert {(row["enabled"], row["allocation_id"]) for row in listed(administrator, "slot")} == {
        (False, "FREE")
    }
    assert master.experiment(waiting)["state"] == "STATE_QUEUED"
    administrator.out("-u", "admin", "agent", "enable", machine)
    master.wait_for_state(waiting, "COMPLETED", 90)


def test_trial_of_a_disabled_machine_resumes_when_it_is_enabled(administrator, until):
    master = administrator.master.client
    config = write_experiment(administrator, "disabled", steps=60, restarts=0)
    number = created(administrator.out("experiment", "create", config, "."))
    until(lambda: master.trials(number)[0]["totalBatchesProcessed"] > 5, 60)
    administrator.out("-u", "admin", "agent", "disable", "--all")
    until(lambda: all(row["allocation_id"] == "FREE" for row in listed(administrator, "slot")), 30)
    assert master.experiment(number)["state"] == "STATE_QUEUED"
    administrator.out("-u", "admin", "agent", "enable", "--all")
    master.wait_for_state(number, "COMPLETED", 90)
    assert master.trials(number)[0]["restarts"] == 0
