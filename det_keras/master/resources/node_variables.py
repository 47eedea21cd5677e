"""The environment variables of a task that depend on the node on which it runs.

Source: the DET_* variables of Determined 0.38.1's launch protocol.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from det_keras.master.resources.base import Share, Slot

_THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
# Ports of Determined's distributed launchers; tasks on different slots of one machine must not share them.
_PORTS = {
    "DTRAIN_SSH_PORT": 12350,
    "INTER_TRAIN_PROCESS_COMM_PORT_1": 12360,
    "INTER_TRAIN_PROCESS_COMM_PORT_2": 12365,
    "C10D_PORT": 29400,
}
_PORTS_PER_SLOT = 50


def node_variables(
    *,
    shares: Sequence[Share],
    index: int,
    node: str,
    slots: Sequence[Slot],
    threads: int,
    directory: Path,
    home: Path,
    inherited: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables of a task's process on one node.

    Args:
        shares: the task's slots, by node; empty for a task without slots.
        index: place of this node in `shares`.
        node: id of this node.
        slots: all slots of this node.
        threads: number of computing threads of each process.
        directory: the working directory.
        home: the data root on this node.
        inherited: the environment that the task inherits; its number of threads is not changed.
    """
    slot_ids = shares[index].slot_ids if shares else ()
    offset = _PORTS_PER_SLOT * min(slot_ids, default=0)
    return {
        **{name: str(threads) for name in _THREADS if name not in inherited},
        **_devices(slots, slot_ids),
        **{name: str(port + offset) for name, port in _PORTS.items()},
        **_rendezvous(shares, index),
        "DET_AGENT_ID": node,
        "DET_KERAS_HOME": str(home),
        "DET_SLOT_IDS": json.dumps(list(slot_ids)),
        "DET_WORKDIR": str(directory),
        "DET_RUN_DIR": str(directory),
    }


def _devices(slots: Sequence[Slot], slot_ids: Sequence[int]) -> dict[str, str]:
    if all(slot.device == "cpu" for slot in slots):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(slot.uuid for slot in slots if slot.id in slot_ids)}


def _rendezvous(shares: Sequence[Share], index: int) -> dict[str, str]:
    """Return where the task's other nodes are, in the form of Determined's rendezvous.json."""
    if len(shares) < 2:
        return {}
    content = {
        "container_addrs": [share.address for share in shares],
        "container_rank": index,
        "container_slot_counts": [len(share.slot_ids) for share in shares],
    }
    return {"DET_KERAS_RENDEZVOUS": json.dumps(content)}
