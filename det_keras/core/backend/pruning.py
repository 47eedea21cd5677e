"""Which checkpoints a run that prunes its own storage keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from det_keras.core.backend.base import ENGINE_FORMAT, CheckpointRecord
from det_keras.protocol.metrics import number, rank


def superfluous(
    records: Sequence[CheckpointRecord], *, smaller_is_better: bool = True
) -> list[CheckpointRecord]:
    """Return all checkpoints of `fit` except the two newest, the best, and the last of each phase.

    A resume may need the checkpoint before the newest. A script may need the weights at the end of a phase.

    Args:
        records: all checkpoints of the run, newest first; those that a script stores itself are kept.
        smaller_is_better: how the searcher's metric compares.
    """
    records = [record for record in records if record.metadata.get("format") == ENGINE_FORMAT]
    last_of_phase: dict[Any, str] = {}
    for record in records:
        last_of_phase.setdefault(record.metadata.get("phase"), record.uuid)
    kept = {record.uuid for record in records[:2]} | set(last_of_phase.values())
    ranked = [
        (rank(value, smaller_is_better=smaller_is_better), record.uuid)
        for record in records
        if (value := number(record.metadata.get("searcher_metric"))) is not None
    ]
    if ranked:
        kept.add(min(ranked)[1])
    return [record for record in records if record.uuid not in kept]
