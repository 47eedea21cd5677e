"""The contract of a tracker: it finds runs below a path, and reads one run at a time.

A tracker's files are only read. Finding a run reads little of it: its id, its place, and its *fingerprint*, which
changes whenever the run does. A run whose fingerprint the master knows is not read.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from det_keras.errors import DetError
from det_keras.protocol.metrics import TRAINING, VALIDATION
from det_keras.protocol.states import ACTIVE, ERROR

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

#: A run without an end that was not written for this time has failed without saying so.
LOST_AFTER = timedelta(days=1)
# Part of each fingerprint: a release that reads more of a run imports it again.
_FORMAT = 1
_START = datetime(1970, 1, 1, tzinfo=timezone.utc)
# Times in other units, as those of a wrong clock, would not fit into a date.
_LAST_MICROSECOND = int((datetime(9999, 12, 31, tzinfo=timezone.utc) - _START).total_seconds()) * 1_000_000
_VALIDATION_NAME = re.compile(r"(val|valid|validation|eval|evaluation)[_/.\-]", re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?(0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"[+-]?(0|[1-9]\d*)?(\.\d*)?([eE][+-]?\d{1,3})?")
_CONSTANTS = {"True": True, "False": False, "true": True, "false": False, "None": None}


class BrokenRunError(DetError):
    """A run cannot be read; the message names the file and the place in it."""


class WrongPathError(DetError):
    """The path is missing, or has nothing of the tracker."""


@dataclass(frozen=True)
class Column:
    """The values of a metric in a table.

    Attributes:
        values: float64, (values,).
        rows: int32, (values,): the rows of the values, ascending; None if each row has one.
    """

    values: Floats
    rows: npt.NDArray[np.int32] | None = None


@dataclass(frozen=True)
class Table:
    """Reports of one group, by step.

    Attributes:
        steps: (rows,): ascending, each once.
        times: (rows,): in microseconds since 1970.
        metrics: the columns, by the name of the metric.
    """

    steps: Integers
    times: Integers
    metrics: Mapping[str, Column]


@dataclass(frozen=True)
class Series:
    """The points of one metric, in the order in which they were written; of a step, the last point counts.

    Attributes:
        steps: (points,).
        times: (points,): in microseconds since 1970.
        values: (points,).
    """

    steps: Integers
    times: Integers
    values: Floats

    @classmethod
    def of(cls, steps: Sequence[int], times: Sequence[float], values: Sequence[float], unit: float) -> Series:
        """Return the series of points; `unit` is that of the times, in microseconds.

        Raises:
            ValueError: a step has more than 64 bits.
        """
        try:
            whole = np.array(steps, np.int64)
        except OverflowError:
            raise ValueError("a step has more than 64 bits") from None
        moments = np.nan_to_num(np.array(times, np.float64) * unit, nan=0.0)
        return cls(
            whole, np.clip(moments, 0, _LAST_MICROSECOND).astype(np.int64), np.array(values, np.float64)
        )

    def sorted(self) -> Series:
        """Return the points in the order of steps, each step once."""
        if (np.diff(self.steps) > 0).all():
            return self
        order = np.argsort(self.steps, kind="stable")
        steps = self.steps[order]
        # Of equal steps the last, which the stable order keeps behind the others.
        order = order[np.append(steps[1:] != steps[:-1], True)]
        return Series(self.steps[order], self.times[order], self.values[order])


@dataclass
class Points:
    """The points of one metric while they are read; times are in seconds since 1970."""

    steps: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def series(self) -> Series:
        """Return the points; see `Series.of`."""
        return Series.of(self.steps, self.times, self.values, 1_000_000)


@dataclass(frozen=True)
class Run:
    """One run of another tracker.

    Attributes:
        name: as the tracker shows it; "" if it has none.
        project: the tracker's project or experiment; "" if it has none.
        state: ACTIVE, COMPLETED, ERROR or CANCELED.
        started: when it started.
        ended: when it ended; None if it has not.
        hparams: its parameters, nested or not.
        tags: words, which become labels.
        notes: a text, which becomes the description.
        tables: its metrics, by group.
        has_end: whether the tracker says how it ended.
    """

    name: str
    project: str
    state: str
    started: datetime
    ended: datetime | None
    hparams: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    notes: str = ""
    tables: Mapping[str, Table] = field(default_factory=dict)
    has_end: bool = True


@dataclass(frozen=True)
class FoundRun:
    """A run that was found and not read yet.

    Attributes:
        id: names the run among those of its tracker, wherever its files are moved.
        place: where it is, for messages.
        fingerprint: changes whenever the run changes.
        read: reads the run; raises BrokenRunError if it cannot be read.
        final: replaces the fingerprint if the run, once it is read, turns out to have ended; "" for no replacement.
    """

    id: str
    place: str
    fingerprint: str
    read: Callable[[], Run]
    final: str = ""

    def named(self, run: Run) -> str:
        """Return the fingerprint of the run that was read."""
        return self.final if self.final and run.has_end else self.fingerprint


@dataclass(frozen=True)
class BrokenRun:
    """A run whose id cannot be read.

    Attributes:
        error: names the file and the place in it.
    """

    error: BrokenRunError


#: Finds the runs below a path, only those of a project if one is named, at a time.
Find = Callable[[Path, "str | None", datetime], Iterator["FoundRun | BrokenRun"]]


def fingerprint(*facts: Any) -> str:
    """Return a short text that changes with each of the facts, which are plain values."""
    return hashlib.sha256(json.dumps([_FORMAT, *facts]).encode()).hexdigest()[:32]


def file_facts(paths: Iterable[Path], root: Path) -> list[tuple[str, int, int]]:
    """Return the name, the size and the time of the last change of each file."""
    facts = []
    for path in paths:
        status = path.stat()
        facts.append((str(path.relative_to(root)), status.st_size, status.st_mtime_ns))
    return sorted(facts)


def open_state(written: datetime, at: datetime) -> str:
    """Return the state of a run that says nothing of its end.

    Args:
        written: when its files were last written.
        at: the current time.
    """
    return ACTIVE if at - written < LOST_AFTER else ERROR


def group_of(name: str) -> str:
    """Return the group of a metric, by its name: validations have a prefix such as ``val_`` or ``eval/``."""
    return VALIDATION if _VALIDATION_NAME.match(name) else TRAINING


def tables_of(series: Mapping[str, Series], group: Callable[[str], str] = group_of) -> dict[str, Table]:
    """Return the metrics of a run by step.

    Args:
        series: the points of each metric.
        group: returns the group of a metric.
    """
    by_group: dict[str, dict[str, Series]] = {}
    for name in sorted(series):
        if len(series[name].steps):
            by_group.setdefault(group(name), {})[name] = series[name].sorted()
    return {name: _table(members) for name, members in by_group.items()}


def _table(series: Mapping[str, Series]) -> Table:
    all_series = list(series.values())
    first = all_series[0]
    if all(np.array_equal(each.steps, first.steps) for each in all_series[1:]):
        # The usual case: every metric at every step.
        times = np.max([each.times for each in all_series], axis=0)
        return Table(first.steps, times, {name: Column(each.values) for name, each in series.items()})
    steps = np.unique(np.concatenate([each.steps for each in all_series]))
    times = np.zeros(len(steps), np.int64)
    metrics = {}
    for name, each in series.items():
        rows = np.searchsorted(steps, each.steps)
        times[rows] = np.maximum(times[rows], each.times)
        is_whole = len(rows) == len(steps)
        metrics[name] = Column(each.values, None if is_whole else rows.astype(np.int32))
    return Table(steps, times, metrics)


def last_time(tables: Mapping[str, Table], otherwise: datetime) -> datetime:
    """Return the time of the last report, or another one if there is none."""
    times = [int(table.times.max()) for table in tables.values() if len(table.times)]
    return time_at(max(times)) if times else otherwise


def time_at(microseconds: float) -> datetime:
    """Return the time so many microseconds after 1970, or the nearest one that can be stored."""
    whole = 0 if math.isnan(microseconds) else int(min(max(microseconds, 0), _LAST_MICROSECOND))
    return _START + timedelta(microseconds=whole)


def value_of(text: str) -> Any:
    """Return what a parameter that is stored as text was: a number, a boolean, None, or the text.

    Only texts that Python writes for numbers are numbers: ``007`` stays a text.
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text) and any(character.isdigit() for character in text[:1] + text[1:2]):
        try:
            return float(text)
        except ValueError:
            return text
    return text
