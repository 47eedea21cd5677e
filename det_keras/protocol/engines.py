"""The engines that exchange gradients, and how a launcher names the one it chose to the ranks."""

from __future__ import annotations

from collections.abc import Mapping

from det_keras.errors import DetError

#: Overrides `optimizations.collective_engine`, and tells a rank which engine its launcher chose.
ENGINE_VARIABLE = "DET_KERAS_ENGINE"

#: Horovod where it can be imported, else the builtin engine.
AUTO = "auto"
#: Has to be built, and has NCCL on GPUs.
HOROVOD = "horovod"
#: Needs nothing: shared memory within a machine, connections between machines.
BUILTIN = "builtin"
ENGINES = (AUTO, HOROVOD, BUILTIN)


def named_engine(environ: Mapping[str, str]) -> str | None:
    """Return the engine that the variable names; None if it names none.

    Raises:
        DetError: there is no such engine.
    """
    # On a Determined cluster the config's value travels in this variable, as JSON.
    name = environ.get(ENGINE_VARIABLE, "").strip('"')
    if name and name not in ENGINES:
        raise DetError(f"{ENGINE_VARIABLE} is {name!r}; expected one of {', '.join(ENGINES)}.")
    return name or None
