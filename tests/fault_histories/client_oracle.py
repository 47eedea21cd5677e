"""Judges what clients sent: all that was acknowledged exists once, and nothing exists twice."""

from __future__ import annotations

from collections.abc import Iterator

from det_keras.protocol import states
from fault_histories.clients import LINES_PER_CALL
from fault_histories.journal import ACKNOWLEDGED, REFUSED, UNKNOWN, Entry, Journal
from fault_histories.plan import Plan
from fault_histories.records import Records, Row
from fault_histories.task_scripts import LINES_OF_JOB

__all__ = ["existence", "experiments", "jobs", "logins", "unmanaged"]


def existence(plan: Plan, journal: Journal, records: Records) -> Iterator[str]:
    """What was created exists once, and what was not sent does not exist."""
    sent = {entry.target for entry in journal.entries if entry.verb in ("create", "open")}
    created = {
        entry.target
        for entry in journal.entries
        if entry.verb in ("create", "open") and entry.outcome == ACKNOWLEDGED
    }
    jobs_found = [row for row in records.tasks.values() if row["kind"] == "COMMAND"]
    names = [row["description"] for row in (*records.experiments.values(), *jobs_found)]
    for name in sorted(sent | set(names)):
        count = names.count(name)
        if count > 1:
            yield f"`{name}` exists {count} times."
        elif count == 0 and name in created:
            yield f"`{name}` was created and does not exist."
        elif name not in sent:
            yield f"`{name}` exists and was never sent."
    for entry in journal.entries:
        if entry.outcome == ACKNOWLEDGED and entry.verb == "create":
            is_known = entry.answer in records.experiments or entry.answer in records.tasks
            if not is_known:
                yield f"`{entry.target}` was created as {entry.answer}, which does not exist."


def experiments(journal: Journal, records: Records) -> Iterator[str]:
    """Each experiment has what was last acknowledged, and ended as it was told to."""
    for row in records.experiments.values():
        name = row["description"]
        if row["is_unmanaged"]:
            continue
        yield from _labels(row, list(journal.of(name, "label", "unlabel")))
        yield from _notes(row, list(journal.of(name, "notes")))
        yield from _archived(row, list(journal.of(name, "archive")))
        # The end of its only trial ends a search too.
        ends = list(journal.of(name, "kill", "cancel", "kill trial"))
        if row["state"] == states.CANCELED and not ends:
            yield f"`{name}` was canceled, and no client asked for it."
        for entry in journal.of(name, "kill trial"):
            trial = records.trials.get(entry.value)
            if entry.outcome == ACKNOWLEDGED and trial is not None and trial["state"] not in states.TERMINAL:
                yield f"Trial {entry.value} was killed and is {trial['state']}."


def _labels(row: Row, entries: list[Entry]) -> Iterator[str]:
    found = row["labels"]
    if len(found) != len(set(found)):
        yield f"`{row['description']}` has the labels {found}."
    for label in {entry.value for entry in entries} | set(found):
        expected = _possible([entry for entry in entries if entry.value == label], "label", absent=False)
        if (label in found) not in expected:
            yield f"`{row['description']}` has the labels {found}; `{label}` is wrong."


def _notes(row: Row, entries: list[Entry]) -> Iterator[str]:
    possible = {""}
    for entry in entries:
        if entry.outcome == ACKNOWLEDGED:
            possible = {entry.value}
        elif entry.outcome == UNKNOWN:
            possible.add(entry.value)
    if row["notes"] not in possible:
        yield f"`{row['description']}` has the notes {row['notes']!r}, expected {possible}."


def _archived(row: Row, entries: list[Entry]) -> Iterator[str]:
    # A repeated request is refused, since the first one has archived it.
    expected = {bool(entries)} if all(entry.outcome != UNKNOWN for entry in entries) else {True, False}
    if bool(row["archived"]) not in expected:
        yield f"`{row['description']}` is {'archived' if row['archived'] else 'not archived'}."


def _possible(entries: list[Entry], positive: str, *, absent: bool) -> set[bool]:
    """Return what may be true after some requests, of which each says yes or no."""
    possible = {absent}
    for entry in entries:
        if entry.outcome == ACKNOWLEDGED:
            possible = {entry.verb == positive}
        elif entry.outcome == UNKNOWN:
            possible.add(entry.verb == positive)
    return possible


