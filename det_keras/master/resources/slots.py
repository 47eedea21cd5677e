"""Detects the slots of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence

from det_keras.master.resources.base import Slot

_GPU = re.compile(r"GPU \d+: (?P<brand>.*) \(UUID: (?P<uuid>[^)]+)\)")


def find_slots(count: int | None = None) -> Sequence[Slot]:
    """Return the machine's slots: its GPUs if it has any, else one slot per core.

    Args:
        count: number of slots to use; a number above that of the GPUs means CPU slots. None for all.
    """
    gpus = _find_gpus()
    if gpus and (count is None or count <= len(gpus)):
        return gpus[:count]
    return [Slot(index, "cpu", "CPU") for index in range(core_count() if count is None else count)]


def core_count() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _find_gpus() -> list[Slot]:
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        Slot(index, "cuda", match["brand"], match["uuid"])
        for index, match in enumerate(_GPU.finditer(listing))
    ]
