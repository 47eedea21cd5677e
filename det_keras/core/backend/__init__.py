"""The destinations of a training process's reports: the master of its trial, or a run directory."""

from __future__ import annotations

from det_keras.core.backend.base import Backend, CheckpointRecord, Operation

__all__ = ["Backend", "CheckpointRecord", "Operation"]
