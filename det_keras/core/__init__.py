"""The framework-free interface between a training process and its cluster."""

from __future__ import annotations

from det_keras.core.checkpoint import CheckpointContext, DownloadMode
from det_keras.core.context import Context, init
from det_keras.core.distributed import DistributedContext
from det_keras.core.preempt import PreemptContext, PreemptMode
from det_keras.core.profiler import ProfilerContext
from det_keras.core.searcher import SearcherContext, SearcherMode, SearcherOperation, Unit
from det_keras.core.tensorboard import TensorboardMode
from det_keras.core.train import EarlyExitReason, TrainContext

__all__ = [
    "CheckpointContext",
    "Context",
    "DistributedContext",
    "DownloadMode",
    "EarlyExitReason",
    "PreemptContext",
    "PreemptMode",
    "ProfilerContext",
    "SearcherContext",
    "SearcherMode",
    "SearcherOperation",
    "TensorboardMode",
    "TrainContext",
    "Unit",
    "init",
]
