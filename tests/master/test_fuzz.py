"""Every call of the master with bodies, parameters and paths that a machine thinks up.

No answer is a fault of the master's, none takes long, and no traceback is in its log. 1,000 requests
by default; DET_KERAS_FUZZ=5000 makes it as many as it says.
"""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from master.fakes import SINGLE

schemathesis = (
    __import__("schemathesis")
    if os.environ.get("CI")
    else pytest.importorskip("schemathesis", minversion="4")
)

REQUESTS = int(os.environ.get("DET_KERAS_FUZZ", "1000"))
LONGEST_S = 5.0
UUID = "11111111-2222-3333-4444-555555555555"
# The caller would lock himself out; a command that only the machine thought up is never run, since nothing here
# starts processes.
NOT_CALLED = {("POST", "/api/v1/auth/logout")}


class Known:
    """A master on which there is something of everything, and what it is called."""

    def __init__(self, world: Any, config: str = SINGLE) -> None:
        self.world = world
        client = world.client
        self.experiment_id, self.trial, self.allocation_id = world.launch(config)
        body = {"uuid": UUID, "taskId": self.trial["taskId"], "metadata": {"steps_completed": 1}}
        client.post("/api/v1/checkpoints", body)
        client.report(self.trial["id"], "validation", 1, {"loss": 1.0})
        media = {"kind": "text", "name": "known", "step": 1, "size": 1, "file": f"{'0' * 20}-1.txt"}
        client.post(f"/api/v1/trials/{self.trial['id']}/media", media)
        job = client.post("/api/v1/commands", {"config": {"entrypoint": ["true"]}})
        self.job_id = job["command"]["id"]
        version = {"checkpointUuid": UUID, "createModel": True, "aliases": ["champion"]}
        client.post("/api/v1/models/known/versions", version)

    def name(self, parameter: str, path: str) -> str:
        """Return what is there under a parameter of a path."""
        names = {
            "experiment_id": str(self.experiment_id),
            "trial_id": str(self.trial["id"]),
            "run_id": str(self.trial["id"]),
            "uuid": UUID,
            "user_id": "2",
            "username": "determined",
            "media_id": "1",
            "model": "known",
            "version": "1",
            "alias": "champion",
            "webhook_id": "1",
            "allocation_id": self.allocation_id,
            "task_id": self.job_id if "commands" in path else self.trial["taskId"],
        }
        return names.get(parameter, "x")


def send(known: Known, case: Any, *, is_there: bool) -> Any:
    """Send a request that schemathesis made up; with `is_there` to something that exists."""
    if is_there:
        case.path_parameters = {name: known.name(name, case.path) for name in case.path_parameters or {}}
    arguments = case.as_transport_kwargs(base_url="http://testserver")
    headers = {**dict(arguments.get("headers") or {}), "Authorization": f"Bearer {known.world.client.token}"}
    headers.setdefault("Accept", "application/gzip")
    query = dict(arguments.get("params") or {})
    # These wait on purpose.
    if "signals/preemption" in case.path:
        query = {"timeoutSeconds": "0"}
    elif case.path.endswith(("/logs", "/logs/fields")):
        query["follow"] = "false"
    return known.world.http.request(
        arguments["method"],
        arguments["url"],
        params=query,
        headers={name: value for name, value in headers.items() if _can_travel(value)},
        content=_content(arguments),
        follow_redirects=False,
    )


def _can_travel(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _content(arguments: dict[str, Any]) -> bytes | None:
    if "json" in arguments and arguments["json"] is not None:
        return json.dumps(arguments["json"]).encode("utf-8", "surrogatepass")
    data = arguments.get("data")
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data


def test_no_request_is_too_much_for_the_master(world, caplog):
    known = Known(world)
    schema = schemathesis.openapi.from_dict(world.client.get("/openapi.json"))
    operations = [
        one.ok()
        for one in schema.get_all_operations()
        if (one.ok().method.upper(), one.ok().path) not in NOT_CALLED
    ]
    count = {"sent": 0}
    faults: dict[str, str] = {}
    modes = schemathesis.GenerationMode
    for operation in operations:
        each = max(1, -(-REQUESTS // len(operations)))
        cases = st.one_of(
            [operation.as_strategy(generation_mode=mode) for mode in (modes.POSITIVE, modes.NEGATIVE)]
        )

        @settings(
            max_examples=each,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases, is_there=st.booleans())
        def run(case, is_there):
            began = time.monotonic()
            try:
                answer = send(known, case, is_there=is_there)
            except httpx.InvalidURL:
                # Longer than an address may be: no client sends it.
                reject()
            took_s = time.monotonic() - began
            count["sent"] += 1
            # 501 names a call that is not served.
            if (answer.status_code >= 500 and answer.status_code != 501) or took_s > LONGEST_S:
                what = f"{case.method} {case.path}"
                faults.setdefault(f"{what} {answer.status_code}", f"{took_s:.1f} s: {answer.text[:300]}")

        run()
    assert count["sent"] >= min(REQUESTS, 900)
    assert not faults, "\n".join(f"{name}: {text}" for name, text in faults.items())
    logged = [record for record in caplog.records if record.levelno >= logging.ERROR or record.exc_info]
    assert not logged, logged[0].getMessage()
    world.client.get("/api/v1/me")
