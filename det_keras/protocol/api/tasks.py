"""Calls about tasks: logs, and the calls of a task's process about its allocation."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from det_keras.protocol.api.accounts import Accounts
from det_keras.protocol.api.transport import Transport

# The master may answer a long poll slightly after the requested time.
_LATE_S = 10.0


class Tasks:
    """Calls about tasks and their allocations.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, task_id: str) -> dict[str, Any]:
        """Return a task."""
        task: dict[str, Any] = self._transport.get(f"/api/v1/tasks/{task_id}")["task"]
        return task

    def allocation(self, allocation_id: str) -> dict[str, Any]:
        """Return an attempt of a task."""
        found: dict[str, Any] = self._transport.get(_allocation(allocation_id))["allocation"]
        return found

    def running(self) -> list[str]:
        """Return the ids of the tasks that have not ended."""
        return list(dict.fromkeys(str(summary["taskId"]) for summary in self.summaries()))

    def summaries(self) -> list[dict[str, Any]]:
        """Return the running attempts of tasks, each with its machines."""
        return list((self._transport.get("/api/v1/tasks").get("allocationIdToSummary") or {}).values())

    def context_directory(self, task_id: str) -> bytes:
        """Return the submitted files as a gzip-compressed tar archive; empty if there are none."""
        answer = self._transport.get(f"/api/v1/tasks/{task_id}/context_directory")
        return base64.b64decode(answer.get("b64Tgz") or "")

    def wait_for_preemption(self, allocation_id: str, timeout_s: float) -> bool:
        """Wait up to `timeout_s` seconds; return whether the master has requested the allocation to stop."""
        answer = self._transport.get(
            f"{_allocation(allocation_id)}/signals/preemption",
            params={"timeout_seconds": int(timeout_s)},
            timeout_s=timeout_s + _LATE_S,
            patience_s=0.0,
        )
        return bool(answer["preempt"])

    def acknowledge_preemption(self, allocation_id: str) -> None:
        """Report that the task will exit soon and should be resumed later."""
        self._transport.post(f"{_allocation(allocation_id)}/signals/ack_preemption")

    def report_logs(self, lines: Sequence[Mapping[str, object]]) -> None:
        """Send lines of one task's log, at most 1000."""
        self._transport.post("/api/v1/task/logs", {"logs": lines})

    def report_output(
        self,
        allocation_id: str,
        *,
        node: int,
        offset: int,
        next_offset: int,
        lines: Sequence[Mapping[str, object]],
    ) -> int:
        """Send a part of the log of a task on another machine; return the position up to which the master has it.

        Args:
            allocation_id: the attempt.
            node: place of the machine among those of the attempt.
            offset: position of the first line; the master takes the part only if its own copy ends there.
            next_offset: position behind the last line.
            lines: each with `time` (seconds since 1970), `text`, `stdtype`, `level` and `rank`.
        """
        body = {"node": node, "offset": offset, "nextOffset": next_offset, "lines": lines}
        return int(self._transport.post(f"{_allocation(allocation_id)}/output", body)["offset"])

    def announce_server(self, allocation_id: str, address: str) -> None:
        """Report the address of a task's server and that the server is ready."""
        self._transport.post(f"{_allocation(allocation_id)}/proxy_address", {"proxyAddress": address})
        self._transport.post(f"{_allocation(allocation_id)}/ready")


class Logs:
    """The lines of a log.

    Args:
        transport: sends the calls.
        path: path of the log in the API; see `of_trial` and `of_task`.
        filters: parameters of the calls that choose lines, such as `levels`; see `filtered`.
    """

    def __init__(self, transport: Transport, path: str, filters: Mapping[str, object] | None = None) -> None:
        self._transport = transport
        self._path = path
        self._filters = dict(filters or {})

    @classmethod
    def of_trial(cls, transport: Transport, trial_id: int) -> Logs:
        """Return the log of a trial."""
        return cls(transport, f"/api/v1/trials/{trial_id}/logs")

    @classmethod
    def of_task(cls, transport: Transport, task_id: str) -> Logs:
        """Return the log of a task."""
        return cls(transport, f"/api/v1/tasks/{task_id}/logs")

    def filtered(self, **filters: object) -> Logs:
        """Return the same log with only some of its lines.

        Args:
            filters: `agentIds`, `allocationIds`, `containerIds`, `rankIds`, `sources`, `stdtypes`, `levels` (lists),
                `timestampBefore`, `timestampAfter`, `searchText` and `enableRegex`; None is left out.
        """
        given = {name: value for name, value in filters.items() if value not in (None, [], "", False)}
        return Logs(self._transport, self._path, {**self._filters, **given})

    def fields(self) -> dict[str, list[Any]]:
        """Return the values by which the lines can be filtered, such as the ranks under `rankIds`."""
        found: dict[str, list[Any]] = next(self._transport.stream(f"{self._path}/fields", params={}), {})
        return found

    def lines(self, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the existing lines from the log's start: all, or the first `limit`."""
        return self._transport.stream(self._path, params={**self._filters, "limit": limit, "follow": False})

    def tail(self, count: int) -> list[dict[str, Any]]:
        """Return the last `count` lines, oldest first."""
        params = {**self._filters, "limit": count, "orderBy": "ORDER_BY_DESC", "follow": False}
        return list(self._transport.stream(self._path, params=params))[::-1]

    def follow(self, after: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the lines until the task has ended.

        Args:
            after: only the lines after the one with this id; None for all.
        """
        if after is None:
            return self._transport.stream(self._path, params={**self._filters, "follow": True})
        if not Accounts(self._transport).is_determined():
            return self._transport.stream(
                self._path, params={**self._filters, "follow": True, "afterId": after}
            )
        # A stream of Determined's master always begins at the start of the log.
        lines = self._transport.stream(self._path, params={**self._filters, "follow": True})
        return itertools.islice(itertools.dropwhile(lambda line: str(line["id"]) != after, lines), 1, None)


def _allocation(allocation_id: str) -> str:
    return f"/api/v1/allocations/{allocation_id}"
