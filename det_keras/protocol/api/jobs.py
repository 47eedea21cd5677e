"""Calls about generic jobs, which are commands of our master and generic tasks of a Determined master."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.protocol.api.tasks import Tasks
from det_keras.protocol.api.transport import Transport

_COMMANDS = "/api/v1/commands"
_GENERIC_TASKS = "/api/v1/generic-tasks"
_TASKS = "/api/v1/tasks"
_QUEUE = "/api/v1/job-queues"
# Entries that are asked for at once.
_PAGE = 100
# The body contains the files, and a master unpacks them before it answers.
_SUBMISSION_TIMEOUT_S = 300.0


class Jobs:
    """Calls about generic jobs, which the protocol calls commands.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        found: list[dict[str, Any]] = self._transport.get(_COMMANDS)["commands"]
        return found

    def get(self, job_id: str) -> dict[str, Any]:
        """Return a job."""
        job: dict[str, Any] = self._transport.get(f"{_COMMANDS}/{job_id}")["command"]
        return job

    def create(
        self,
        config: Mapping[str, object],
        files: Sequence[Mapping[str, object]],
        provenance: Mapping[str, object] | None = None,
    ) -> dict[str, Any]:
        """Create a job and return the answer with its notices.

        Args:
            config: config of the job.
            files: of the context directory, parents before children.
            provenance: where it comes from.
        """
        body = {"config": config, "files": files, **({"provenance": provenance} if provenance else {})}
        # Not repeatable: if the answer was lost, a second try would create a second job.
        answer: dict[str, Any] = self._transport.post(
            _COMMANDS, body, repeatable=False, timeout_s=_SUBMISSION_TIMEOUT_S
        )
        return answer

    def queue(self) -> list[dict[str, Any]]:
        """Return the running and waiting experiments and jobs, in the order of the queue."""
        found: list[dict[str, Any]] = []
        while True:
            # A Determined 0.38.1 master fails at `limit=-1`.
            params = {"limit": _PAGE, "offset": len(found)}
            answer = self._transport.get(f"{_QUEUE}-v2", params=params)
            found += answer["jobs"]
            if not answer["jobs"] or len(found) >= answer["pagination"]["total"]:
                return [entry["full"] for entry in found if entry["full"]]

    def update(self, job_id: str, **changes: object) -> None:
        """Change a job of the queue.

        Args:
            job_id: the id of the job in the queue.
            changes: `priority`, `weight`, `aheadOf` or `behindOf`.
        """
        self._transport.post(_QUEUE, {"updates": [{"jobId": job_id, **changes}]})

    def kill(self, job_id: str) -> None:
        """Kill a job."""
        self._transport.post(f"{_COMMANDS}/{job_id}/kill")


class GenericTasks:
    """Calls about the generic tasks of a Determined 0.38.1 master.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def create(self, config: str, files: Sequence[Mapping[str, object]]) -> str:
        """Create a generic task and return its id.

        Args:
            config: YAML text.
            files: of the context directory, parents before children.
        """
        body = {"config": config, "contextDirectory": files}
        answer = self._transport.post(_GENERIC_TASKS, body, repeatable=False, timeout_s=_SUBMISSION_TIMEOUT_S)
        return str(answer["taskId"])

    def running(self) -> list[dict[str, Any]]:
        """Return the generic tasks that have not ended: the master lists no others."""
        api = Tasks(self._transport)
        tasks = [api.get(task_id) for task_id in api.running()]
        return [task for task in tasks if task["taskType"] == "TASK_TYPE_GENERIC"]

    def kill(self, task_id: str) -> None:
        """Kill a generic task."""
        self._transport.post(f"{_TASKS}/{task_id}/kill", {"taskId": task_id, "killFromRoot": False})
