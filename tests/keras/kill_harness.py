"""Trainings that are killed on purpose, and the instants at which they are.

A child of the fork server trains one of the `kinds`; it is killed with SIGKILL, either by itself at the very
instant that a `Kill` names, or from outside some time after it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from kinds import KINDS, train
from warm import ForkServer, Send

import det_keras as det
from det_keras.core import checkpoint_writer

__all__ = [
    "MOMENTS",
    "PERIODS",
    "Kill",
    "Killer",
    "Reference",
    "Run",
    "Story",
    "draw_story",
    "draw_sure_kills",
]

#: What a kill can wait for -> up to which of them a random kill waits: half of what a whole run has, since
#: a resumed one has fewer.
MOMENTS: dict[str, int] = {
    "epoch begin": 2,
    "batch begin": 16,
    "batch end": 16,
    "validation": 2,
    "epoch end": 2,
    "train end": 1,
    "copy": 5,
    "write": 16,
    "flush": 20,
    "rename": 4,
    "renamed": 4,
    "prune": 2,
}

#: Batches between checkpoints, for each kind its own.
PERIODS: dict[str, int] = {kind: 2 + index % 4 for index, kind in enumerate(KINDS)}


@dataclass(frozen=True)
class Kill:
    """An instant to kill at.

    Attributes:
        moment: a key of `MOMENTS`; ``start`` of the process, ``set up`` of a `fit`, or ``train begin``.
        count: at which of them in this process, from 1.
        delay_s: kill from outside so much later; None kills right there, and not one instruction later.
        when_saved: wait there until the checkpoints before it are written.
    """

    moment: str
    count: int = 1
    delay_s: float | None = None
    when_saved: bool = False


@dataclass(frozen=True)
class Run:
    """What became of one process.

    Attributes:
        kill: what was tried.
        digest: of weights and history, None if it was killed.
        epoch: at the kill's moment, from 0; None if the moment did not come.
        train_s: from the first batch to the end, if it came there.
        total_s: from the child's start.
    """

    kill: Kill | None
    digest: str | None = None
    epoch: int | None = None
    train_s: float = 0.0
    total_s: float = 0.0


@dataclass(frozen=True)
class Reference:
    """The undisturbed run of a kind."""

    digest: str
    train_s: float
    setup_s: float


@dataclass
class Story:
    """One training with its kills, and what happened.

    Attributes:
        kind: of the training.
        kills: one process is started for each, until one ends by itself.
        in_process: a process of its own writes the checkpoints, as it does big ones.
        runs: the processes so far.
        digest: of the end.
    """

    kind: str
    kills: Sequence[Kill]
    in_process: bool = False
    runs: list[Run] = field(default_factory=list)
    digest: str | None = None

    @property
    def killed(self) -> list[Run]:
        """The runs that were killed."""
        return [run for run in self.runs if run.digest is None]


class Killer:
    """Runs trainings in children of a fork server; may be used by several threads."""

    def __init__(self) -> None:
        self._server = ForkServer()
        self._references: dict[str, Reference] = {}
        self._locks = {kind: threading.Lock() for kind in KINDS}

    def reference(self, kind: str, directory: Path) -> Reference:
        """Return what the undisturbed run of `kind` came to; it is run once, below `directory`."""
        with self._locks[kind]:
            if kind not in self._references:
                run = self.run(kind, directory / f"{kind}-undisturbed", None)
                assert run.digest is not None
                self._references[kind] = Reference(run.digest, run.train_s, run.total_s - run.train_s)
            return self._references[kind]

    def tell(self, story: Story, run_dir: Path, after_kill: Callable[[], None] = lambda: None) -> Story:
        """Train, be killed, resume, until the training has come to its end."""
        for kill in [*story.kills, None]:
            run = self.run(story.kind, run_dir, kill, in_process=story.in_process)
            story.runs.append(run)
            if run.digest is not None:
                story.digest = run.digest
                break
            after_kill()
        return story

    def run(self, kind: str, run_dir: Path, kill: Kill | None, *, in_process: bool = False) -> Run:
        """Run one process to its end or its kill.

        Raises:
            RuntimeError: it failed, or it hangs; the end of its log is shown.
        """
        found = self._server.run(
            f"{kind} with {kill} in {run_dir}",
            run_dir.with_suffix(".log"),
            _train,
            kind,
            str(run_dir),
            kill,
            in_process,
        )
        found.pop("ended", None)
        return Run(kill, **found)


def draw_kill(rng: random.Random, reference: Reference) -> Kill:
    """Draw an instant: any time in training, any time before, or one of the moments."""
    luck = rng.random()
    if luck < 0.4:
        return Kill("batch begin", 1, rng.uniform(0.0, 0.7 * reference.train_s))
    if luck < 0.5:
        return Kill("start", 1, rng.uniform(0.0, reference.setup_s))
    moment = rng.choice(list(MOMENTS))
    return Kill(moment, rng.randint(1, MOMENTS[moment]))


def draw_story(rng: random.Random, kind: str, reference: Reference, kills: int) -> Story:
    """Draw a training that is to be killed so many times."""
    return Story(kind, [draw_kill(rng, reference) for _ in range(kills)], in_process=rng.random() < 0.2)


def draw_sure_kills(rng: random.Random, kind: str) -> list[Kill]:
    """Draw three instants that surely come: two shortly after a batch, one while a checkpoint is written."""
    batches = 2 if kind == "steps_per_execution" else 8
    moment = rng.choice(["copy", "write", "flush", "rename", "renamed"])
    return [
        Kill("batch end", rng.randint(1, batches), rng.uniform(0.0, 0.01)),
        Kill(moment),
        Kill("batch begin", rng.randint(1, batches), rng.uniform(0.0, 0.01)),
    ]


class _Watch:
    """Counts moments in the child and acts at the one that was asked for."""

    def __init__(self, kill: Kill | None, send: Send) -> None:
        self._kill = kill
        self._send = send
        self._seen = 0
        self._lock = threading.Lock()
        self.epoch = 0
        self.first_batch: float | None = None

    def reach(self, moment: str) -> None:
        if self._kill is None or moment != self._kill.moment:
            return
        with self._lock:
            self._seen += 1
            if self._seen != self._kill.count:
                return
            if self._kill.when_saved:
                det.keras.init()._script.writer.wait()
            self._send({"epoch": self.epoch, "kill_in_s": self._kill.delay_s})
            if self._kill.delay_s is None:
                os.kill(os.getpid(), signal.SIGKILL)


class _Moments(keras.callbacks.Callback):
    """Tells the watch where training is, and draws from every random stream that a checkpoint restores.

    That it has a state makes it part of each checkpoint's copy; the draws go into the history, so that a
    stream out of its place is a difference.
    """

    def __init__(self, watch: _Watch) -> None:
        super().__init__()
        self._watch = watch

    def get_state(self) -> None:
        self._watch.reach("copy")

    def load_state(self, state: None) -> None:
        assert state is None

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        self._watch.reach("set up")

    def on_train_begin(self, logs: Any = None) -> None:
        self._watch.reach("train begin")

    def on_train_end(self, logs: Any = None) -> None:
        self._watch.reach("train end")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._watch.epoch = epoch
        self._watch.reach("epoch begin")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs.update({f"draw_{name}": value for name, value in _draw().items()})
        self._watch.reach("epoch end")

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._watch.first_batch is None:
            self._watch.first_batch = time.monotonic()
        self._watch.reach("batch begin")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        _draw()
        self._watch.reach("batch end")

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._watch.reach("validation")


def _draw() -> dict[str, float]:
    streams = {
        "python": random.random,
        "numpy": np.random.random,
        "tensorflow": lambda: tf.random.uniform(()),
        "generator": lambda: tf.random.get_global_generator().uniform(()),
        "keras": lambda: keras.random.uniform(()),
    }
    return {name: float(draw()) for name, draw in streams.items()}


def _watch_storage(watch: _Watch, root: Path) -> None:
    """Tell the watch what is about to happen below a storage's root, by Python's own audit events."""
    top, staging = str(root), f"{root}/.staging-"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path = arguments[0]
            name = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if name == top:
                # The storage flushes its root right after a commit.
                watch.reach("renamed")
            elif str(name).startswith(staging):
                writes = arguments[2] & (os.O_WRONLY | os.O_RDWR)
                watch.reach("write" if writes else "flush")
        elif event == "os.rename" and str(arguments[1]).startswith(top):
            watch.reach("prune" if str(arguments[1]).startswith(staging) else "rename")

    sys.addaudithook(hook)


def _train(send: Send, kind: str, run_dir: str, kill: Kill | None, in_process: bool) -> dict[str, Any]:
    """Train in a child, and return how it went."""
    started = time.monotonic()
    if in_process:
        # From this size on a process writes; a model that reaches it would train for minutes.
        checkpoint_writer._SMALL_BYTES = 0
    watch = _Watch(kill, send)
    watch.reach("start")
    _watch_storage(watch, Path(run_dir) / "checkpoints")
    digest = train(kind, Path(run_dir), _Moments(watch), min_checkpoint_period={"batches": PERIODS[kind]})
    ended = time.monotonic()
    train_s = ended - (watch.first_batch or ended)
    return {"digest": digest, "train_s": train_s, "total_s": ended - started}
