"""The package name `determined`: scripts that import the original's package get det_keras.

`path/` holds a small package of that name. Our launchers append it to the ``PYTHONPATH`` of the processes that they
start, so an installed `determined` takes precedence. ``DET_KERAS_COMPAT=0`` switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SWITCH", "with_determined"]

#: The variable that switches the package off, when it is ``0``.
SWITCH = "DET_KERAS_COMPAT"

_FOLDER = Path(__file__).parent / "path"


def with_determined(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which Python scripts find `determined`, unless it is switched off."""
    if environ.get(SWITCH) == "0":
        return dict(environ)
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if str(_FOLDER) not in folders:
        folders.append(str(_FOLDER))
    return {**environ, "PYTHONPATH": os.pathsep.join(folders)}
