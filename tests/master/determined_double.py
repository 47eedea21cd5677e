"""The double of a Determined 0.38.1 master, for scripts that it did not start: what it answers, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import Any, ClassVar

import httpx

# Keys that its schema of experiment configs knows, as far as these tests use them.
_CONFIG = {
    "name", "description", "labels", "data", "checkpoint_storage", "reproducibility", "searcher", "workspace",
    "project", "hyperparameters", "max_restarts", "environment", "resources",
}  # fmt: skip


class RefusalError(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class DeterminedDouble:
    """Answers the calls of one detached trial.

    It leaves out fields without a value, answers 500 to what it dislikes, and starts no trial that has metadata.

    Attributes:
        refused: calls that it did not accept.
        rows: metrics that count, by group and batches.
        states: what the script reported.
    """

    def __init__(self) -> None:
        self.transport = httpx.MockTransport(self._answer)
        self.refused: list[str] = []
        self.rows: dict[tuple[str, int], dict[str, Any]] = {}
        self.states: list[str] = []
        self._run_of: dict[tuple[str, int], int] = {}
        self._run_id = 0
        self._config: dict[str, Any] = {}
        self._checkpoints: dict[str, Any] = {}
        self._has_metadata = False

    def _answer(self, request: httpx.Request) -> httpx.Response:
        call = f"{request.method} {request.url.path}"
        body = json.loads(request.content) if request.content else {}
        for pattern, method in self._ROUTES.items():
            if re.fullmatch(pattern, call):
                try:
                    return httpx.Response(200, json=method(self, body))
                except RefusalError as error:
                    if error.status != 404:
                        self.refused.append(f"{call}: {error}")
                    return httpx.Response(error.status, json={"error": {"code": 2, "error": str(error)}})
        self.refused.append(call)
        return httpx.Response(501, json={"error": {"code": 12, "error": "Not Implemented"}})

    def _put_experiment(self, body: Any) -> Any:
        config = json.loads(body["config"])
        if unknown := set(config) - _CONFIG:
            raise RefusalError(500, f"additionalProperties {sorted(unknown)} not allowed")
        if not body["unmanaged"]:
            raise RefusalError(500, "only unmanaged experiments are supported")
        self._config = self._config or config
        return self._experiment(body)

    def _experiment(self, body: Any) -> Any:
        return {
            "experiment": {"id": 7, "username": "someone", "config": self._config},
            "config": self._config,
        }

    def _trial(self, body: Any) -> Any:
        return {"trial": {"id": 9, "experimentId": 7, "taskId": "7.task", "state": "STATE_RUNNING"}}

    def _start(self, body: Any) -> Any:
        if self._has_metadata:
            raise RefusalError(500, "failed to parse map into proto")
        self._run_id += 1
        return {"trialRunId": self._run_id, "stepsCompleted": 0}

    def _patch_trial(self, body: Any) -> Any:
        if "state" in body:
            self.states.append(body["state"])
        return self._trial(body)

    def _report(self, body: Any) -> Any:
        report, group = body["metrics"], body["group"]
        if report["trialRunId"] != self._run_id:
            raise RefusalError(500, "invalid run id")
        key, values = (group, report["stepsCompleted"]), report["metrics"]["avgMetrics"]
        for old in [old for old in self.rows if old[1] >= key[1] and self._run_of[old] < self._run_id]:
            del self.rows[old]
        if any(
            name in self.rows.get(key, {}) and self.rows[key][name] != value for name, value in values.items()
        ):
            raise RefusalError(500, "overwriting existing metric keys is not supported")
        self.rows[key], self._run_of[key] = {**self.rows.get(key, {}), **values}, self._run_id
        return {}

    def _checkpoint(self, body: Any) -> Any:
        if "allocationId" in body:
            raise RefusalError(500, "allocation not found")
        self._checkpoints[body["uuid"]] = body
        return {}

    def _list_checkpoints(self, body: Any) -> Any:
        return {"checkpoints": list(self._checkpoints.values())}

    def _set_metadata(self, body: Any) -> Any:
        self._has_metadata = True
        return {"metadata": body["metadata"]}

    def _nothing(self, body: Any) -> Any:
        return {}

    def _missing(self, body: Any) -> Any:
        raise RefusalError(404, "not found")

    def _logs(self, body: Any) -> Any:
        if {line["task_id"] for line in body["logs"]} != {"7.task"}:
            raise RefusalError(400, "lines of another task")
        return {}

    _ROUTES: ClassVar = {
        "PUT /api/v1/experiments/by-external-id/mine": _put_experiment,
        "GET /api/v1/experiments/7": _experiment,
        "GET /api/v1/experiments/7/searcher/best_searcher_validation_metric": _missing,
        "GET /api/v1/me": lambda self, body: {"user": {"username": "someone"}},
        "PUT /api/v1/trials": _trial,
        "POST /api/v1/trials/9/start": _start,
        "PATCH /api/v1/trials/9": _patch_trial,
        "POST /api/v1/trials/9/metrics": _report,
        "POST /api/v1/trials/9/(progress|runner/metadata)": _nothing,
        "GET /api/v1/trials/9/checkpoints": _list_checkpoints,
        "POST /api/v1/checkpoints": _checkpoint,
        "POST /api/v1/runs/start": lambda self, body: {"storageId": 3},
        "POST /api/v1/runs/9/metadata": _set_metadata,
        "POST /api/v1/task/logs": _logs,
    }
