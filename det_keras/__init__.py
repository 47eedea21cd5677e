"""Managed training of Keras models: checkpoints, exact resume, metrics, search.

Names are resolved when they are first used. So importing this package does not import TensorFlow, and the command
line and the master start quickly.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from det_keras import strategy_hook
from det_keras.about import LOG_FORMAT, __version__

if TYPE_CHECKING:
    from det_keras import core, errors, experimental, keras
    from det_keras.cluster_info import get_cluster_info
    from det_keras.errors import InvalidHP

_SUBMODULES = ("core", "errors", "experimental", "keras")
_NAMES = {
    "InvalidHP": ("det_keras.errors", "InvalidHP"),
    "get_cluster_info": ("det_keras.cluster_info", "get_cluster_info"),
}

__all__ = [
    "LOG_FORMAT",
    "InvalidHP",
    "__version__",
    "core",
    "errors",
    "experimental",
    "get_cluster_info",
    "keras",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"det_keras.{name}")
    if name in _NAMES:
        module, attribute = _NAMES[name]
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'det_keras' has no attribute {name!r}")


def _make_strategy(environ: Mapping[str, str]) -> Any:
    # Imported here: importing TensorFlow takes seconds.
    from det_keras.keras.generations.strategy import strategy_of

    return strategy_of(environ)


strategy_hook.set_strategy_maker(_make_strategy)


def __dir__() -> list[str]:
    return sorted(__all__)
