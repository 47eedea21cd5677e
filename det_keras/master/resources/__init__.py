"""Resource pools, on which tasks run; one file per kind."""

from __future__ import annotations

from det_keras.master.resources.base import (
    Launch,
    LogEntry,
    Node,
    ResourcePool,
    Share,
    Slot,
    State,
    TaskState,
)
from det_keras.master.resources.local import LocalPool
from det_keras.master.resources.ray import RayPool

__all__ = [
    "Launch",
    "LocalPool",
    "LogEntry",
    "Node",
    "RayPool",
    "ResourcePool",
    "Share",
    "Slot",
    "State",
    "TaskState",
]
