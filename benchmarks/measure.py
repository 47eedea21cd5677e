"""Timing in turns, and the lines that `run.py` reads."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__all__ = ["in_turns", "report", "timed"]


def timed(action: Callable[[], object]) -> float:
    """Return how long `action` takes, in seconds."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def in_turns(turns: int, *actions: Callable[[], object]) -> list[float]:
    """Run the actions one after another, so many times, and return the median seconds of each."""
    seconds: list[list[float]] = [[] for _ in actions]
    for turn in range(turns):
        order = range(len(actions)) if turn % 2 == 0 else reversed(range(len(actions)))
        for index in order:
            seconds[index].append(timed(actions[index]))
    return [statistics.median(values) for values in seconds]


def report(
    name: str, value: float, *, unit: str = "ratio", goal: float | None = None, detail: str = ""
) -> None:
    """Print a measurement for `run.py`."""
    print(
        json.dumps({"name": name, "value": value, "unit": unit, "goal": goal, "detail": detail}), flush=True
    )
