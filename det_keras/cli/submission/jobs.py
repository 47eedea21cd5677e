"""The generic jobs of a master: commands of ours, generic tasks of a Determined master."""

from __future__ import annotations

import abc
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from det_keras.cli.submission import foreign
from det_keras.cli.submission.config_file import JobFile
from det_keras.cli.submission.files import PATIENCE_S, notice_without_effect, print_notices
from det_keras.protocol.states import QUEUED, named
from det_keras.provenance.capture import Capture

if TYPE_CHECKING:
    from det_keras.client import Session
    from det_keras.protocol.api import Api


_TASK_COMPLETED = "GENERIC_TASK_STATE_COMPLETED"
_GOING_ON = ("GENERIC_TASK_STATE_ACTIVE", "GENERIC_TASK_STATE_STOPPING_COMPLETED")
_LATE_S = 30.0


class MasterJobs(abc.ABC):
    """The jobs of one master.

    Args:
        api: the calls of the master.
    """

    def __init__(self, api: Api) -> None:
        self.api = api

    @abc.abstractmethod
    def create(self, file: JobFile, entries: Sequence[Mapping[str, Any]], capture: Capture) -> str:
        """Create a job, print the master's notices, and return the job's id.

        Args:
            file: the config.
            entries: the files of the context directory, as sent.
            capture: where the job comes from; a Determined master does not receive it.
        """

    @abc.abstractmethod
    def all(self) -> list[dict[str, Any]]:
        """Return the jobs, as commands of the protocol."""

    @abc.abstractmethod
    def ending(self, job_id: str) -> tuple[int | None, str | None]:
        """Return the exit code of a job that has ended, and how it ended in words; None for what is unknown."""

    @abc.abstractmethod
    def kill(self, job_id: str) -> None:
        """End a job at once."""


class _OwnJobs(MasterJobs):
    def create(self, file: JobFile, entries: Sequence[Mapping[str, Any]], capture: Capture) -> str:
        answer = self.api.jobs.create(file.raw, entries, capture.result(PATIENCE_S))
        print_notices(answer)
        return str(answer["command"]["id"])

    def all(self) -> list[dict[str, Any]]:
        return self.api.jobs.all()

    def ending(self, job_id: str) -> tuple[int | None, str | None]:
        allocations = self.api.tasks.get(job_id)["allocations"]
        code = allocations[-1].get("statusCode") if allocations else None
        return code, self.api.jobs.get(job_id).get("exitStatus")

    def kill(self, job_id: str) -> None:
        self.api.jobs.kill(job_id)


class _GenericTasks(MasterJobs):
    def create(self, file: JobFile, entries: Sequence[Mapping[str, Any]], capture: Capture) -> str:
        unused = notice_without_effect(file.config.environment, foreign.PACKAGES)
        print_notices({"notices": unused})
        return self.api.generic_tasks.create(foreign.job_text(file), entries)

    def all(self) -> list[dict[str, Any]]:
        return [_as_command(task) for task in self.api.generic_tasks.running()]

    def ending(self, job_id: str) -> tuple[int | None, str | None]:
        deadline = time.monotonic() + _LATE_S
        while (task := self.api.tasks.get(job_id)).get(
            "taskState"
        ) in _GOING_ON and time.monotonic() < deadline:
            # The log may end a moment before the task.
            time.sleep(0.2)
        if task.get("taskState") == _TASK_COMPLETED:
            return 0, None
        if not task["allocations"]:
            return None, None
        # Only here, and only after a failure, does that master tell the code.
        allocation = self.api.tasks.allocation(task["allocations"][-1]["allocationId"])
        return allocation.get("statusCode"), allocation.get("exitReason")

    def kill(self, job_id: str) -> None:
        self.api.generic_tasks.kill(job_id)


def jobs_of(session: Session) -> MasterJobs:
    """Return the jobs of the session's master."""
    return (_GenericTasks if session.api.accounts.is_determined() else _OwnJobs)(session.api)


def _as_command(task: Mapping[str, Any]) -> dict[str, Any]:
    allocations = task["allocations"]
    return {
        "id": task["taskId"],
        # A generic task has neither a name nor an owner.
        "description": "",
        "username": "",
        "state": allocations[-1]["state"] if allocations else named(QUEUED),
        "startTime": task["startTime"],
    }
