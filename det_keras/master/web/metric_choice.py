"""The metrics that can be plotted, and their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.protocol.metrics import POSITIONS, group_of, summary_name

_VALIDATION = "validation"


@dataclass(frozen=True, order=True)
class Metric:
    """One metric of a group.

    Attributes:
        group: ``training``, ``validation`` or a name chosen by the user.
        name: name in the group.
    """

    group: str
    name: str

    @property
    def key(self) -> str:
        """The name in forms and addresses. A group's name has no dot, a metric's name may have one."""
        return f"{self.group}.{self.name}"

    @property
    def summary_group(self) -> str:
        """The name of the group in the summaries of a trial."""
        return summary_name(self.group)

    @classmethod
    def of(cls, key: str) -> Metric:
        """Return the metric of a key."""
        group, _, name = key.partition(".")
        return cls(group, name)


def metric_choices(trials: Iterable[Mapping[str, Any]], first: str) -> list[Metric]:
    """Return all numeric metrics that trials reported; the searcher's metric comes first."""
    wanted = Metric(_VALIDATION, first)
    key = lambda metric: (metric != wanted, metric.group != _VALIDATION, metric)  # noqa: E731
    return sorted(metrics_of(trials), key=key)


def metrics_of(trials: Iterable[Mapping[str, Any]]) -> set[Metric]:
    """Return all numeric metrics that trials reported."""
    found: set[Metric] = set()
    for trial in trials:
        for summary_group, summaries in (trial["summaryMetrics"] or {}).items():
            group = group_of(summary_group)
            found.update(
                Metric(group, name)
                for name, summary in summaries.items()
                if summary.get("type") == "number" and name not in POSITIONS
            )
    return found


def finite(value: float | None) -> float | None:
    """Return a value that can be drawn and compared; None for others."""
    return value if value is not None and math.isfinite(value) else None
