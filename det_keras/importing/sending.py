"""Stores runs of other trackers on a master: each once, and completely or to be completed by the next import.

A run is sent in parts. The last part brings its fingerprint, which marks it as complete. A part that is sent again
changes nothing, so an import may be killed at any moment and started again. While a run is read, those before it are
sent by other threads.
"""

from __future__ import annotations

import enum
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from det_keras.errors import MasterError
from det_keras.importing.base import BrokenRun, BrokenRunError, Column, FoundRun, Run, Table
from det_keras.protocol.api import Api
from det_keras.protocol.imports import MOST_REPORTS, MOST_VALUES, packed
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.states import named
from det_keras.protocol.values import finite, timestamp

_LONGEST_ID = 255
_LONGEST_LABEL = 255
_MOST_LABELS = 200
_LONGEST_NAME = 1000
_LONGEST_NOTES = 100_000
# While the master writes one part, it decodes another.
_SENDERS = 2
# Runs that were read and wait for a sender: more would only need memory.
_MOST_WAITING = 4
# Names of metrics of which more is better.
_RISING = ("acc", "auc", "f1", "precision", "recall", "iou", "map", "score", "reward", "bleu", "rouge", "r2")


class Outcome(enum.Enum):
    """What the import of a run did: created it, added to it, or found it as it was."""

    NEW = "new"
    CONTINUED = "continued"
    UNCHANGED = "unchanged"


@dataclass
class Report:
    """What an import did.

    Attributes:
        counts: number of runs by outcome.
        failures: a sentence for each run that could not be imported.
    """

    counts: Counter[Outcome] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[outcome]} {outcome.value}" for outcome in Outcome)


def import_runs(
    api: Api,
    tracker: str,
    found: Iterable[FoundRun | BrokenRun],
    on_done: Callable[[], object] = lambda: None,
    on_failure: Callable[[str], object] = lambda text: None,
) -> Report:
    """Store runs on a master; those that it knows get only what is new.

    Args:
        api: the calls of the master.
        tracker: ``mlflow``, ``wandb`` or ``tensorboard``.
        found: the runs.
        on_done: called after each run.
        on_failure: called with a sentence for each run that cannot be imported.

    Raises:
        MasterUnavailableError: the master does not answer.
    """
    report = Report()

    def fail(text: str) -> None:
        report.failures.append(text)
        on_failure(text)
        on_done()

    runs: dict[str, FoundRun] = {}
    for each in found:
        if isinstance(each, BrokenRun):
            fail(str(each.error))
        else:
            runs[external_id(tracker, each.id)] = each
    known = api.imports.find(list(runs))
    waiting: dict[Future[Outcome], str] = {}

    def settle(most: int) -> None:
        """Wait until at most so many runs are left."""
        while len(waiting) > most:
            for done in wait(waiting, return_when=FIRST_COMPLETED).done:
                place = waiting.pop(done)
                try:
                    report.counts[done.result()] += 1
                    on_done()
                except MasterError as error:
                    fail(f"{place}: the master refused it: {error.message}")

    senders = ThreadPoolExecutor(_SENDERS, thread_name_prefix="import")
    try:
        for name, each in runs.items():
            before = known.get(name)
            if before is not None and before["fingerprint"] in (each.fingerprint, each.final or None):
                report.counts[Outcome.UNCHANGED] += 1
                on_done()
                continue
            try:
                run = _read(each)
            except BrokenRunError as error:
                fail(str(error))
                continue
            parts = list(parts_of(tracker, each, run))
            waiting[senders.submit(_send, api, name, parts, before)] = each.place
            settle(_MOST_WAITING)
        settle(0)
    finally:
        senders.shutdown(cancel_futures=True)
    return report


