"""Resource pools, on which tasks run; one file per kind."""

from __future__ import annotations

from det_keras.master.resources.base import Launch, LogEntry, ResourcePool, Slot, State, TaskState
from det_keras.master.resources.local import LocalPool

__all__ = ["Launch", "LocalPool", "LogEntry", "ResourcePool", "Slot", "State", "TaskState"]
