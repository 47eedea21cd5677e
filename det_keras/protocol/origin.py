"""The origin of a checkpoint: which allocation of which cluster wrote it, as its ``metadata.json`` says.

A process that is killed after it has committed a checkpoint and before its report has arrived leaves files that no
record knows. The master finds them by their origin: it may delete what an ended allocation of its own never reported,
and nothing that other masters or programs store in the same place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

#: The file of a checkpoint that holds its metadata.
METADATA_NAME = "metadata.json"
_KEY = "origin"


def origin_of(cluster_id: str, allocation_id: str) -> dict[str, str]:
    """Return the origin of the checkpoints of an allocation."""
    return {"cluster_id": cluster_id, "allocation_id": allocation_id}


def with_origin(metadata: Mapping[str, object], origin: Mapping[str, str] | None) -> dict[str, object]:
    """Return metadata as it is stored: with the origin, if there is one."""
    return {**metadata, **({} if origin is None else {_KEY: dict(origin)})}


def allocation_in(content: bytes, cluster_id: str) -> str | None:
    """Return the allocation of a cluster that wrote a checkpoint.

    Args:
        content: of its ``metadata.json``; any bytes.
        cluster_id: the cluster.

    Returns:
        None if the checkpoint has no origin, or that of another cluster.
    """
    try:
        origin = json.loads(content)[_KEY]
        is_own, allocation_id = origin["cluster_id"] == cluster_id, origin["allocation_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return allocation_id if is_own and isinstance(allocation_id, str) else None
