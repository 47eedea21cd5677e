"""Draws a history: what clients send, what trials do, and what fails. A plan is a function of its seed alone."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "ANSWER_FAULTS",
    "EPOCHS",
    "FAULTS",
    "METHODS",
    "Action",
    "Experiment",
    "Fault",
    "Plan",
    "draw_plan",
]

#: The length of a trial that its search does not stop.
EPOCHS = 4

#: The searchers, each with its section of the config.
METHODS: Mapping[str, str] = {
    "single": "{name: single, metric: loss}",
    "random": "{name: random, metric: loss, max_trials: 3, max_concurrent_trials: 2}",
    "grid": "{name: grid, metric: loss, max_concurrent_trials: 2}",
    "asha stopping": (
        "{name: adaptive_asha, metric: loss, max_trials: 4, max_concurrent_trials: 2, "
        f"time_metric: epochs, max_time: {EPOCHS}, divisor: 2}}"
    ),
    "wide": "{name: grid, metric: loss, max_concurrent_trials: 0}",
    "asha promoting": (
        "{name: adaptive_asha, metric: loss, max_trials: 4, max_concurrent_trials: 2, "
        f"max_length: {{epochs: {EPOCHS}}}, divisor: 2, stop_once: false}}"
    ),
}

# One that is drawn for the client that creates it. It is killed: with all of its trials, a history would take minutes.
_WIDE = "wide"

#: The faults of processes, of the disk and of the clock, with how often each is drawn.
FAULTS: Mapping[str, int] = {
    "master killed": 6,
    "master stopped": 3,
    "trial killed": 4,
    "trial stopped": 1,
    "supervisor killed": 3,
    "supervisor stopped": 1,
    "disk full": 3,
    "clock forward": 2,
    "clock back": 2,
}

#: The faults of a request or of its answer, with how often each is drawn; `proxy` says what they mean.
ANSWER_FAULTS: Mapping[str, int] = {
    "request lost": 2,
    "answer lost": 4,
    "bad gateway": 2,
    "request doubled": 4,
    "request doubled at once": 2,
}

_LABELS = ("red", "green", "blue")


@dataclass(frozen=True)
class Experiment:
    """An experiment to create.

    Attributes:
        name: its description, by which it is found again.
        method: a key of `METHODS`.
        script: ``core`` if its trials use `det_keras.core`, ``plain`` if they send the calls themselves.
        seed: of its search.
        period: epochs between two checkpoints.
        pace_s: how long an epoch takes at least, in seconds.
        is_active: whether it starts at once.
    """

    name: str
    method: str
    script: str
    seed: int
    period: int
    pace_s: float
    is_active: bool


@dataclass(frozen=True)
class Action:
    """A step of a client.

    Attributes:
        verb: what it does, see `clients`.
        target: the name of an experiment, of a job, or of an unmanaged trial.
        value: what it sends.
    """

    verb: str
    target: str = ""
    value: str | int = ""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        kind: a key of `FAULTS`.
        after: how many requests pass between the fault before and this one.
        hold_s: how long it lasts, in seconds; of a clock, by how much it jumps.
        victim: which of the running tasks it concerns, modulo their number.
        inner: faults that come before this one is over.
        free_pages: what a full disk has left: enough for a small file or for a commit, or for nothing.
    """

    kind: str
    after: int
    hold_s: float = 0.0
    victim: int = 0
    inner: tuple[Fault, ...] = ()
    free_pages: int = 0


@dataclass(frozen=True)
class Plan:
    """A history.

    Attributes:
        seed: draws it.
        experiments: those that clients create.
        clients: the actions of each client.
        faults: in their order.
        answers: the faults of single requests, by the number of the request.
        slots: those of the master.
        has_database_elsewhere: whether only the files of tasks and their checkpoints are on the disk that may be full.
        plain_starts: the starts of the master, by number, that use `det_keras.master.process.start`.
    """

    seed: str
    experiments: tuple[Experiment, ...]
    clients: tuple[tuple[Action, ...], ...]
    faults: tuple[Fault, ...]
    answers: Mapping[int, str] = field(default_factory=dict)
    slots: int = 2
    has_database_elsewhere: bool = False
    plain_starts: frozenset[int] = frozenset()


def draw_plan(seed: str) -> Plan:
    """Return the history of a seed."""
    rng = random.Random(f"history {seed}")
    experiments = tuple(_experiment(rng, number) for number in range(rng.choice((1, 1, 2))))
    clients = (_owner(rng, experiments), _reporter(rng))
    faults = tuple(_fault(rng) for _ in range(rng.randint(2, 5)))
    plain = frozenset(number for number in range(8) if rng.random() < 0.04)
    slots, is_elsewhere = rng.choice((1, 2, 2)), rng.random() < 0.4
    answers = _answers(rng)
    # From a generator of its own, so that the rest of a history is as it was before there were any.
    wide = random.Random(f"wide {seed}")
    if wide.random() < 0.25:
        experiments += (_wide(wide),)
        clients += (_killer(wide, experiments[-1].name),)
    logins = random.Random(f"logins {seed}")
    if logins.random() < 0.3:
        clients += (_visitor(logins),)
    return Plan(seed, experiments, clients, faults, answers, slots, is_elsewhere, plain)


