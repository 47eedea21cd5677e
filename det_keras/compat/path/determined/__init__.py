"""`determined` for scripts of the original, provided by det_keras.

An installed original takes precedence, unless a launcher of det_keras started the script.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

_OWN_FOLDER = Path(__file__).resolve().parents[1]
_SUBMODULES = ("core", "errors", "experimental", "keras", "launch")
_NAMES = ("InvalidHP", "LOG_FORMAT", "get_cluster_info")

#: Version of the release whose names are provided.
__version__ = "0.38.1+det.keras"


def _installed() -> Any:
    """Return the import spec of another `determined`, None if there is no other."""
    # Another copy of det_keras may have put its own folder on the path as well.
    others = [
        entry for entry in sys.path if Path(entry or ".").resolve().parts[-3:] != _OWN_FOLDER.parts[-3:]
    ]
    spec = importlib.machinery.PathFinder.find_spec("determined", others)
    # A plain folder of that name is not a package.
    return spec if spec is not None and spec.loader is not None and spec.origin is not None else None


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"determined.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module("det_keras"), name)
    if name in ("ClusterInfo", "TrialInfo"):
        return getattr(importlib.import_module("det_keras.cluster_info"), name)
    raise AttributeError(
        f"module 'determined' has no attribute {name!r}. det_keras provides it here, with "
        f"{', '.join(sorted((*_SUBMODULES, *_NAMES)))}."
    )


class _Others(importlib.abc.MetaPathFinder):
    """Says what to do where a script imports a part of the original that det_keras does not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.startswith("determined."):
            raise ModuleNotFoundError(
                f"No module named {name!r}: det_keras provides `determined` here, with the parts that train Keras "
                "models. For the others install the original into an environment of its own; `det.core` trains with "
                "any framework.",
                name=name,
            )


_spec = None if os.environ.get("DET_KERAS_COMPAT") == "first" else _installed()
if _spec is not None:
    # The import that is executing this module then uses the entry in `sys.modules`.
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _module
    _spec.loader.exec_module(_module)
elif os.environ.get("DET_KERAS_COMPAT") == "0":
    raise ModuleNotFoundError(
        "No module named 'determined': DET_KERAS_COMPAT=0 keeps det_keras from providing it.",
        name="determined",
    )
else:
    # Last: what there is, others have found.
    sys.meta_path.append(_Others())
