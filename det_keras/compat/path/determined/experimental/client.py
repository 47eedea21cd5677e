"""`determined.experimental.client`, provided by det_keras."""

from __future__ import annotations

import importlib
from typing import Any

from det_keras.experimental.client import *  # noqa: F403 - the same names


def __getattr__(name: str) -> Any:
    return getattr(importlib.import_module("det_keras.experimental.client"), name)
