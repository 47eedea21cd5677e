"""Finds all processes of a task by the environment that they inherited."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

logger = logging.getLogger(__name__)

_MOST_PASSES = 10
_VARIABLE = "DET_ALLOCATION_ID"


def sweep(allocation_ids: Collection[str], node: str | None = None) -> None:
    """Kill every process that was started for one of these allocations, on one node if several share this machine.

    Launchers of many workers start each worker in its own session, so the process group does not contain them all.
    """
    # A process that is forked during one pass is found in the next.
    for _ in range(_MOST_PASSES):
        if not _kill_all(allocation_ids, node):
            return
    logger.warning("New processes of allocation %s keep appearing.", ", ".join(allocation_ids))


def _kill_all(allocation_ids: Collection[str], node: str | None) -> bool:
    # Imported here: it is needed only when a task ends.
    import psutil

    found = False
    for pid in _pids_of(allocation_ids):
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            # Checked again through the process object: the pid may have been reused since /proc was read.
            environ = process.environ()
            if environ.get(_VARIABLE) not in allocation_ids:
                continue
            if node is not None and environ.get("DET_AGENT_ID") != node:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                found = True
    return found


def _pids_of(allocation_ids: Collection[str]) -> list[int]:
    """Return the processes that probably belong to the allocations.

    Reads /proc directly, which is fast: this runs at the end of every task, before its slot is free.
    """
    marks = [f"\0{_VARIABLE}={allocation_id}\0".encode() for allocation_id in allocation_ids]
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                content = b"\0" + Path(entry.path, "environ").read_bytes() + b"\0"
                if any(mark in content for mark in marks):
                    found.append(int(entry.name))
    return found
