"""Search methods: pure state machines without I/O, one file per method."""

from __future__ import annotations

from det_keras.search.base import (
    Action,
    Close,
    Create,
    ExitedReason,
    SearchMethod,
    Shutdown,
    Stop,
    ValidateAfter,
)
from det_keras.search.methods import from_config
from det_keras.search.preview import Preview, preview
from det_keras.search.searcher import Operation, Searcher

__all__ = [
    "Action",
    "Close",
    "Create",
    "ExitedReason",
    "Operation",
    "Preview",
    "SearchMethod",
    "Searcher",
    "Shutdown",
    "Stop",
    "ValidateAfter",
    "from_config",
    "preview",
]
