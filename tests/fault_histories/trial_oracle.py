"""Judges trials: their metrics, their runs and their logs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fault_histories.plan import EPOCHS
from fault_histories.records import Records, Row
from fault_histories.task_scripts import first_state, metric_of, next_state

__all__ = ["RunNotes", "expected_losses", "logs", "read_notes", "trials"]


@dataclass
class RunNotes:
    """What one run of a trial knew to be acknowledged.

    Attributes:
        lines: how many lines it had printed.
        reported: the epochs whose reports were acknowledged.
        checkpoints: the checkpoints whose reports were acknowledged.
        resumed: the epoch from which it trained; None if it did not get that far.
        has_ended: whether its script came to its end.
    """

    lines: int = 0
    reported: list[int] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)
    resumed: int | None = None
    has_ended: bool = False


def read_notes(folder: Path) -> Mapping[str, RunNotes]:
    """Return the notes of all runs, by allocation."""
    return {path.name: _parse(path.read_text()) for path in folder.iterdir()}


def _parse(text: str) -> RunNotes:
    notes = RunNotes()
    for line in text.splitlines():
        kind, _, value = line.partition(" ")
        if kind == "line":
            notes.lines = int(value)
        elif kind == "reported":
            notes.reported.append(int(value))
        elif kind == "checkpoint":
            notes.checkpoints.append(value)
        elif kind == "resumed":
            notes.resumed = int(value)
        else:
            notes.has_ended = True
    return notes


def expected_losses(trial: Row) -> list[float]:
    """Return what an undisturbed run of a trial reports, by epoch; the first entry is unused."""
    state = first_state(trial["seed"], trial["hparams"])
    losses = [metric_of(state)]
    for epoch in range(1, EPOCHS + 1):
        state = next_state(state, epoch)
        losses.append(metric_of(state))
    return losses


def trials(experiment: Row, records: Records, notes: Mapping[str, RunNotes]) -> Iterator[str]:
    """The metrics of each trial are those of an undisturbed run, each reported once."""
    for trial in records.trials_of(experiment):
        rows = [row for row in records.metrics if row["trial_id"] == trial["id"]]
        rows = [row for row in rows if row["group"] in ("training", "validation")]
        yield from _values(trial, rows)
        yield from _acknowledged_reports(trial, rows, records, notes)
        yield from _resumed_where_it_was(trial, records, notes)


def _values(trial: Row, rows: list[Row]) -> Iterator[str]:
    name, losses = f"Trial {trial['id']}", expected_losses(trial)
    for row in rows:
        epoch = row["total_batches"]
        if not 1 <= epoch <= EPOCHS or row["metrics"]["loss"] != losses[epoch]:
            yield f"{name} reported {row['metrics']} at {epoch}, which no undisturbed run does."
    counts = Counter((row["run_id"], row["group"], row["total_batches"]) for row in rows)
    yield from (f"{name} has the report {key} {count} times." for key, count in counts.items() if count > 1)
    live = Counter((row["group"], row["total_batches"]) for row in rows if not row["archived"])
    yield from (f"{name} shows the report {key} {count} times." for key, count in live.items() if count > 1)
    trained = sorted(epoch for group, epoch in live if group == "training")
    if trained != list(range(1, len(trained) + 1)):
        yield f"{name} has reports of the epochs {trained}."
    validated = [epoch for group, epoch in live if group == "validation"]
    if not set(validated) <= set(trained):
        yield f"{name} has validations of {sorted(validated)} and trained {trained}."
    if rows and trial["total_batches"] != max(trained, default=0):
        yield f"{name} says that it trained {trial['total_batches']} of {trained} epochs."
    best = min((losses[epoch] for epoch in validated if 1 <= epoch <= EPOCHS), default=None)
    if trial["searcher_metric_value"] != best:
        yield f"{name} says that its best metric is {trial['searcher_metric_value']}; it is {best}."


def _acknowledged_reports(
    trial: Row, rows: list[Row], records: Records, notes: Mapping[str, RunNotes]
) -> Iterator[str]:
    stored = {(row["run_id"], row["group"], row["total_batches"]) for row in rows}
    live = {(row["group"], row["total_batches"]) for row in rows if not row["archived"]}
    for allocation in records.allocations_of(trial):
        run = notes.get(allocation["id"], RunNotes())
        lost = [epoch for epoch in run.reported if (allocation["run_id"], "validation", epoch) not in stored]
        # A report whose answer was lost may have been repeated in vain, as part of an earlier row of the same values.
        yield from (
            f"The validation of {allocation['id']} at {epoch} was acknowledged and is lost."
            for epoch in lost
            if ("validation", epoch) not in live
        )


def _resumed_where_it_was(trial: Row, records: Records, notes: Mapping[str, RunNotes]) -> Iterator[str]:
    """A run resumes at the newest checkpoint that the runs before it know to be acknowledged, or a newer one."""
    steps = {row["uuid"]: row["steps_completed"] for row in records.checkpoints}
    newest = 0
    for allocation in sorted(records.allocations_of(trial), key=lambda row: row["run_id"]):
        run = notes.get(allocation["id"], RunNotes())
        if run.resumed is not None and run.resumed < newest:
            yield f"{allocation['id']} resumed at {run.resumed}, and there was a checkpoint of {newest}."
        newest = max([newest, *(steps.get(uuid, 0) for uuid in run.checkpoints)])


def logs(
    records: Records, notes: Mapping[str, RunNotes], killed_supervisors: frozenset[str], *, was_full: bool
) -> Iterator[str]:
    """The numbered lines of each run are all there, in order and once.

    If a supervisor is killed, the lines that it had not yet read and written are lost, so the log of its run may end
    early. While the disk is full, supervisors drop lines, so then there may be gaps.
    """
    printed = records.lines_by_allocation()
    for allocation_id, run in notes.items():
        lines = [line for line in printed.get(allocation_id, []) if line.startswith("line ")]
        numbers = [int(line.split()[1]) for line in lines]
        if any(after <= before for before, after in itertools.pairwise(numbers)):
            yield f"The log of {allocation_id} has the lines {numbers}."
        elif numbers != list(range(len(numbers))) and not was_full:
            yield f"The log of {allocation_id} lacks lines: it has {numbers}."
        elif len(numbers) < run.lines and not was_full and allocation_id not in killed_supervisors:
            yield f"The log of {allocation_id} ends at {len(numbers)} of {run.lines} printed lines."
