"""Waits for the end of an experiment or a trial."""

from __future__ import annotations

import time
from typing import Protocol

from det_keras.protocol.states import PAUSED, is_over


class _Stateful(Protocol):
    state: str

    def reload(self) -> None: ...


def wait_for_end(waited_for: _Stateful, name: str, *, interval_s: float, timeout_s: float | None) -> str:
    """Reload an object until it has ended or is paused, and return its state.

    Args:
        waited_for: the experiment or trial.
        name: describes it in an error.
        interval_s: time between two requests, in seconds.
        timeout_s: maximum time to wait, in seconds; None for no limit.

    Raises:
        TimeoutError: it has not ended in time.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        waited_for.reload()
        if is_over(waited_for.state) or waited_for.state == PAUSED:
            return waited_for.state
        left_s = interval_s if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"{name} has not ended after {timeout_s:g} s: its state is {waited_for.state}."
            )
        time.sleep(min(interval_s, left_s))
