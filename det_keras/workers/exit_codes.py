"""Exit codes with a meaning between a rank and its launcher."""

from __future__ import annotations

from collections.abc import Mapping

from det_keras.workers.heartbeat import ADDRESS_VARIABLE

#: A rank's script raised `InvalidHP`. With 0, the launcher would wait for the other ranks, which wait for this one.
REJECTS_HPARAMS = 79


def code_of_rejection(environ: Mapping[str, str]) -> int:
    """Return the exit code after `InvalidHP`: 0, which a master takes for a regular end, except below our launcher."""
    return REJECTS_HPARAMS if environ.get(ADDRESS_VARIABLE) else 0
