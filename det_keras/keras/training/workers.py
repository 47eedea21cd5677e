"""The workers of a training, from the point of view of one of them."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from det_keras.core.distributed import DistributedContext
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.training.parts import Part, own_files


@dataclass(frozen=True)
class WorkerStates:
    """The state that differs between workers, in the form in which a checkpoint stores it.

    Attributes:
        files: relative path below ``training_state/`` -> content.
        values: id of a variable -> the value that the shared part of the checkpoint stores for it.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    values: Mapping[int, Any] = field(default_factory=dict)


class Workers(abc.ABC):
    """What the workers of a training decide and store together; on one worker, without virtual ones, nothing.

    Args:
        workers: rank, size and small exchanges.
        step: what the workers exchange with each step; None on one worker.
    """

    def __init__(self, workers: DistributedContext, step: SharedStep | None) -> None:
        self._workers = workers
        self._step = step

    @property
    def is_single(self) -> bool:
        """Whether there is one worker, without virtual ones."""
        return self._step is None

    @abc.abstractmethod
    def should_leave(self, is_asked: bool) -> bool:
        """Return, at a boundary, whether any worker was asked to stop; the same on every worker.

        Args:
            is_asked: this process was asked to stop.
        """

    @abc.abstractmethod
    def should_end(self) -> bool:
        """Return, at a boundary, whether a callback on any worker had ended the training; the same on every worker."""

    @abc.abstractmethod
    def check_equal(self, checked_at: int) -> None:
        """Compare the weights of all workers.

        Args:
            checked_at: batches trained in the script at the previous comparison.

        Raises:
            DivergenceError: the weights differ between workers; see `replica.check_equal`.
        """

    @abc.abstractmethod
    def shared_values(self) -> Mapping[int, Any]:
        """Return, by id of the variable, the values over all workers that a checkpoint stores; called by all."""

    def gather_state(self, parts: Sequence[Part]) -> WorkerStates:
        """Return the state that differs between workers; every worker must call it, only the chief uses the result.

        Args:
            parts: the parts of the training.
        """
        if self.is_single:
            return WorkerStates()
        values = self.shared_values()
        return WorkerStates(self.gather_files(own_files(parts)), values)

    def gather_files(self, own: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return the files of all workers by their path in a checkpoint; every worker must call it.

        Args:
            own: the files of this worker, by their path in its directory.
        """
        gathered = self._workers.gather(own) or []
        return {
            f"rank-{rank}/{name}": content
            for rank, files in enumerate(gathered)
            for name, content in files.items()
        }

    def of_all(self, value: Any) -> list[Any]:
        """Return a value of each worker, by rank; every worker must call it."""
        return [value] if self.is_single else self._workers.allgather(value)

    def check_alike(self, facts: Mapping[str, Any], hint: str) -> None:
        """Check that all workers run the same training.

        Args:
            facts: values by name that have to be the same on all workers.
            hint: what to do otherwise.

        Raises:
            ValueError: a value differs between workers.
        """
        for name, value in facts.items():
            gathered = self._workers.allgather(value)
            different = [rank for rank, other in enumerate(gathered) if other != gathered[0]]
            if different:
                raise ValueError(
                    f"The {name} of rank {', '.join(map(str, different))} differs from that of rank 0: "
                    f"{_short(gathered[different[0]])} instead of {_short(gathered[0])}. {hint}"
                )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