def _read(found: FoundRun) -> Run:
    try:
        return found.read()
    except OSError as error:
        # Such as a folder that was deleted or closed since the runs were found.
        raise BrokenRunError(f"{error.filename or found.place} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise BrokenRunError(f"{found.place} cannot be read: {error}.") from error


def external_id(tracker: str, run_id: str) -> str:
    """Return the name by which the master finds a run."""
    name = f"{tracker}:{run_id}"
    if len(name) <= _LONGEST_ID:
        return name
    return f"{tracker}:{hashlib.sha256(run_id.encode()).hexdigest()}"


def _send(
    api: Api, name: str, parts: Sequence[Mapping[str, Any]], before: Mapping[str, Any] | None
) -> Outcome:
    has_changed = False
    for part in parts:
        answer = api.imports.store(name, part)
        has_changed |= bool(answer["added"] or answer["changed"] or answer["hasChanged"])
    if before is None:
        return Outcome.NEW
    # Without a fingerprint, an earlier import was interrupted.
    return Outcome.CONTINUED if has_changed or not before["fingerprint"] else Outcome.UNCHANGED


def parts_of(tracker: str, found: FoundRun, run: Run) -> Iterator[dict[str, Any]]:
    """Yield the bodies of the calls that store a run; the last one completes it."""
    labels = _labels(tracker, run)
    head = {
        "config": json.dumps(_config(found, run, labels)),
        "hparams": finite(run.hparams),
        "startTime": timestamp(run.started),
        "metadata": {"tracker": tracker, "run": found.id, "place": found.place},
    }
    end = {
        "state": named(run.state),
        "endTime": timestamp(run.ended),
        "fingerprint": found.named(run),
        "labels": labels,
    }
    held: list[dict[str, Any]] = []
    rows = values = 0
    for group, table in run.tables.items():
        width = max(1, len(table.metrics))
        for columns, count in _split(group, table, max(1, min(MOST_REPORTS, MOST_VALUES // width))):
            if held and (rows + count > MOST_REPORTS or values + count * width > MOST_VALUES):
                yield {**head, "reports": held}
                held, rows, values = [], 0, 0
            held.append(columns)
            rows, values = rows + count, values + count * width
    yield {**head, "reports": held, "end": end}


def _split(group: str, table: Table, rows: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield the columns of a table, at most so many rows at a time, with the number of rows."""
    for start in range(0, len(table.steps), rows):
        end = start + rows
        metrics = {name: _column(column, start, end) for name, column in table.metrics.items()}
        columns = {
            "group": group,
            "steps": packed(table.steps[start:end]),
            "times": packed(table.times[start:end]),
            "metrics": {name: column for name, column in metrics.items() if column["values"]},
        }
        yield columns, len(table.steps[start:end])


def _column(column: Column, start: int, end: int) -> dict[str, str]:
    if column.rows is None:
        return {"values": packed(column.values[start:end])}
    first, behind = np.searchsorted(column.rows, [start, end])
    return {
        "values": packed(column.values[first:behind]),
        "rows": packed(column.rows[first:behind] - np.int32(start)),
    }


def _labels(tracker: str, run: Run) -> list[str]:
    """Return the labels of a run: the tracker, its project and its tags."""
    texts = [tracker, run.project, *run.tags]
    labels = dict.fromkeys(" ".join(text.split())[:_LONGEST_LABEL].strip() for text in texts)
    labels.pop("", None)
    return list(labels)[:_MOST_LABELS]


def _config(found: FoundRun, run: Run, labels: Sequence[str]) -> dict[str, Any]:
    metric = searcher_metric(run)
    smaller = not any(word in metric.lower() for word in _RISING)
    return {
        "name": " ".join((run.name or found.id).split())[:_LONGEST_NAME] or found.id[:_LONGEST_NAME],
        "description": run.notes[:_LONGEST_NOTES],
        "labels": list(labels),
        "searcher": {"name": "single", "metric": metric, "smaller_is_better": smaller},
    }


def searcher_metric(run: Run) -> str:
    """Return the validation metric by which runs are compared: the loss if there is one."""
    validation = run.tables.get(VALIDATION)
    names = [] if validation is None else list(validation.metrics)
    if not names or "val_loss" in names:
        return "val_loss"
    return min(names, key=lambda name: ("loss" not in name.lower(), len(name), name))


def failure_text(report: Report) -> str:
    """Return the sentence about the runs that could not be imported."""
    count = len(report.failures)
    return f"{count} {'run' if count == 1 else 'runs'} could not be imported."
