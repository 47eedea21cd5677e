"""`det.experimental`: the script that submits itself."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["keras"]


def __getattr__(name: str) -> Any:
    if name == "keras":
        return importlib.import_module("det_keras.experimental.keras")
    raise AttributeError(f"module 'det_keras.experimental' has no attribute {name!r}")
