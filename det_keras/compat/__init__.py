"""The package name `determined`: scripts that import the original's package get det_keras.

`path/` holds a small package of that name. It is appended to the ``PYTHONPATH`` of trials, where an installed
`determined` takes precedence. Who starts a script with one of our launchers asks for this package: it comes first
there, because a container of a Determined cluster always has the original, which cannot train with Keras 3.
``DET_KERAS_COMPAT=0`` switches it off.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["SWITCH", "with_determined"]

#: The variable that switches the package off with ``0``, and puts it before an installed one with ``first``.
SWITCH = "DET_KERAS_COMPAT"

_FOLDER = Path(__file__).parent / "path"


def with_determined(environ: Mapping[str, str], *, first: bool = False) -> dict[str, str]:
    """Return an environment in which Python scripts find `determined`, unless it is switched off.

    Args:
        environ: the environment.
        first: this package takes precedence over an installed one.
    """
    if environ.get(SWITCH) == "0":
        return dict(environ)
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if first:
        folders = [str(_FOLDER), *(folder for folder in folders if folder != str(_FOLDER))]
    elif str(_FOLDER) not in folders:
        folders.append(str(_FOLDER))
    return {**environ, "PYTHONPATH": os.pathsep.join(folders), **({SWITCH: "first"} if first else {})}
