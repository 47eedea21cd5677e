"""Tasks, allocations, generic jobs and the job queue as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from det_keras.master.database.models import AllocationRow, ExperimentRow, TaskRow, UserRow
from det_keras.master.resources import Node
from det_keras.master.serializers.cluster import device_shape
from det_keras.master.tasks.scheduling import POOL, JobFacts
from det_keras.protocol.states import QUEUED, SCHEDULED, TERMINATED, TERMINATING, named
from det_keras.protocol.values import timestamp


def task_state(task: TaskRow, live: AllocationRow | None) -> str:
    """Return the state of a task in the REST API."""
    if task.end_time is not None:
        return named(TERMINATED)
    if live is None:
        return named(QUEUED)
    return named(TERMINATING) if live.is_killed else named(live.state)


def command_shape(task: TaskRow, live: AllocationRow | None, owner: UserRow) -> dict[str, Any]:
    """Return a generic job as a `Command`.

    Args:
        task: the job's task.
        live: its allocation that has not ended; None if there is none.
        owner: the user who submitted it.
    """
    return {
        "id": task.id,
        "description": task.description,
        "state": task_state(task, live),
        "startTime": timestamp(task.start_time),
        "username": owner.username,
        "displayName": owner.display_name,
        "userId": owner.id,
        "resourcePool": POOL,
        "jobId": task.job_id,
        "workspaceId": task.workspace_id,
        "container": None,
        "exitStatus": task.exit_status or "",
    }


def tensorboard_shape(task: TaskRow, live: AllocationRow | None, owner: UserRow) -> dict[str, Any]:
    """Return a task that runs TensorBoard as a `Tensorboard`.

    Args:
        task: the task.
        live: its allocation that has not ended; None if there is none.
        owner: the user who submitted it.
    """
    shown = (task.config or {}).get("data") or {}
    return {
        **command_shape(task, live, owner),
        "experimentIds": shown.get("experiment_ids", []),
        "trialIds": shown.get("trial_ids", []),
        "serviceAddress": f"/proxy/{task.id}/",
    }


def allocation_shape(row: AllocationRow) -> dict[str, Any]:
    """Return an `Allocation`."""
    return {
        "allocationId": row.id,
        "taskId": row.task_id,
        "slots": row.slots,
        "state": named(row.state),
        "isReady": row.is_ready and row.state != TERMINATED,
        "startTime": timestamp(row.start_time),
        "endTime": timestamp(row.end_time),
        "exitReason": row.exit_reason,
        "statusCode": row.exit_code,
    }


def task_shape(task: TaskRow, allocations: Sequence[AllocationRow]) -> dict[str, Any]:
    """Return a `Task`."""
    return {
        "taskId": task.id,
        "taskType": f"TASK_TYPE_{task.kind}",
        "startTime": timestamp(task.start_time),
        "endTime": timestamp(task.end_time),
        "allocations": [allocation_shape(row) for row in allocations],
        "parentId": None,
    }


def summary_shape(
    row: AllocationRow, name: str, nodes: Mapping[str, Node], scheduler: str, priority: int
) -> dict[str, Any]:
    """Return an `AllocationSummary`.

    Args:
        row: the allocation.
        name: the name of its experiment or job.
        nodes: the nodes of the pool, by id.
        scheduler: name of the policy.
        priority: that of its experiment or job.
    """
    devices = {
        share["node"]: {
            "devices": [
                device_shape(slot)
                for slot in (nodes[share["node"]].slots if share["node"] in nodes else ())
                if slot.id in share["slot_ids"]
            ]
        }
        for share in row.shares
    }
    return {
        "taskId": row.task_id,
        "allocationId": row.id,
        "name": name,
        "registeredTime": timestamp(row.start_time),
        "resourcePool": POOL,
        "slotsNeeded": row.slots,
        "schedulerType": scheduler,
        "priority": priority,
        "proxyPorts": [],
        "resources": [
            {
                "resourcesId": row.resources_id,
                "resourcesType": "docker-container",
                "allocationId": row.id,
                "containerId": row.resources_id,
                "agentDevices": devices,
            }
        ],
    }


def job_shape(
    *,
    entity: ExperimentRow | TaskRow,
    owner: UserRow,
    facts: JobFacts,
    allocated_slots: int,
    jobs_ahead: int,
    is_scheduled: bool,
    wait_reason: str,
    workspace_id: int,
) -> dict[str, Any]:
    """Return an entry of the queue as a `Job`.

    Args:
        entity: the experiment, or the task of a generic job.
        owner: the user who submitted it.
        facts: what it asks for.
        allocated_slots: number of slots that it uses.
        jobs_ahead: number of entries before it.
        is_scheduled: whether it is running.
        wait_reason: what keeps its next task waiting, in one line; empty if none waits. Determined has no such field.
        workspace_id: number of the workspace in which it is.
    """
    is_experiment = isinstance(entity, ExperimentRow)
    return {
        "jobId": entity.job_id,
        "entityId": str(entity.id),
        "type": f"TYPE_{entity.kind if isinstance(entity, TaskRow) else 'EXPERIMENT'}",
        "name": entity.name if isinstance(entity, ExperimentRow) else entity.description,
        "username": owner.username,
        "userId": owner.id,
        "resourcePool": POOL,
        "workspaceId": workspace_id,
        "submissionTime": timestamp(entity.start_time),
        "requestedSlots": facts.slots,
        "allocatedSlots": allocated_slots,
        "isPreemptible": is_experiment,
        "priority": facts.priority,
        "weight": facts.weight,
        "progress": entity.progress if isinstance(entity, ExperimentRow) else 0.0,
        "summary": {
            "jobsAhead": jobs_ahead,
            "state": named(SCHEDULED) if is_scheduled else named(QUEUED),
        },
        "waitReason": wait_reason,
    }
