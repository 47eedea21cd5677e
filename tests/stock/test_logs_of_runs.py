"""The original client's commands about logs: filters, the values that they have, and how long logs are kept."""

from __future__ import annotations

import json

import pytest

from stock.conftest import write_experiment
from stock.test_stock_client import created

pytestmark = [pytest.mark.process, pytest.mark.stock]


@pytest.fixture(scope="module")
def trial(stock):
    number = created(stock.out("experiment", "create", write_experiment(stock, "logged"), "."))
    stock.finish(number)
    return number, stock.table("experiment", "list-trials", number)[0]["Trial ID"]


def test_lines_are_chosen_by_the_values_that_the_log_has(stock, trial):
    _, trial_id = trial
    found = stock.sdk(f"""
        import re
        from determined.common import api
        from determined.common.api import bindings
        client.get_workspace("Uncategorized")
        session = client._determined._session
        (fields,) = bindings.get_TrialLogsFields(session, trialId={trial_id})
        (followed,) = bindings.get_TrialLogsFields(session, trialId={trial_id}, follow=True)
        result = {{"fields": fields.to_json(), "same": fields.to_json() == followed.to_json(), "empty": []}}
        for name, values in fields.to_json().items():
            snake = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            if any(values) and not any(True for _ in api.trial_logs(session, {trial_id}, **{{snake: values[:1]}})):
                result["empty"].append(name)
        result["none"] = [any(True for _ in api.trial_logs(session, {trial_id}, rank_ids=[rank])) for rank in (-1, -2)]
    """)
    assert found["same"]
    assert found["empty"] == []
    assert found["none"] == [True, False]
    assert found["fields"]["agentIds"]
    agent = found["fields"]["agentIds"][0]
    whole = [line for line in stock.out("trial", "logs", trial_id).splitlines() if "||" in line]
    for options in (
        ["--agent-id", agent],
        ["--rank-id", "-1"],
        ["--timestamp-after", "2020-01-01T00:00:00Z"],
    ):
        lines = [line for line in stock.out("trial", "logs", trial_id, *options).splitlines() if "||" in line]
        assert lines == whole, options


def test_days_of_logs_are_said_for_experiments_and_trials(stock, trial):
    number, trial_id = trial
    remaining = f"""
        from determined.common.api import bindings
        client.get_workspace("Uncategorized")
        session = client._determined._session
        result = bindings.get_GetTrialRemainingLogRetentionDays(session, id={trial_id}).remainingDays
    """
    stock.out("experiment", "set", "log-retention", number, "--days", "50")
    assert stock.sdk(remaining) == 50
    stock.out("trial", "set", "log-retention", trial_id, "--forever")
    assert stock.sdk(remaining) == -1
    assert json.loads(stock.out("experiment", "describe", number, "--json"))[0]["config"][
        "retention_policy"
    ] == {"log_retention_days": 50}
