"""`det.experimental`: scripts that submit themselves, and access to experiments."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["client", "keras"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"det_keras.experimental.{name}")
    # Scripts of Determined import the names of the client from here.
    client = importlib.import_module("det_keras.experimental.client")
    try:
        return getattr(client, name)
    except AttributeError:
        raise AttributeError(f"module 'det_keras.experimental' has no attribute {name!r}") from None
