"""The double against the recorded calls of a real cluster: what it takes and how it answers."""

from __future__ import annotations

import json
import re

import pytest

from cluster import recorded, scripts
from cluster.rules import DEFINED, RECORDED

pytestmark = [pytest.mark.process, recorded.needs_calls]
# Of Determined's own client in each container, and the call that is sent although it is known to fail.
NOT_OURS = {
    "GET /api/v1/allocations/*/resources/*/rendezvous",
    "POST /api/v1/allocations/*/acceleratorData",
    "GET /api/v1/trials/*/searcher/operation",
}


def test_double_takes_what_was_recorded_and_what_is_named_besides():
    found = {recorded.kind(call.method, call.place) for call in recorded.calls()} - NOT_OURS
    assert found == RECORDED
    assert not RECORDED & DEFINED


@pytest.fixture
def things(double, submit, tmp_path):
    """Numbers of what the double has, by the part of a path before them."""
    experiment = submit(scripts.REPORTS, labels=["a"], description="d")
    assert double.wait(experiment) == "STATE_COMPLETED"
    trial = double.trial(experiment)
    (tmp_path / "job.yaml").write_text("entrypoint: exit 0\n")
    job = re.search(r"Created job (\S+)", double.det("job", "run", tmp_path / "job.yaml").stdout)[1]
    checkpoint = double.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"][0]["uuid"]
    return {"experiments": experiment, "trials": trial["id"], "tasks": job, "checkpoints": checkpoint}


def test_answers_have_the_form_of_the_recorded_ones(double, things):
    asked = set()
    with double.session() as session:
        for call in recorded.calls():
            what = recorded.kind(call.method, call.place)
            if call.method != "GET" or call.status != 200 or call.auth != "bearer" or call.content is None:
                continue
            path, _, query = call.path.partition("?")
            path = re.sub(
                r"(experiments|trials|tasks|checkpoints)/[^/?]+(?=/|$)",
                lambda found: f"{found[1]}/{things[found[1]]}",
                path,
            )
            answer = session.get(f"{path}?{query}" if query else path)
            assert recorded.unknown_fields(call.method, call.place, answer) == [], call.path
            asked.add(what)
    assert len(asked) > 10


def test_states_of_the_protocol_are_the_recorded_ones(double, things, tmp_path):
    with double.session() as session:
        assert (
            session.post(
                "/api/v1/experiments",
                {
                    "config": "{name: c, entrypoint: 'true', searcher: {name: single, metric: m}}",
                    "validateOnly": True,
                },
            )["config"]
            is None
        )
        task = session.get(f"/api/v1/tasks/{things['tasks']}")["task"]
        assert task["taskState"] == "GENERIC_TASK_STATE_COMPLETED"
        assert "statusCode" not in task["allocations"][-1]
        jobs = session.get("/api/v1/job-queues-v2", params={"limit": 0})
        assert jobs["pagination"]["total"] == len(jobs["jobs"])


@pytest.mark.parametrize("status", [401, 404, 500])
def test_refusals_have_the_recorded_status(double, status):
    """What the double refuses without any state behind it."""
    refused = {
        401: (
            "/checkpoints/4a3afefe-3bcd-44c2-833a-86fbbea9eee2",
            {"Grpc-Metadata-x-allocation-token": "Bearer x"},
        ),
        404: ("/api/v1/experiments/99999", {}),
        500: ("/api/v1/job-queues-v2?limit=-1", {}),
    }
    path, headers = refused[status]
    statuses = {
        call.status
        for call in recorded.calls()
        if recorded.kind(call.method, call.place).endswith(
            recorded.kind("GET", path.partition("?")[0]).split(" ")[1]
        )
    }
    assert status in statuses
    with double.session() as session:
        answer = session._http.get(path, headers=headers)
    assert answer.status_code == status
    assert json.loads(answer.text)
    double.refused()
