"""Runs of named trainings in child processes: undisturbed, and killed after drawn batches."""

from __future__ import annotations

import os
import random
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm import ForkServer, Send

from det_keras.keras.training.progress import Progress

__all__ = ["ChildRun", "Runner", "count_batches"]


@dataclass(frozen=True)
class ChildRun:
    """What became of one process.

    Attributes:
        batches: trained in this process.
        values: names and digests of what the training made; None if it was killed.
    """

    batches: int
    values: Mapping[str, str] | None = None


class Runner(ABC):
    """Runs trainings in children of a fork server; may be used by several threads.

    Args:
        folder: gets a directory for each run.
        names: of the trainings.

    Attributes:
        period: batches between two checkpoints.
    """

    period: int

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        self._server = ForkServer()
        self._folder = folder
        self._references: dict[str, ChildRun] = {}
        self._locks = {name: threading.Lock() for name in names}

    def reference(self, name: str) -> ChildRun:
        """Return the undisturbed run; it is run once."""
        with self._locks[name]:
            if name not in self._references:
                self._references[name] = self._run(name, "undisturbed", None)
            return self._references[name]

    def kill_twice(
        self, name: str, rng: random.Random, story: str = "killed"
    ) -> tuple[list[int], ChildRun, ChildRun]:
        """Run a training, killed after a drawn batch of each of two processes, and once more to its end.

        Args:
            name: of the training.
            rng: draws the batches.
            story: names the directory; a training may be killed in several stories.

        Returns:
            The batches, the undisturbed run, and the last process of the killed one.

        Raises:
            AssertionError: a kill did not come, because the run ended before.
        """
        reference = self.reference(name)
        kills = _draw_kills(rng, reference.batches, self.period)
        for batches in kills:
            run = self._run(name, story, batches)
            assert run.values is None, f"{name} ended after {run.batches} batches, before {batches}"
        return kills, reference, self._run(name, story, None)

    def _run(self, name: str, story: str, kill_after: int | None) -> ChildRun:
        directory = self._folder / name / story
        directory.mkdir(parents=True, exist_ok=True)
        title = f"{name} ({story}, kill after batch {kill_after}) in {directory}"
        function, *arguments = self._call(name, story, directory)
        found = self._server.run(title, directory / "log.txt", function, *arguments, kill_after)
        return ChildRun(found["batches"], found.get("values"))

    @abstractmethod
    def _call(self, name: str, story: str, directory: Path) -> tuple[Any, ...]:
        """Return the function that the child runs, and its arguments between a `Send` and the batch of the kill."""


def _draw_kills(rng: random.Random, batches: int, period: int) -> list[int]:
    """Draw after which batch of the first process and of the second one to kill; both surely come.

    The first is in the first half of the training. The second is so far in the second half that a checkpoint of that
    half exists, so that later epochs and later `fit` calls of a script are resumed as well.

    Args:
        rng: draws.
        batches: of the undisturbed run; a resumed one trains at least those after the kill.
        period: batches between two checkpoints: a resumed process may begin so many before the kill.
    """
    half = batches // 2
    first = rng.randint(1, max(half, 1))
    left = batches - first
    return [first, rng.randint(min(half - first + 3 * period, left), left)]


def count_batches(send: Send, callbacks: type, kill_after: int | None) -> dict[str, int]:
    """Count the batches that are trained from now on, in all fits and loops; die after one of them.

    Args:
        send: gets the count before the kill.
        callbacks: the class whose `on_train_batch_end` ends a batch.
        kill_after: so many batches; None for never.
    """
    counter = {"batches": 0}

    def counted(original: Callable[..., None]) -> Callable[..., None]:
        def end_batch(*arguments: Any, **options: Any) -> None:
            original(*arguments, **options)
            counter["batches"] += 1
            if counter["batches"] == kill_after:
                send(dict(counter))
                os.kill(os.getpid(), signal.SIGKILL)

        return end_batch

    callbacks.on_train_batch_end = counted(callbacks.on_train_batch_end)
    Progress.advance = counted(Progress.advance)
    return counter
