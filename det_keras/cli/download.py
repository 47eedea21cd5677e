"""Which checkpoints a command downloads, and where to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.protocol.metrics import best_first

if TYPE_CHECKING:
    from det_keras.client import Session


def fetch_checkpoint(session: Session, uuid: str) -> dict[str, Any]:
    """Return the record of a checkpoint."""
    return session.api.checkpoints.get(uuid)


def default_target(uuid: str) -> Path:
    """Return the default target directory of a checkpoint."""
    return Path("checkpoints") / uuid


def best_checkpoints_first(checkpoints: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return checkpoints by the searcher's metric, best first; those without the metric are last, newest first."""
    searchers = ((one["training"].get("experimentConfig") or {}).get("searcher") or {} for one in checkpoints)
    smaller = next(
        (searcher["smaller_is_better"] for searcher in searchers if "smaller_is_better" in searcher), True
    )
    return best_first(
        checkpoints,
        lambda checkpoint: checkpoint["training"].get("searcherMetric"),
        smaller_is_better=bool(smaller),
        otherwise=lambda checkpoint: -int((checkpoint.get("metadata") or {}).get("steps_completed") or 0),
    )
