"""The rules by which a Determined 0.38.1 master refuses calls that ours takes, and the form of its answers.

All of them were recorded from a running cluster; none was derived from what this project sends.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import anyio
import yaml

from cluster import expconf, recorded

_ID = r"[^/]+"
#: The calls of the product that were recorded from the real master.
RECORDED = frozenset(
    {
        "DELETE /api/v1/experiments/*",
        "GET /api/v1/agents",
        "GET /api/v1/allocations/*/signals/preemption",
        "GET /api/v1/checkpoints/*",
        "GET /api/v1/experiments",
        "GET /api/v1/experiments/*",
        "GET /api/v1/experiments/*/checkpoints",
        "GET /api/v1/experiments/*/searcher/best_searcher_validation_metric",
        "GET /api/v1/experiments/*/trials",
        "GET /api/v1/job-queues-v2",
        "GET /api/v1/master",
        "GET /api/v1/me",
        "GET /api/v1/resource-pools",
        "GET /api/v1/runs/*/metadata",
        "GET /api/v1/tasks",
        "GET /api/v1/tasks/*",
        "GET /api/v1/tasks/*/context_directory",
        "GET /api/v1/tasks/*/logs",
        "GET /api/v1/trials/*",
        "GET /api/v1/trials/*/checkpoints",
        "GET /api/v1/trials/*/logs",
        "GET /api/v1/trials/*/workloads",
        "GET /checkpoints/*",
        "GET /info",
        "PATCH /api/v1/checkpoints",
        "PATCH /api/v1/trials/*",
        "POST /api/v1/allocations/*/signals/ack_preemption",
        "POST /api/v1/auth/login",
        "POST /api/v1/checkpoints",
        "POST /api/v1/experiments",
        "POST /api/v1/experiments/*/activate",
        "POST /api/v1/experiments/*/archive",
        "POST /api/v1/experiments/*/cancel",
        "POST /api/v1/experiments/*/kill",
        "POST /api/v1/experiments/*/pause",
        "POST /api/v1/experiments/*/unarchive",
        "POST /api/v1/experiments/continue",
        "POST /api/v1/generic-tasks",
        "POST /api/v1/preview-hp-search",
        "POST /api/v1/runs/*/metadata",
        "POST /api/v1/runs/start",
        "POST /api/v1/task/logs",
        "POST /api/v1/tasks/*/kill",
        "POST /api/v1/trials/*/early_exit",
        "POST /api/v1/trials/*/metrics",
        "POST /api/v1/trials/*/progress",
        "POST /api/v1/trials/*/runner/metadata",
        "POST /api/v1/trials/*/start",
        "PUT /api/v1/experiments/by-external-id/*",
        "PUT /api/v1/trials",
    }
)
#: Calls of the product that the definition of the real master's API has, and that nothing recorded.
DEFINED = frozenset(
    {
        "DELETE /api/v1/checkpoints",
        "GET /api/v1/allocations/*",
        "GET /api/v1/experiments/*/model_def",
        "GET /api/v1/trials/metrics/trial_metrics",
        "GET /api/v1/trials/metrics/training_metrics",
        "GET /api/v1/trials/metrics/validation_metrics",
        "GET /api/v1/trials/time-series",
        "GET /api/v1/users",
        "PATCH /api/v1/experiments/*",
        "POST /api/v1/allocations/*/ready",
        "POST /api/v1/auth/logout",
        "POST /api/v1/checkpoints/*/metadata",
        "POST /api/v1/checkpoints/rm",
        "POST /api/v1/job-queues",
        "POST /api/v1/trials",
        "POST /api/v1/trials/*/kill",
    }
)
#: Known to fail there, and sent on purpose by clients that fall back.
_TOLERATED = re.compile("GET /api/v1/trials/[0-9]+/searcher/operation")
_LIMITED = re.compile("/api/v1/(trials|experiments)/[0-9]+/checkpoints|/api/v1/job-queues-v2")
_TASK_TOKEN = b"grpc-metadata-x-allocation-token"
_SUBMISSION = re.compile(
    f"POST /api/v1/experiments|PUT /api/v1/experiments/by-external-id/{_ID}|POST /api/v1/preview-hp-search"
)
_REPORTS = re.compile("POST /api/v1/trials/[0-9]+/(metrics|early_exit)")
_GENERIC_KEYS = frozenset(
    {"bind_mounts", "environment", "resources", "entrypoint", "work_dir", "debug", "pbs", "slurm"}
)
# How long a poll that our master would answer at once is held.
_PREEMPTION_S = 5.0
_SITE_IMAGE = "determinedai/environments:tensorflow"

Application = Callable[..., Any]


class RefusedError(Exception):
    """A call that the real master would refuse.

    Args:
        status: of the answer.
        message: of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class StrictMiddleware:
    """Lets only those calls pass that the real master would take, and gives answers its form.

    Args:
        app: our master.
        storage: the cluster's own `checkpoint_storage`.
        violations: file to which each refused call is appended.
        is_stopped_by_search: tells whether the trial of an allocation was stopped by its search.
    """

    def __init__(
        self,
        app: Application,
        storage: Mapping[str, Any],
        violations: Path,
        is_stopped_by_search: Callable[[str], bool],
    ) -> None:
        self._app = app
        self._storage = storage
        self._violations = violations
        self._is_stopped_by_search = is_stopped_by_search
        self._with_metadata: set[str] = set()
        self._left_paused: set[int] = set()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # The rules read answers, so they must not be compressed.
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        scope = {**scope, "headers": headers}
        body = await _whole_body(receive)
        call = f"{scope['method']} {scope['path']}"
        try:
            scope, body = self._checked(call, scope, body)
        except RefusedError as refusal:
            if not _TOLERATED.fullmatch(call):
                self._record(call, refusal, body)
            await _answer(send, refusal.status, {"error": {"code": 13, "error": str(refusal)}})
            return
        if call.endswith("/signals/preemption") and self._is_stopped_by_search(scope["path"].split("/")[4]):
            await anyio.sleep(_PREEMPTION_S)
        sent = json.loads(body) if body else {}
        collected = _Answer(send, lambda status, content: self._rewritten(call, sent, status, content))
        await self._app(scope, _replay(body), collected)

    def _checked(self, call: str, scope: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if _TOLERATED.fullmatch(call):
            raise RefusedError(501, "Method Not Allowed")
        if recorded.kind(*call.split(" ", 1)) not in RECORDED | DEFINED:
            raise RefusedError(404, "Not Found")
        query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        if _LIMITED.fullmatch(scope["path"]) and int(query.get("limit", ["0"])[0]) < 0:
            raise RefusedError(500, "LIMIT must not be negative")
        if call.startswith("GET /checkpoints/") and any(name == _TASK_TOKEN for name, _ in scope["headers"]):
            # Only a user may download.
            raise RefusedError(401, "Unauthorized")
        number = scope["path"].split("/")[4:5]
        if re.fullmatch("POST /api/v1/runs/[0-9]+/metadata", call):
            self._with_metadata.update(number)
        if call.endswith("/start") and self._with_metadata.intersection(number):
            raise RefusedError(500, "failed to parse map into proto")
        content = json.loads(body) if body else {}
        if _SUBMISSION.fullmatch(call):
            content["config"] = self._submitted(call, content)
        elif call == "POST /api/v1/experiments/continue" and content.get("overrideConfig"):
            searcher = _yaml_1_1(content["overrideConfig"]).get("searcher")
            if searcher is not None and "name" not in searcher:
                # The method decides which other keys it may have.
                raise RefusedError(500, "failed to apply override config: searcher.name is required")
        elif call == "POST /api/v1/generic-tasks":
            scope = {**scope, "path": "/api/v1/commands", "raw_path": b"/api/v1/commands"}
            content = _as_command(content)
        elif call.startswith("POST /api/v1/tasks/"):
            path = scope["path"].replace("/tasks/", "/commands/")
            scope, content = {**scope, "path": path, "raw_path": path.encode()}, {}
        else:
            return scope, body
        return scope, json.dumps(content).encode()

    def _submitted(self, call: str, content: Mapping[str, Any]) -> Any:
        given = content["config"]
        config = _yaml_1_1(given) if isinstance(given, str) else given
        storage = {**self._storage, **(config.get("checkpoint_storage") or {})}
        # What the cluster's own settings add before it judges.
        whole = {
            "name": "Experiment (of the cluster)",
            **config,
            "checkpoint_storage": storage
            if storage["type"] == self._storage["type"]
            else config["checkpoint_storage"],
            "environment": {"image": _SITE_IMAGE, **(config.get("environment") or {})},
            "reproducibility": {"experiment_seed": 1, **(config.get("reproducibility") or {})},
        }
        if expconf.directory() is not None and (found := expconf.problems(whole)):
            raise RefusedError(500, f"invalid experiment configuration: {found}")
        stored = {**config, "checkpoint_storage": whole["checkpoint_storage"]}
        return yaml.safe_dump(stored) if isinstance(given, str) else stored

    def _rewritten(self, call: str, sent: Mapping[str, Any], status: int, content: Any) -> tuple[int, Any]:
        if call.endswith("/signals/preemption") and content.get("preempt"):
            # A trial that its search stopped is not told: the master looks as if nothing happened.
            content["preempt"] = not self._is_stopped_by_search(call.split("/")[4])
        if call == "GET /info":
            content.pop("det_keras_version")
        if status in (400, 409, 422) and (_SUBMISSION.fullmatch(call) or _REPORTS.fullmatch(call)):
            status = 500
        if call == "POST /api/v1/generic-tasks" and status == 200:
            return status, {"taskId": content["command"]["id"], "warnings": []}
        content = _in_its_form(content, call)
        if status != 200:
            return status, content
        method, place = call.split(" ", 1)
        what = recorded.kind(method, place)
        if what == "POST /api/v1/experiments" and sent.get("validateOnly"):
            content["config"] = None
        elif what == "GET /api/v1/tasks/*":
            _set_task_state(content["task"])
        elif what == "GET /api/v1/allocations/*" and content["allocation"].get("statusCode") == 0:
            del content["allocation"]["statusCode"]
        elif what == "PATCH /api/v1/trials/*":
            # A state that is not one of four leaves the experiment as if nothing had happened.
            number = content["trial"]["experimentId"]
            known = sent.get("state") != "STATE_CANCELED"
            (self._left_paused.discard if known else self._left_paused.add)(number)
        elif what == "GET /api/v1/experiments/*" and content["experiment"]["id"] in self._left_paused:
            content["experiment"]["state"] = "STATE_PAUSED"
        return status, recorded.fitted(method, place, content)

    def _record(self, call: str, refusal: RefusedError, body: bytes) -> None:
        with self._violations.open("a", encoding="utf-8") as file:
            file.write(
                json.dumps([call, refusal.status, str(refusal), body[:2000].decode(errors="replace")]) + "\n"
            )


def _in_its_form(content: Any, call: str) -> Any:
    """Return an answer as the real master forms it."""
    if isinstance(content, list):
        return [_in_its_form(value, call) for value in content]
    if not isinstance(content, dict):
        return content
    result = {}
    for name, value in content.items():
        if name == "config" and isinstance(value, dict):
            result[name] = _with_its_defaults(value)
        elif name in ("metadata", "hparams", "hyperparameters", "summaryMetrics", "avgMetrics"):
            result[name] = value if value is not None else {}
        elif name == "searcherType":
            result[name] = json.dumps(value)
        elif name == "taskType":
            # The double keeps generic tasks as commands.
            result[name] = value.replace("COMMAND", "GENERIC")
        elif name == "searcherMetricValue":
            result[name] = 0
        elif value is not None:
            # A field without a value is left out.
            result[name] = _in_its_form(value, call)
    return result


def _set_task_state(task: dict[str, Any]) -> None:
    """Set the state of a generic task, which that master tells in place of the exit code."""
    if task["taskType"] != "TASK_TYPE_GENERIC":
        return
    allocation = task["allocations"][-1] if task["allocations"] else {}
    state = "ACTIVE"
    if allocation.get("endTime"):
        state = "COMPLETED" if allocation.get("statusCode") == 0 else "ERROR"
    task["taskState"] = f"GENERIC_TASK_STATE_{state}"


def _with_its_defaults(config: dict[str, Any]) -> dict[str, Any]:
    result = dict(config)
    if result.get("preemption_timeout") is None:
        result["preemption_timeout"] = 3600
    resources = result.get("resources")
    if isinstance(resources, dict) and resources.get("priority") is None:
        result["resources"] = {**resources, "priority": 42}
    return result


class _Booleans(yaml.SafeLoader):
    """Reads single letters as booleans, as the master's parser does."""


_Booleans.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))
_Booleans.add_constructor(
    "tag:yaml.org,2002:bool",
    lambda loader, node: node.value.lower() in ("y", "yes", "true", "on"),
)


