"""Judges searches: the master's decisions are those of the pure searcher for the events that it received."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from det_keras import search as searches
from det_keras.master.database.lookups import config_of
from det_keras.protocol import states
from det_keras.search import Action, Create, ExitedReason, Searcher, Stop
from det_keras.search.simulate import SimulatedTrial, simulate
from fault_histories.plan import EPOCHS
from fault_histories.records import Records, Row
from fault_histories.trial_oracle import expected_losses

__all__ = ["search"]


def search(experiment: Row, records: Records) -> Iterator[str]:
    """The trials of an experiment are those that its search decided, and it was told the truth."""
    name = f"Experiment {experiment['id']}"
    events = [row["event"] for row in records.events if row["experiment_id"] == experiment["id"]]
    trials = records.trials_of(experiment)
    searcher = searches.from_config(config_of(SimpleNamespace(config=experiment["config"])))  # type: ignore[arg-type]
    decided, stopped, problems = _replay(searcher, events)
    yield from (f"{name}: {problem}" for problem in problems)
    expected = [(action.request_id, dict(action.hparams), action.seed) for action in decided]
    found = [(trial["request_id"], trial["hparams"], trial["seed"]) for trial in trials]
    if found != expected:
        yield f"{name} has the trials {found}; its search decided {expected}."
    yield from _truth(experiment, events, trials, records)
    yield from _ends(experiment, records, stopped, searcher)


def _replay(searcher: Searcher, events: Sequence[list[Any]]) -> tuple[list[Create], set[str], list[str]]:
    """Pass the events to a new searcher; return which trials it created and stopped, and what is wrong."""
    created: list[Create] = []
    stopped: set[str] = set()
    problems = []
    awaited: deque[str] = deque()
    for name, *arguments in events:
        if name == "trials_created":
            for request_id in arguments[0]:
                if request_id not in awaited:
                    problems.append(f"a trial was created that the search did not decide: {request_id}.")
                else:
                    awaited.remove(request_id)
        elif name == "trial_exited_early":
            arguments[1] = ExitedReason(arguments[1])
        actions: Sequence[Action] = getattr(searcher, name)(*arguments) or ()
        for action in actions:
            if isinstance(action, Create):
                created.append(action)
                awaited.append(action.request_id)
            elif isinstance(action, Stop):
                stopped.add(action.request_id)
    if events and events[0][0] != "initial":
        problems.append(f"its search began with {events[0]}.")
    problems += [f"the trial {request_id} was decided and not created." for request_id in awaited]
    return created, stopped, problems


def _truth(
    experiment: Row, events: Sequence[list[Any]], trials: Sequence[Row], records: Records
) -> Iterator[str]:
    """The search heard of each validation once, with the right value, and of no other."""
    name = f"Experiment {experiment['id']}"
    losses = {trial["request_id"]: expected_losses(trial) for trial in trials}
    numbers = {trial["request_id"]: trial["id"] for trial in trials}
    stored = Counter(
        (row["trial_id"], row["metrics"]["loss"])
        for row in records.metrics
        if row["group"] == "validation" and row["trial_id"] in numbers.values()
    )
    heard: Counter[tuple[int, float]] = Counter()
    ended: Counter[str] = Counter()
    for event, *arguments in events:
        if event == "validation_reported":
            heard[numbers[arguments[0]], arguments[1]] += 1
        elif event == "operation_completed":
            request_id, length, metric = arguments[:3]
            if metric != losses[request_id][length]:
                yield f"{name}: its search heard of {metric} at {length} of trial {numbers[request_id]}."
        elif event == "trial_exited":
            ended[arguments[0]] += 1
    # An experiment that is being ended passes nothing on, and where the search gives lengths, they count.
    has_lengths = any(event == "operation_completed" for event, *_ in events)
    is_whole = experiment["state"] == states.COMPLETED and not has_lengths
    for key in stored | heard:
        if heard[key] > stored[key] or (is_whole and heard[key] < stored[key]):
            yield f"{name}: its search heard {heard[key]} times of the validation {key}, stored {stored[key]} times."
    yield from (
        f"{name}: trial {numbers[key]} ended {count} times." for key, count in ended.items() if count > 1
    )


def _may_fail(trial: Row, records: Records) -> bool:
    """Return whether a trial may have failed: it was to stop, and its process ended otherwise, as by a kill.

    That is Determined's rule. A trial that is not to stop is run again.
    """
    changes = [row for row in records.states if row["kind"] == "trial" and row["id"] == trial["id"]]
    runs = sorted(records.allocations_of(trial), key=lambda row: row["run_id"])
    return changes[-1]["before"].startswith("STOPPING_") and runs[-1]["exit_code"] not in (None, 0)


def _ends(experiment: Row, records: Records, stopped: set[str], searcher: Searcher) -> Iterator[str]:
    """No trial failed; those that nobody ended trained to their end, and a search that nobody ended is complete."""
    name, trials = f"Experiment {experiment['id']}", records.trials_of(experiment)
    failed = [trial for trial in trials if trial["state"] == states.ERROR]
    yield from (f"{name}: trial {trial['id']} failed." for trial in failed if not _may_fail(trial, records))
    for trial in trials:
        # With lengths, a search may close a trial at any of them.
        is_whole = trial["total_batches"] == EPOCHS or searcher.method.gives_lengths
        if trial["state"] == states.COMPLETED and trial["request_id"] not in stopped and not is_whole:
            yield f"{name}: trial {trial['id']} completed at epoch {trial['total_batches']}."
    if experiment["state"] == states.ERROR and not failed:
        yield f"{name} failed."
    has_user_ended = any(trial["state"] == states.CANCELED for trial in trials)
    if experiment["state"] != states.COMPLETED or has_user_ended:
        return
    config = config_of(SimpleNamespace(config=experiment["config"]))  # type: ignore[arg-type]
    if experiment["config"]["searcher"]["name"] in ("single", "random", "grid"):
        outcome = simulate(searches.from_config(config), _loss, full_length=EPOCHS)
        wanted = Counter(_key(trial.hparams, trial.seed) for trial in outcome.trials)
        if Counter(_key(trial["hparams"], trial["seed"]) for trial in trials) != wanted:
            yield f"{name} does not have the trials of the undisturbed search."


def _loss(trial: SimulatedTrial, length: int) -> float:
    row = {"seed": trial.seed, "hparams": trial.hparams}
    return expected_losses(row)[length]


def _key(hparams: Mapping[str, Any], seed: int) -> str:
    return f"{sorted(hparams.items())} {seed}"
