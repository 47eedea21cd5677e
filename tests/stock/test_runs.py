"""The original client's calls about many runs and experiments at once."""

from __future__ import annotations

import pytest

from stock.conftest import write_experiment
from stock.test_stock_client import created

pytestmark = [pytest.mark.process, pytest.mark.stock]

SCRIPT = """
    import json
    from determined.common.api import bindings
    client.get_workspace("Uncategorized")
    session = client._determined._session
    def condition(name, value, location="LOCATION_TYPE_RUN"):
        field = {{"columnName": name, "kind": "field", "location": location, "operator": "=",
                  "type": "COLUMN_TYPE_NUMBER", "value": value}}
        group = {{"children": [field], "conjunction": "and", "kind": "group"}}
        return json.dumps({{"filterGroup": group, "showArchived": False}})
    wanted = condition("experimentId", {number})
    found = bindings.post_SearchRuns(session, body=bindings.v1SearchRunsRequest(limit=1, filter=wanted))
    (run,) = found.runs
    def act(name, **fields):
        request = getattr(bindings, f"v1{{name}}RunsRequest")(projectId=1, **fields)
        answer = getattr(bindings, f"post_{{name}}Runs")(session, body=request)
        return [[one.id == run.id, one.error] for one in answer.results]
    result = {{"state": run.state.name, "experiment": run.experiment.id, "resumed": act("Resume", runIds=[run.id])}}
    result["paused"] = act("Pause", runIds=[], filter=wanted)
    result["killed"] = act("Kill", runIds=[run.id])
    search = bindings.v1SearchExperimentsRequest(filter=condition("id", {number}, "LOCATION_TYPE_EXPERIMENT"))
    answer = bindings.post_SearchExperiments(session, body=search)
    result["experiments"] = [one.experiment.id for one in answer.experiments]
"""


def test_runs_are_searched_and_ended(stock):
    number = int(created(stock.out("experiment", "create", write_experiment(stock, "runs"), ".", "--paused")))
    found = stock.sdk(SCRIPT.format(number=number))
    assert found == {
        "state": "PAUSED",
        "experiment": number,
        "resumed": [[True, ""]],
        "paused": [[True, ""]],
        "killed": [[True, ""]],
        "experiments": [number],
    }
    stock.master.client.wait_for_state(number, "CANCELED")
