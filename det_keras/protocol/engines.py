"""The engines that exchange gradients, and how a launcher names the one it chose to the ranks."""

from __future__ import annotations

__all__ = ["AUTO", "BUILTIN", "ENGINES", "ENGINE_VARIABLE", "HOROVOD"]

#: Overrides `optimizations.collective_engine`, and tells a rank which engine its launcher chose.
ENGINE_VARIABLE = "DET_KERAS_ENGINE"

#: Horovod where it can be imported, else the builtin engine.
AUTO = "auto"
#: Has to be built, and has NCCL on GPUs.
HOROVOD = "horovod"
#: Needs nothing: shared memory within a machine, connections between machines.
BUILTIN = "builtin"
ENGINES = (AUTO, HOROVOD, BUILTIN)