def _wide(rng: random.Random) -> Experiment:
    return Experiment("wide experiment", _WIDE, "plain", rng.randrange(2**31), 1, 0.02, rng.random() < 0.5)


def _killer(rng: random.Random, name: str) -> tuple[Action, ...]:
    """Draw the client that creates a wide search, pauses and activates it, and kills it."""
    actions = [Action("create", name)]
    for verb in rng.choices(("pause", "activate"), k=rng.randint(0, 3)):
        actions += [Action(verb, name), Action("wait", value=rng.randint(1, 6))]
    return (*actions, Action(rng.choice(("kill", "cancel")), name))


def _visitor(rng: random.Random) -> tuple[Action, ...]:
    """Draw the client that logs in and out while a user changes."""
    actions: list[Action] = []
    for number in range(rng.randint(1, 3)):
        name = f"login {number}"
        actions += [Action("log in", name), Action("use", name), Action("rename", value=f"name {number}")]
        if rng.random() < 0.7:
            actions.append(Action("log out", name))
        for _ in range(rng.randint(1, 3)):
            actions += [Action("rename", value=f"name {rng.randrange(1000)}"), Action("use", name)]
            actions.append(Action("wait", value=rng.randint(1, 10)))
    return tuple(actions)


def _experiment(rng: random.Random, number: int) -> Experiment:
    method = rng.choice([method for method in METHODS if method != _WIDE])
    return Experiment(
        name=f"experiment {number}",
        method=method,
        # Only `det_keras.core` asks for lengths.
        script="core" if method == "asha promoting" or rng.random() < 0.4 else "plain",
        seed=rng.randrange(2**31),
        period=rng.choice((1, 1, 2, 3)),
        pace_s=rng.choice((0.0, 0.02, 0.05)),
        is_active=rng.random() < 0.8,
    )


def _owner(rng: random.Random, experiments: tuple[Experiment, ...]) -> tuple[Action, ...]:
    """Draw the client that creates the experiments and changes them."""
    actions = [Action("create", experiment.name) for experiment in experiments]
    for _ in range(rng.randint(3, 7)):
        name = rng.choice(experiments).name
        verb = rng.choices(
            ("pause", "activate", "label", "unlabel", "notes", "kill", "cancel", "kill trial"),
            (5, 5, 3, 1, 3, 0.7, 0.7, 0.7),
        )[0]
        value: str | int = ""
        if verb in ("label", "unlabel"):
            value = rng.choice(_LABELS)
        elif verb == "notes":
            value = f"note {rng.randrange(1000)}"
        actions += [Action("wait", value=rng.randint(1, 20)), Action(verb, name, value)]
    for experiment in experiments:
        actions.append(Action("activate", experiment.name))
        if rng.random() < 0.3:
            actions.append(Action("archive", experiment.name))
    return tuple(actions)


def _reporter(rng: random.Random) -> tuple[Action, ...]:
    """Draw the client that runs scripts of its own, and jobs."""
    actions: list[Action] = []
    if rng.random() < 0.8:
        actions += [Action("open", "unmanaged 0"), Action("begin", "unmanaged 0")]
        for step in range(1, rng.randint(3, 8)):
            actions.append(Action("report", "unmanaged 0", step))
            if rng.random() < 0.4:
                actions.append(Action("log", "unmanaged 0", step))
            if rng.random() < 0.2:
                actions.append(Action("heartbeat", "unmanaged 0"))
            if rng.random() < 0.3:
                actions.append(Action("wait", value=rng.randint(1, 10)))
        actions.append(Action("finish", "unmanaged 0"))
    for number in range(rng.choice((0, 1, 1, 2))):
        at = rng.randint(0, len(actions))
        # Not between the first two: a job is independent of them.
        actions.insert(at, Action("job", f"job {number}", rng.randint(1, 20)))
    return tuple(actions)


def _fault(rng: random.Random, *, is_inner: bool = False) -> Fault:
    kinds = [kind for kind in FAULTS if not (is_inner and kind in ("disk full", "master stopped"))]
    kind = rng.choices(kinds, [FAULTS[kind] for kind in kinds])[0]
    hold_s = round(rng.choice((0.05, 0.2, 0.5)) * rng.uniform(0.5, 1.5), 3)
    if kind.startswith("clock"):
        hold_s = rng.choice((3.0, 100.0, 3700.0, 90000.0))
    inner: tuple[Fault, ...] = ()
    free_pages = 0
    if kind == "disk full":
        inner = (_fault(rng, is_inner=True),) if rng.random() < 0.4 else ()
        free_pages = rng.choice((0, 0, 2, 8, 30, 100))
        # So long that tasks end and others should start.
        hold_s = rng.choice((0.1, 1.0, 2.0))
    return Fault(kind, rng.randint(1, 25), hold_s, rng.randrange(60), inner, free_pages)


def _answers(rng: random.Random) -> dict[int, str]:
    """Draw which requests fail, at a rate that differs between histories."""
    rate = rng.choice((0.0, 0.02, 0.05, 0.1))
    names, weights = list(ANSWER_FAULTS), list(ANSWER_FAULTS.values())
    return {number: rng.choices(names, weights)[0] for number in range(600) if rng.random() < rate}
