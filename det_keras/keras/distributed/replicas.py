"""Chooses the kind of replica."""

from __future__ import annotations

from typing import Any

from det_keras.core.distributed import DistributedContext
from det_keras.keras.distributed.replica import Replica
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.distributed.virtual_replica import VirtualReplica
from det_keras.keras.distributed.worker_replica import WorkerReplica


def make_replica(
    model: Any, workers: DistributedContext, step: SharedStep, *, may_lack_rows: bool = True
) -> Replica:
    """Return the replica of `model` on this worker; arguments as for `Replica`."""
    kind = VirtualReplica if workers.has_virtual else WorkerReplica
    return kind(model, workers, step, may_lack_rows=may_lack_rows)
