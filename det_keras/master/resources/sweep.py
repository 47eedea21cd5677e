"""Finding the processes of a task wherever they went, by the environment that they inherited."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection

__all__ = ["sweep"]

logger = logging.getLogger(__name__)

_MOST_LOOKS = 10


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
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("DET_ALLOCATION_ID") not in allocation_ids:
                continue
            if process.status() != psutil.STATUS_ZOMBIE:
                process.kill()
                found = True
    return found
