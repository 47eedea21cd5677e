"""Users, the master, agents and pools as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from det_keras.master.database.models import AllocationRow, UserRow
from det_keras.master.resources import Node, ResourcePool, Slot
from det_keras.master.tasks.availability import Availability
from det_keras.master.tasks.scheduling import POOL
from det_keras.master.tasks.task_environment import Identity
from det_keras.protocol.states import RUNNING, named
from det_keras.protocol.values import timestamp

#: The release of Determined whose REST API is implemented; clients compare it with their own release.
PROTOCOL_VERSION = "0.38.1"


_UNUSED_POOL_TEXTS = (
    "location",
    "imageId",
    "instanceType",
    "masterUrl",
    "masterCertName",
    "containerStartupScript",
    "agentDockerNetwork",
    "agentDockerRuntime",
    "agentDockerImage",
    "agentFluentImage",
    "startupScript",
    "clusterName",
)


def user_shape(row: UserRow) -> dict[str, Any]:
    """Return a `User`."""
    return {
        "id": row.id,
        "username": row.username,
        "displayName": row.display_name,
        "admin": row.admin,
        "active": row.active,
        "remote": False,
        "agentUserGroup": None,
        "modifiedAt": timestamp(row.modified_at),
        "lastAuthAt": timestamp(row.last_auth_at),
    }


def master_shape(identity: Identity) -> dict[str, Any]:
    """Return the facts about the master."""
    return {
        "version": PROTOCOL_VERSION,
        "masterId": identity.master_id,
        "clusterId": identity.cluster_id,
        "clusterName": "",
        "hasCustomLogo": False,
        "strictJobQueueControl": False,
        "rbacEnabled": False,
        "telemetryEnabled": False,
        "ssoProviders": [],
        "externalLoginUri": "",
        "externalLogoutUri": "",
        "branding": "determined",
        "product": "PRODUCT_UNSPECIFIED",
        "userManagementEnabled": True,
        "featureSwitches": [],
        "clusterMessage": None,
    }


def agent_shape(
    node: Node, live: Sequence[AllocationRow], known: Availability, started_at: datetime | None
) -> dict[str, Any]:
    """Return a node of the pool as an `Agent`.

    Args:
        node: the node.
        live: the allocations that have not ended, of all nodes.
        known: which slots are in use.
        started_at: start time of the master.
    """
    owner = {
        slot_id: row
        for row in live
        for share in row.shares
        if share["node"] == node.id
        for slot_id in share["slot_ids"]
    }
    containers = {row.resources_id: _container(row) for row in owner.values()}
    return {
        "id": node.id,
        "registeredTime": timestamp(started_at),
        "slotStats": {"typeStats": {}, "brandStats": {}},
        "slots": {str(slot.id): _slot(node, slot, known, owner.get(slot.id)) for slot in node.slots},
        "containers": containers,
        "resourcePools": [POOL],
        "addresses": [node.address],
        "enabled": known.has_machine(node.id),
        "draining": known.machines.get(node.id, False),
        "version": PROTOCOL_VERSION,
    }


def device_shape(slot: Slot) -> dict[str, Any]:
    """Return the `Device` of a slot."""
    return {
        "id": slot.id,
        "brand": slot.brand,
        "uuid": slot.uuid,
        "type": "TYPE_CUDA" if slot.device == "cuda" else "TYPE_CPU",
    }


def pool_shape(
    pool: ResourcePool, slots: int, used: int, running: int, queued: int, scheduler: str
) -> dict[str, Any]:
    """Return the only `ResourcePool`; clients require every key.

    Args:
        pool: where tasks run.
        slots: number of slots that tasks are given, or use.
        used: number of slots in use.
        running: number of running tasks.
        queued: number of waiting tasks.
        scheduler: name of the policy that gives out slots.
    """
    nodes = len(pool.nodes)
    return {
        "name": POOL,
        "description": pool.description,
        "type": "RESOURCE_POOL_TYPE_STATIC",
        "numAgents": nodes,
        "slotsAvailable": slots,
        "slotsUsed": used,
        "slotType": "TYPE_CUDA" if pool.device == "cuda" else "TYPE_CPU",
        "slotsPerAgent": max((len(node.slots) for node in pool.nodes), default=0),
        "auxContainerCapacity": 100,
        "auxContainersRunning": 0,
        "auxContainerCapacityPerAgent": 100,
        "defaultComputePool": True,
        "defaultAuxPool": True,
        "preemptible": False,
        "minAgents": nodes,
        "maxAgents": nodes,
        "schedulerType": f"SCHEDULER_TYPE_{scheduler.upper()}",
        "schedulerFittingPolicy": "FITTING_POLICY_BEST",
        "maxIdleAgentPeriod": 0.0,
        "maxAgentStartingPeriod": 0.0,
        "details": {},
        "resourceManagerMetadata": {},
        "stats": {"queuedCount": queued, "scheduledCount": running},
        **dict.fromkeys(_UNUSED_POOL_TEXTS, ""),
    }


def _slot(node: Node, slot: Slot, known: Availability, allocation: AllocationRow | None) -> dict[str, Any]:
    return {
        "id": str(slot.id),
        "device": device_shape(slot),
        "enabled": known.has_slot(node.id, slot.id),
        "draining": known.drains(node.id, slot.id),
        "container": None if allocation is None else _container(allocation),
    }


def _container(allocation: AllocationRow) -> dict[str, Any]:
    return {"id": allocation.resources_id, "state": named(RUNNING), "devices": [], "parent": ""}
