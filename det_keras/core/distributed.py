"""This process's place among its workers, and the exchange of small Python objects between them."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, TypeVar

from det_keras.cluster_info import WorkerInfo
from det_keras.errors import DetError

__all__ = ["DistributedContext", "Exchange", "SoloExchange"]

T = TypeVar("T")


class Exchange(abc.ABC):
    """Carries small Python objects between the workers of a job; every worker makes the same calls."""

    @abc.abstractmethod
    def allgather(self, value: Any, *, local: bool = False) -> list[Any]:
        """Return every worker's `value`, by rank; with `local`, of the workers on this machine only."""

    def close(self) -> None:
        """Give back what the exchange holds."""
        return


class SoloExchange(Exchange):
    """The exchange of a job with one worker."""

    def allgather(self, value: Any, *, local: bool = False) -> list[Any]:
        return [value]


class DistributedContext:
    """Rank and size, and collective calls for small Python objects.

    Args:
        worker: this process's place.
        exchange: how objects travel.
    """

    def __init__(self, worker: WorkerInfo | None = None, exchange: Exchange | None = None) -> None:
        worker = worker or WorkerInfo()
        self.rank = worker.rank
        self.size = worker.size
        self.local_rank = worker.local_rank
        self.local_size = worker.local_size
        self.cross_rank = worker.cross_rank
        self.cross_size = worker.cross_size
        self._exchange = exchange or SoloExchange()

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which talks to the master and writes shared files."""
        return self.rank == 0

    @property
    def is_local_chief(self) -> bool:
        """Whether this is the first process on its machine."""
        return self.local_rank == 0

    def get_rank(self) -> int:
        """Return the index of this process, 0 to size - 1."""
        return self.rank

    def get_size(self) -> int:
        """Return the number of processes."""
        return self.size

    def get_local_rank(self) -> int:
        """Return the index of this process on its machine."""
        return self.local_rank

    def get_num_agents(self) -> int:
        """Return the number of machines."""
        return self.cross_size

    def gather(self, value: Any) -> list[Any] | None:
        """Return every worker's `value` by rank on the chief, None elsewhere."""
        values = self._exchange.allgather(value)
        return values if self.is_chief else None

    def gather_local(self, value: Any) -> list[Any] | None:
        """Return `value` of every worker of this machine on its first, None on the others."""
        values = self._exchange.allgather(value, local=True)
        return values if self.is_local_chief else None

    def allgather(self, value: Any) -> list[Any]:
        """Return every worker's `value` by rank, on every worker."""
        return self._exchange.allgather(value)

    def allgather_local(self, value: Any) -> list[Any]:
        """Return `value` of every worker of this machine, on each of them."""
        return self._exchange.allgather(value, local=True)

    def broadcast(self, value: Any) -> Any:
        """Return the chief's `value` on every worker."""
        return self._exchange.allgather(value if self.is_chief else None)[0]

    def broadcast_local(self, value: Any) -> Any:
        """Return the `value` of each machine's first worker on every worker of that machine."""
        return self._exchange.allgather(value if self.is_local_chief else None, local=True)[0]

    def on_chief(self, question: Callable[[], T]) -> T:
        """Return on every worker what `question` gives on the chief, which alone asks it.

        Raises:
            DetError: it raised one on the chief; the others raise one with its text.
        """
        if self.size == 1:
            return question()
        answer: Any = None
        error: DetError | None = None
        if self.is_chief:
            try:
                answer = question()
            except DetError as failure:
                error = failure
        answer, said = self.broadcast((answer, str(error) if error is not None else None))
        if error is not None:
            raise error
        if said is not None:
            raise DetError(f"Rank 0 failed: {said}")
        result: T = answer
        return result

    def shard_batch_size(self, global_batch_size: int) -> int:
        """Return the batch size of one worker for a global batch size.

        Args:
            global_batch_size: samples per update over all workers, at least `size`.

        Raises:
            ValueError: it cannot be split evenly; the nearest sizes that can are named.
        """
        if (
            isinstance(global_batch_size, bool)
            or not isinstance(global_batch_size, int)
            or global_batch_size < 1
        ):
            raise ValueError(
                f"The global batch size must be a positive integer. Received: {global_batch_size!r}."
            )
        per_worker, rest = divmod(global_batch_size, self.size)
        if rest == 0:
            return per_worker
        upper = (per_worker + 1) * self.size
        nearest = f"{per_worker * self.size} or {upper}" if per_worker else str(upper)
        raise ValueError(
            f"Global batch size {global_batch_size} cannot be split over {self.size} workers. "
            f"Use {nearest}, or run on a number of slots that divides it."
        )

    def close(self) -> None:
        """End the exchange."""
        self._exchange.close()
