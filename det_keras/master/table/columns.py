"""The columns of the table of all trials: which there are, what a name means, and the value of a trial under it."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from det_keras.master.errors import InvalidArgumentError
from det_keras.master.table.rows import Row, Schema, time_of

#: From a trial to its value in a column.
Value = Callable[[Row], Any]


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        key: its name, as filters and addresses have it.
        title: its heading.
        kind: ``id``, ``experiment``, ``text``, ``state``, ``labels``, ``hparam``, ``metric``, ``number``, ``time`` or
            ``duration`` (in seconds).
    """

    key: str
    title: str
    kind: str


_FIXED: dict[str, tuple[Column, Value]] = {
    column.key: (column, value)
    for column, value in (
        (Column("id", "Trial", "id"), lambda row: row.id),
        (Column("experiment", "Experiment", "experiment"), lambda row: row.experiment.id),
        (Column("name", "Name", "text"), lambda row: row.experiment.name),
        (Column("description", "Description", "text"), lambda row: row.experiment.description),
        (Column("label", "Labels", "labels"), lambda row: list(row.experiment.labels)),
        (Column("owner", "Owner", "text"), lambda row: row.experiment.owner),
        (Column("best", "Best", "metric"), lambda row: row.best),
        (Column("metric", "Searcher's metric", "text"), lambda row: row.experiment.metric),
        (Column("batches", "Batches", "number"), lambda row: row.batches),
        (Column("restarts", "Restarts", "number"), lambda row: row.restarts),
        (Column("duration", "Duration", "duration"), lambda row: round(row.duration_s, 3)),
        (Column("started", "Started", "time"), lambda row: time_of(row, "started")),
        (Column("ended", "Ended", "time"), lambda row: time_of(row, "ended")),
        (Column("code", "Code", "text"), lambda row: row.experiment.code),
        (Column("archived", "Archived", "text"), lambda row: row.experiment.is_archived),
    )
}
_STATE = Column("state", "State", "state")
#: In the rows of groups.
COUNT = Column("trials", "Trials", "number")
# How a filter may call them, too.
_ALIASES = {"trial": "id", "labels": "label", "user": "owner"}
_ALWAYS_SHOWN = ("id", "name", "state", "best")
_SHOWN_AT_THE_END = ("duration", "started")
_SHOWN_HPARAMS = 6
_SHOWN_METRICS = 2
#: What groups have of each column of numbers: the mean, and the standard deviation of the population.
GROUP_FORMS = ("mean", "sd")
_NEAREST = 3


class Names:
    """The names that trials have, and the value of each.

    Args:
        rows: all trials.
        states: the state of each.
    """

    def __init__(self, rows: Sequence[Row], states: Mapping[int, str]) -> None:
        self._states = states
        self._is_empty = not rows
        self._schemas = list({id(row.schema): row.schema for row in rows}.values())
        self.all: dict[str, Column] = {key: column for key, (column, _) in _FIXED.items()}
        self.all["state"] = _STATE
        hparams = dict.fromkeys(name for schema in self._schemas for name in schema.hparams)
        metrics = dict.fromkeys(name for schema in self._schemas for name in schema.metrics)
        for kind, found in (("hparam", hparams), ("metric", metrics)):
            for name in found:
                self.all.setdefault(name, Column(name, name, kind))
        for name in metrics:
            for form, title in (("min", "smallest"), ("max", "largest")):
                key = f"{form}.{name}"
                self.all.setdefault(key, Column(key, f"{name} ({title})", "metric"))

    def check(self, name: str, *, is_grouped: bool) -> None:
        """Check that a name is known; groups have means and deviations, too.

        Raises:
            InvalidArgumentError: it is not.
        """
        form, _, rest = name.partition(".")
        bare = rest if is_grouped and form in GROUP_FORMS else name
        if self._is_empty or (is_grouped and name == COUNT.key) or self._candidates(bare):
            return
        known = {key.lower(): key for key in self.all}
        near = difflib.get_close_matches(name.lower(), known, _NEAREST, cutoff=0.5)
        hint = f" Did you mean {', '.join(f'`{known[key]}`' for key in near)}?" if near else ""
        quoted = "" if near else " To search for a text with an operator in it, put it into quotes."
        raise InvalidArgumentError(f"No trial has a value named `{name}`.{hint}{quoted}")

    def key_of(self, name: str) -> str:
        """Return the key of a name; itself if it is unknown."""
        return next(iter(self._candidates(name)), name)

    def column(self, name: str) -> Column:
        """Return the column of a name."""
        key = self.key_of(name)
        return self.all.get(key, Column(key, key, "text"))

    def value_of(self, name: str) -> Value:
        """Return a function from a trial to its value under a name; None for trials without one."""
        candidates = self._candidates(name)
        if "state" in candidates[:1]:
            return lambda row: self._states[row.id].lower()
        if candidates and candidates[0] in _FIXED:
            return _FIXED[candidates[0]][1]
        places: dict[int, int | None] = {}
        for schema in self._schemas:
            places[id(schema)] = _place(schema, candidates)

        def value(row: Row) -> Any:
            place = places[id(row.schema)]
            return None if place is None else row.values[place]

        return value

    def compared(self, name: str) -> Value:
        """Return what a filter compares: an experiment has a number and a name."""
        if self.key_of(name) == "experiment":
            return lambda row: (row.experiment.id, row.experiment.name)
        return self.value_of(name)

    def fitting(self, rows: Sequence[Row], asked: Iterable[str]) -> list[Column]:
        """Return the columns that say most about trials: hyperparameters that differ, metrics that most have.

        Args:
            rows: the trials.
            asked: names that are shown in any case.
        """
        counts = Counter(id(row.schema) for row in rows)
        schemas = {id(schema): schema for schema in self._schemas}
        hparams: Counter[str] = Counter()
        metrics: Counter[str] = Counter()
        for key, count in counts.items():
            hparams.update(dict.fromkeys(schemas[key].hparams, count))
            metrics.update(dict.fromkeys(schemas[key].metrics, count))
        differing = [name for name, _ in hparams.most_common(_SHOWN_HPARAMS * 4) if self._differs(rows, name)]
        wanted = [
            *_ALWAYS_SHOWN,
            *(self.key_of(name) for name in asked),
            *differing[:_SHOWN_HPARAMS],
            *(name for name, _ in metrics.most_common(_SHOWN_METRICS)),
            *_SHOWN_AT_THE_END,
        ]
        return [self.all[key] for key in dict.fromkeys(wanted) if key in self.all]

    def _differs(self, rows: Sequence[Row], name: str) -> bool:
        value = self.value_of(name)
        found: set[str] = set()
        for row in rows:
            found.add(repr(value(row)))
            if len(found) > 1:
                return True
        return False

    def _candidates(self, name: str) -> list[str]:
        """Return the keys that a name may mean, the likeliest first: `lr` is also the end of `optimizer.lr`."""
        lowered = name.lower()
        lowered = _ALIASES.get(lowered, lowered)
        if lowered == "state" or lowered in _FIXED:
            return [lowered]
        exact = [key for key in self.all if key.lower() == lowered]
        if not name:
            return []
        ends = (key for key in self.all if key.lower().endswith(f".{lowered}"))
        return [*exact, *(key for key in ends if not key.startswith(("min.", "max.")))]


def _place(schema: Schema, keys: Iterable[str]) -> int | None:
    return next((schema.places[key] for key in keys if key in schema.places), None)
