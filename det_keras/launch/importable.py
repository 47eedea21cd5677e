"""The environment of a process that shall find this package, as it is run here."""

from __future__ import annotations

import os
import site
from collections.abc import Mapping
from pathlib import Path


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` changed so that this package can be imported, even if it is not installed.

    Where it is installed, nothing changes: the directory of all installed packages in PYTHONPATH would come before a
    task's own packages, and before those of an interpreter of another version.
    """
    root = str(Path(__file__).resolve().parents[2])
    result = dict(environment)
    if root not in (*site.getsitepackages(), site.getusersitepackages()):
        paths = [path for path in result.get("PYTHONPATH", "").split(os.pathsep) if path]
        result["PYTHONPATH"] = os.pathsep.join(paths if root in paths else [*paths, root])
    return result
