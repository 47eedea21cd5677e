"""Finding the processes of a task wherever they went, by the environment that they inherited."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Collection
from pathlib import Path

__all__ = ["sweep"]

logger = logging.getLogger(__name__)

_MOST_LOOKS = 10
_VARIABLE = "DET_ALLOCATION_ID"


def sweep(allocation_ids: Collection[str]) -> None:
    """Kill every process that was started for one of these allocations.

    Launchers of many workers give each a session of its own, so that a process group does not hold them all.
    """
    # What was forked during one look is found by the next.
    for _ in range(_MOST_LOOKS):
        if not _kill_all(allocation_ids):
            return
    logger.warning("Processes of allocation %s keep appearing.", ", ".join(allocation_ids))


def _kill_all(allocation_ids: Collection[str]) -> bool:
    # Imported here: it is needed only when something ends.
    import psutil

    found = False
    for pid in _pids_of(allocation_ids):
        with contextlib.suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            # Looked at again through the process itself: the number may be another's by now.
            if process.environ().get(_VARIABLE) not in allocation_ids:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                found = True
    return found


def _pids_of(allocation_ids: Collection[str]) -> list[int]:
    """Return the processes that seem to belong to the allocations.

    Read from /proc as it is: this runs at the end of every task, while its slot waits for the next.
    """
    marks = [f"\0{_VARIABLE}={one}\0".encode() for one in allocation_ids]
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                content = b"\0" + Path(entry.path, "environ").read_bytes() + b"\0"
                if any(mark in content for mark in marks):
                    found.append(int(entry.name))
    return found
