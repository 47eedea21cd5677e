"""Which metrics there are to draw, and which one people want to see first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.protocol.metrics import group_of

__all__ = ["Metric", "metric_choices", "paired"]

_VALIDATION = "validation"
# Where a report belongs, not what was measured.
_PLACES = frozenset({"batches", "epoch", "epochs", "records"})


@dataclass(frozen=True, order=True)
class Metric:
    """One metric of a group.

    Attributes:
        group: ``training``, ``validation`` or a name of the user's.
        name: in that group.
    """

    group: str
    name: str

    @property
    def key(self) -> str:
        """How forms and addresses name it: a group has no dot in its name, a metric may have."""
        return f"{self.group}.{self.name}"

    @classmethod
    def of(cls, key: str) -> Metric:
        """Return the metric of a key."""
        group, _, name = key.partition(".")
        return cls(group, name)


def metric_choices(trials: Iterable[Mapping[str, Any]], first: str) -> list[Metric]:
    """Return all numeric metrics that trials reported, the one that the search looks at first."""
    found: set[Metric] = set()
    for trial in trials:
        for summary_group, summaries in (trial["summaryMetrics"] or {}).items():
            group = group_of(summary_group)
            found.update(
                Metric(group, name)
                for name, one in summaries.items()
                if one.get("type") == "number" and name not in _PLACES
            )
    wanted = Metric(_VALIDATION, first)
    return sorted(found, key=lambda one: (one != wanted, one.group != _VALIDATION, one))


def paired(metrics: Sequence[Metric]) -> list[tuple[str, list[Metric]]]:
    """Return metrics that belong into one plot under its title: ``loss`` of training beside ``val_loss``."""
    plots: dict[str, list[Metric]] = {}
    for metric in sorted(metrics):
        plots.setdefault(metric.name.removeprefix("val_"), []).append(metric)
    return list(plots.items())
