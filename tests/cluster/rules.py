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

from cluster import expconf

_ID = r"[^/]+"
#: The calls of the product that the real master knows.
_ROUTES = re.compile(
    "|".join(
        f"(?:{route})"
        for route in (
            "(GET|HEAD) /info",
            f"GET /checkpoints/{_ID}",
            "GET /experiments/[0-9]+/preview_gc",
            "POST /task-logs",
            "GET /api/v1/(master|me|users|agents|resource-pools|job-queues-v2|workspaces|master/config|master/logs)",
            "POST /api/v1/auth/(login|logout)",
            "(GET|POST) /api/v1/experiments",
            "(GET|PATCH|DELETE) /api/v1/experiments/[0-9]+",
            "POST /api/v1/experiments/[0-9]+/(activate|pause|cancel|kill|archive|unarchive)",
            "GET /api/v1/experiments/[0-9]+/(trials|checkpoints|model_def)",
            "GET /api/v1/experiments/[0-9]+/searcher/best_searcher_validation_metric",
            "POST /api/v1/experiments/continue",
            f"PUT /api/v1/experiments/by-external-id/{_ID}",
            "POST /api/v1/preview-hp-search",
            "(POST|PUT) /api/v1/trials",
            "(GET|PATCH) /api/v1/trials/[0-9]+",
            "POST /api/v1/trials/[0-9]+/(start|kill|metrics|progress|early_exit|runner/metadata)",
            "GET /api/v1/trials/[0-9]+/(workloads|logs|checkpoints)",
            "GET /api/v1/trials/(time-series|metrics/(trial|training|validation)_metrics)",
            "POST /api/v1/runs/start",
            "(GET|POST) /api/v1/runs/[0-9]+/metadata",
            "(POST|PATCH|DELETE) /api/v1/checkpoints",
            "POST /api/v1/checkpoints/rm",
            f"GET /api/v1/checkpoints/{_ID}",
            f"POST /api/v1/checkpoints/{_ID}/metadata",
            "(GET|POST) /api/v1/(commands|tensorboards)",
            f"GET /api/v1/(commands|tensorboards)/{_ID}",
            f"POST /api/v1/(commands|tensorboards)/{_ID}/kill",
            "POST /api/v1/job-queues",
            "GET /api/v1/tasks",
            f"GET /api/v1/tasks/{_ID}(/logs|/context_directory)?",
            "POST /api/v1/task/logs",
            f"GET /api/v1/allocations/{_ID}(/signals/preemption)?",
            f"POST /api/v1/allocations/{_ID}/(signals/ack_preemption|proxy_address|ready|waiting)",
            # Of the double itself; rewritten below.
            "POST /api/v1/generic-tasks",
            f"POST /api/v1/tasks/{_ID}/kill",
        )
    )
)
#: Known to fail there, and sent on purpose by clients that fall back.
_TOLERATED = re.compile("GET /api/v1/trials/[0-9]+/searcher/operation")
_LIMITED = re.compile("/api/v1/(trials|experiments)/[0-9]+/checkpoints|/api/v1/commands")
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
        collected = _Answer(send, lambda status, content: self._rewritten(call, status, content))
        await self._app(scope, _replay(body), collected)

    def _checked(self, call: str, scope: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        if _TOLERATED.fullmatch(call):
            raise RefusedError(501, "Method Not Allowed")
        if not _ROUTES.fullmatch(call):
            raise RefusedError(404, "Not Found")
        query = parse_qs(scope["query_string"].decode(), keep_blank_values=True)
        if _LIMITED.fullmatch(scope["path"]) and int(query.get("limit", ["0"])[0]) < 0:
            raise RefusedError(500, "LIMIT must not be negative")
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
        elif call == "POST /api/v1/commands":
            _refuse_command(content["config"])
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

    def _rewritten(self, call: str, status: int, content: Any) -> tuple[int, Any]:
        if call.endswith("/signals/preemption") and content.get("preempt"):
            # A trial that its search stopped is not told: the master looks as if nothing happened.
            content["preempt"] = not self._is_stopped_by_search(call.split("/")[4])
        if call == "GET /info":
            content.pop("det_keras_version")
        if status in (400, 409, 422) and (_SUBMISSION.fullmatch(call) or _REPORTS.fullmatch(call)):
            status = 500
        if call == "POST /api/v1/generic-tasks" and status == 200:
            return status, {"taskId": content["command"]["id"], "warnings": []}
        return status, _in_its_form(content, call)

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


def _refuse_command(config: Mapping[str, Any]) -> None:
    if "data" in config:
        raise RefusedError(500, 'json: unknown field "data"')
    if not isinstance(config.get("entrypoint"), list):
        raise RefusedError(500, "json: cannot unmarshal string into field entrypoint of type []string")


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