def unmanaged(journal: Journal, records: Records) -> Iterator[str]:
    """The trials of scripts outside of the master have each report and each line once, in order."""
    for experiment in records.experiments.values():
        if not experiment["is_unmanaged"]:
            continue
        name, trials = experiment["description"], records.trials_of(experiment)
        if len(trials) > 1:
            yield f"`{name}` has {len(trials)} trials."
        for trial in trials[:1]:
            yield from _reports(name, trial, journal, records)
            yield from _lines(name, trial, journal, records)
            ended = [entry for entry in journal.of(name, "finish") if entry.outcome == ACKNOWLEDGED]
            if ended and (trial["state"], experiment["state"]) != (states.COMPLETED, states.COMPLETED):
                yield f"`{name}` was completed; its trial is {trial['state']}, it is {experiment['state']}."


def _reports(name: str, trial: Row, journal: Journal, records: Records) -> Iterator[str]:
    sent = {entry.value: entry for entry in journal.of(name, "report")}
    found = [row["total_batches"] for row in records.metrics if row["trial_id"] == trial["id"]]
    for step, entry in sent.items():
        count = found.count(step)
        if count > 1 or (count == 0 and entry.outcome == ACKNOWLEDGED):
            yield f"The report {step} of `{name}` was {entry.outcome} and exists {count} times."
        if entry.outcome == REFUSED:
            yield f"The report {step} of `{name}` was refused: {entry.answer}"
    for row in records.metrics:
        if row["trial_id"] == trial["id"] and row["metrics"] != {"loss": 1 / row["total_batches"]}:
            yield f"The report {row['total_batches']} of `{name}` has {row['metrics']}."


def _lines(name: str, trial: Row, journal: Journal, records: Records) -> Iterator[str]:
    found = records.lines_of_task(trial["task_id"])
    required, possible = [], []
    for entry in journal.of(name, "log"):
        lines = [f"step {entry.value} line {number}" for number in range(LINES_PER_CALL)]
        possible += lines
        required += lines if entry.outcome == ACKNOWLEDGED else []
    if len(found) != len(set(found)) or found != [line for line in possible if line in found]:
        yield f"The log of `{name}` has {found}, sent was {possible}."
    elif missing := [line for line in required if line not in found]:
        yield f"The log of `{name}` lacks {missing}."


def logins(journal: Journal, records: Records) -> Iterator[str]:
    """A login works until its end, and never after."""
    for login in journal.entries:
        if login.verb != "log in" or login.outcome != ACKNOWLEDGED:
            continue
        # Of one client, in their order. A logout that is repeated is refused, since the first one was done.
        state: bool | None = True
        for entry in journal.of(login.target, "log out", "use"):
            is_unauthorized = entry.outcome == REFUSED and str(entry.answer).startswith("401")
            if entry.verb == "use":
                if (entry.outcome == ACKNOWLEDGED and state is False) or (is_unauthorized and state is True):
                    yield f"`{login.target}` was {'used after its end' if state is False else 'lost'}."
            elif entry.outcome == ACKNOWLEDGED or is_unauthorized:
                state = False
            elif state:
                # No answer came.
                state = None
        is_valid = login.answer in records.tokens
        if state is not None and is_valid != state:
            yield f"`{login.target}` is {'valid after its end' if is_valid else 'lost'} in the database."


def jobs(
    journal: Journal, records: Records, killed_supervisors: frozenset[str], was_full: bool
) -> Iterator[str]:
    """Each job ran once, and its lines are there in order."""
    printed = records.lines_by_allocation()
    whole = [*(f"line {number}" for number in range(LINES_OF_JOB)), "end"]
    for task in records.tasks.values():
        if task["kind"] != "COMMAND":
            continue
        attempts = [row for row in records.allocations if row["task_id"] == task["id"]]
        if len(attempts) != 1:
            yield f"Job `{task['description']}` ran {len(attempts)} times."
        for attempt in attempts:
            lines = printed.get(attempt["id"], [])
            if attempt["exit_code"] == 0 and lines != whole and not was_full:
                yield f"The log of `{task['description']}` has {lines}."
            if lines != [line for line in whole if line in lines]:
                yield f"The log of `{task['description']}` has {lines}, out of order or doubled."
