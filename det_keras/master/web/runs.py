"""The runs of a trial: its allocations, and how each of them ended."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from det_keras.master.web.rest import Rest


async def runs_of(rest: Rest, trial: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the allocations of a trial, latest first; a continued trial has several tasks."""
    tasks = await asyncio.gather(*(rest.get(f"/tasks/{task_id}") for task_id in trial["taskIds"]))
    found: list[dict[str, Any]] = [
        allocation for answer in tasks for allocation in answer["task"]["allocations"]
    ]
    return sorted(found, key=lambda allocation: allocation["startTime"] or "", reverse=True)


def is_failed(run: Mapping[str, Any]) -> bool:
    """Return whether an allocation ended with a failure; one that was asked to stop did not fail."""
    return run["endTime"] is not None and bool(
        run["exitReason"] or run["statusCode"] not in (0, None, 137, 143)
    )


def outcome(run: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of state (see `rendering.state_kind`) and the text of how an allocation ended."""
    if run["endTime"] is None:
        return "running", run["state"].removeprefix("STATE_").lower()
    if is_failed(run):
        code = run["statusCode"]
        return "error", "failed" if code is None else f"failed, exit code {code}"
    return ("completed", "ended") if run["statusCode"] == 0 else ("canceled", "stopped")
