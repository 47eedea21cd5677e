"""The framework-free seam between a training process and its cluster."""

from __future__ import annotations

from det_keras.core.context import Context, init
from det_keras.core.distributed import DistributedContext

__all__ = ["Context", "DistributedContext", "init"]