def _yaml_1_1(text: str) -> Any:
    config = yaml.load(text, Loader=_Booleans)
    _refuse_special_floats(config)
    return _integers(config)


def _refuse_special_floats(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise RefusedError(500, "yaml: cannot convert .inf or .nan to JSON")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _refuse_special_floats(below)


def _integers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _integers(below) for name, below in value.items()}
    if isinstance(value, list):
        return [_integers(below) for below in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_command(task: Mapping[str, Any]) -> dict[str, Any]:
    config = _yaml_1_1(task["config"])
    unknown = set(config) - _GENERIC_KEYS
    if unknown:
        raise RefusedError(500, f"yaml unmarshaling generic task config: unknown field {sorted(unknown)}")
    if not isinstance(config.get("entrypoint"), list):
        raise RefusedError(
            500, "cannot unmarshal string into field GenericTaskConfig.entrypoint of type []string"
        )
    # Ours refuses the variable in a config, because it sets it itself: the container does that below.
    environment = dict(config.get("environment") or {})
    entries = environment.get("environment_variables") or []
    environment["environment_variables"] = [
        entry.replace("DET_TASK_CONFIG=", "GIVEN_TASK_CONFIG=") for entry in entries
    ]
    return {"config": {**config, "environment": environment}, "files": task.get("contextDirectory") or []}


class _Answer:
    """Collects an answer that is JSON, and passes on others as they come."""

    def __init__(self, send: Any, rewrite: Callable[[int, Any], tuple[int, Any]]) -> None:
        self._send = send
        self._rewrite = rewrite
        self._start: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = dict(message["headers"])
            # Streams have no length.
            if (
                headers.get(b"content-type", b"").startswith(b"application/json")
                and b"content-length" in headers
            ):
                self._start = message
                return
        elif self._start is not None:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body"):
                text = b"".join(self._parts)
                status, content = self._rewrite(self._start["status"], json.loads(text) if text else {})
                await _answer(self._send, status, content)
            return
        await self._send(message)


async def _answer(send: Any, status: int, content: Any) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def _whole_body(receive: Any) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes) -> Any:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        # Only a client that leaves ends a stream.
        await anyio.sleep_forever()
        raise AssertionError

    return receive
