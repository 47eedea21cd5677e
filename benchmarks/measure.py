"""Timing in turns, and the lines that `run.py` reads."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

__all__ = ["Cost", "costs_in_turns", "in_turns", "report", "timed"]


@dataclass(frozen=True)
class Cost:
    """What an action cost in each of its turns.

    Attributes:
        wall: seconds of the wall clock.
        processor: seconds of processor time of the process and of its children that have ended.
    """

    wall: list[float]
    processor: list[float]

    @property
    def wall_s(self) -> float:
        """Median of the wall clock, in seconds."""
        return statistics.median(self.wall)

    @property
    def processor_s(self) -> float:
        """Median of the processor time, in seconds."""
        return statistics.median(self.processor)

    def ratios(self, other: Cost) -> tuple[float, float]:
        """Return the medians of the ratios to `other` in the same turns, of wall clock and processor time."""
        return (
            statistics.median(mine / others for mine, others in zip(self.wall, other.wall, strict=True)),
            statistics.median(
                mine / others for mine, others in zip(self.processor, other.processor, strict=True)
            ),
        )


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


def costs_in_turns(turns: int, *actions: Callable[[], object]) -> list[Cost]:
    """Run the actions one after another, so many times, and return what each turn cost."""
    costs = [Cost([], []) for _ in actions]
    for turn in range(turns):
        order = range(len(actions)) if turn % 2 == 0 else reversed(range(len(actions)))
        for index in order:
            before = sum(os.times()[:4])
            costs[index].wall.append(timed(actions[index]))
            costs[index].processor.append(sum(os.times()[:4]) - before)
    return costs


def report(
    name: str, value: float, *, unit: str = "ratio", goal: float | None = None, detail: str = ""
) -> None:
    """Print a measurement for `run.py`."""
    print(
        json.dumps({"name": name, "value": value, "unit": unit, "goal": goal, "detail": detail}), flush=True
    )
