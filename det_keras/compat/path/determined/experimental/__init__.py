"""`determined.experimental`, provided by det_keras."""

from __future__ import annotations

import importlib
from typing import Any

_SUBMODULES = ("client", "keras")


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"determined.experimental.{name}")
    return getattr(importlib.import_module("det_keras.experimental"), name)
