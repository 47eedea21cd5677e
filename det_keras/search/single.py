"""No search: one trial, trained fully."""

from __future__ import annotations

from det_keras.search.base import Action, Draw
from det_keras.search.random_search import RandomSearch

__all__ = ["SingleSearch"]


class SingleSearch(RandomSearch):
    """Random search with one trial, which is never replaced.

    Args:
        max_length: the trial's length, in the unit of the config; None if the script decides.
    """

    needs_metric = False

    def __init__(self, max_length: int | None = None) -> None:
        super().__init__(max_trials=1, max_concurrent_trials=1, max_length=max_length)

    def trial_exited(self, draw: Draw, request_id: str) -> list[Action]:
        return []
