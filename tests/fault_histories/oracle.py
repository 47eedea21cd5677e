"""Judges the end of a history by what was acknowledged. Each function yields violations as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from det_keras import storage
from det_keras.errors import CheckpointError
from det_keras.home import Home
from det_keras.master.lifecycle import experiment_may_become, trial_may_become
from det_keras.protocol import states
from fault_histories import client_oracle, search_oracle, trial_oracle
from fault_histories.journal import Journal
from fault_histories.plan import Plan
from fault_histories.records import Records, Row

__all__ = ["Evidence", "judge"]

_PLAIN_STATES = frozenset({states.ACTIVE, states.PAUSED})


@dataclass(frozen=True)
class Evidence:
    """All that is known of a finished history.

    Attributes:
        plan: the history.
        journal: what clients sent, and what was acknowledged.
        home: the data root; its master was stopped.
        notes: the notes of trials, by allocation.
        killed_supervisors: the allocations whose supervisor was killed.
        was_full: whether the disk was full at some time.
        errors: answers of the master that say that it failed.
    """

    plan: Plan
    journal: Journal
    home: Home
    notes: Path
    killed_supervisors: frozenset[str]
    was_full: bool
    errors: tuple[str, ...] = ()


def judge(evidence: Evidence) -> list[str]:
    """Return all violations of a history."""
    records = Records(evidence.home.database)
    notes = trial_oracle.read_notes(evidence.notes)
    found = [] if records.integrity == "ok" else [f"The database is damaged: {records.integrity}."]
    found += _errors(evidence)
    found += _states(records)
    found += client_oracle.existence(evidence.plan, evidence.journal, records)
    found += client_oracle.experiments(evidence.journal, records)
    found += client_oracle.logins(evidence.journal, records)
    found += client_oracle.unmanaged(evidence.journal, records)
    found += client_oracle.jobs(evidence.journal, records, evidence.killed_supervisors, evidence.was_full)
    for experiment in records.experiments.values():
        if not experiment["is_unmanaged"]:
            found += search_oracle.search(experiment, records)
            found += trial_oracle.trials(experiment, records, notes)
    found += trial_oracle.logs(records, notes, evidence.killed_supervisors, was_full=evidence.was_full)
    found += _checkpoints(evidence, records, notes)
    return found


def _errors(evidence: Evidence) -> Iterator[str]:
    """A full disk has an answer of its own; there is no excuse for another failure."""
    for text in evidence.errors:
        yield f"The master failed at a request: {text}"


def _states(records: Records) -> Iterator[str]:
    """Each state is final, was entered in a legal way, and nothing runs."""
    for kind, rows in (("experiment", records.experiments), ("trial", records.trials)):
        for row in rows.values():
            if row["state"] not in states.TERMINAL or row["end_time"] is None:
                yield f"{kind} {row['id']} ends as {row['state']}."
    for task in records.tasks.values():
        if task["kind"] != "TRIAL" and task["end_time"] is None:
            yield f"Task {task['id']} has not ended."
    live: Counter[str] = Counter()
    for row in records.allocations:
        live[row["task_id"], row["run_id"]] += 1
        if row["end_time"] is None or row["state"] != "TERMINATED":
            yield f"Allocation {row['id']} has not ended."
    yield from (f"Run {key} exists {count} times." for key, count in live.items() if count > 1)
    for change in records.states:
        yield from _illegal(change, records)


def _illegal(change: Row, records: Records) -> Iterator[str]:
    kind, number, before, after = (change[name] for name in ("kind", "id", "before", "after"))
    experiment = records.experiments.get(number) if kind == "experiment" else None
    trial = records.trials.get(number) if kind == "trial" else None
    owner = records.experiments.get(trial["experiment_id"]) if trial is not None else experiment
    # A script outside of the master may report again after it was taken for lost.
    if owner is None or owner["is_unmanaged"]:
        return
    may_become = experiment_may_become if kind == "experiment" else trial_may_become
    is_end = kind == "trial" and after in states.TERMINAL and before in _PLAIN_STATES
    if not is_end and not may_become(before, after):
        yield f"The {kind} {number} went from {before} to {after}."


def _checkpoints(
    evidence: Evidence, records: Records, notes: Mapping[str, trial_oracle.RunNotes]
) -> Iterator[str]:
    """Records and files agree, and what was acknowledged is recorded once."""
    place = storage.from_config({"type": "directory", "container_path": str(evidence.home.checkpoints)})
    stored, known = set(place.checkpoints()), {row["uuid"]: row for row in records.checkpoints}
    for allocation_id, run in notes.items():
        for uuid in run.checkpoints:
            if uuid not in known:
                yield f"Checkpoint {uuid} of {allocation_id} was acknowledged and is not recorded."
    for uuid, row in known.items():
        if row["state"] == "COMPLETED":
            if uuid not in stored:
                yield f"Checkpoint {uuid} is recorded and has no files."
                continue
            try:
                with place.restore_path(uuid):
                    pass
            except (OSError, CheckpointError) as error:
                yield f"Checkpoint {uuid} is damaged: {error}"
        elif uuid in stored:
            yield f"Checkpoint {uuid} is {row['state']} and has files."
    yield from (f"Checkpoint {uuid} is stored and not recorded." for uuid in sorted(stored - known.keys()))
    yield from (f"{orphan.name} is left." for orphan in place.find_orphans(0.0))
    for row in records.checkpoints:
        if row["pending_deletion"] is not None:
            yield f"The deletion of checkpoint {row['uuid']} is pending."
