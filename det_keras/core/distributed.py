"""The rank of this process among the workers, and the exchange of small Python objects between them."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from typing import Any, TypeVar

from det_keras import strategy_hook
from det_keras.cluster_info import ChiefInfo, WorkerInfo
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.workers.exchange import LOOPBACK, Exchange, LocalExchange, SocketExchange, own_key

T = TypeVar("T")


class DistributedContext:
    """Rank and size, and collective calls for small Python objects.

    Without arguments there is one worker. Several workers connect to the chief's address and prove to each other that
    they know the job's key: `DET_CHIEF_KEY`, which the launcher creates. Without this variable they must be on one
    machine, and read the key from a file that only their user can read.

    Args:
        rank: index of this process, 0 to `size` - 1.
        size: number of processes.
        local_rank: index of this process on its machine.
        local_size: number of processes on this machine.
        cross_rank: index of this machine.
        cross_size: number of machines.
        chief_ip: address of rank 0, required on several machines; None for `DET_CHIEF_IP`.
        pub_port: port on which rank 0 listens; None for the launcher's choice.
        pull_port: no effect: one port is enough.
        port_offset: added to the port, for several jobs on one machine.
        force_tcp: no effect: the connection is always TCP.

    Raises:
        ValueError: the numbers are inconsistent, or the chief's address or key is missing.
        DetError: the workers could not connect.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        size: int = 1,
        local_rank: int = 0,
        local_size: int = 1,
        cross_rank: int = 0,
        cross_size: int = 1,
        chief_ip: str | None = None,
        pub_port: int | None = None,
        pull_port: int | None = None,
        port_offset: int = 0,
        force_tcp: bool = False,
    ) -> None:
        worker = WorkerInfo(rank, size, local_rank, local_size, cross_rank, cross_size)
        _check(worker)
        exchange: Exchange = LocalExchange()
        if size > 1:
            chief = ChiefInfo.from_environment(os.environ)
            port = (pub_port or chief.port) + port_offset
            exchange = SocketExchange(
                worker, _address(worker, chief_ip or chief.ip), port, _key(worker, chief)
            )
        self._place(worker, exchange)

    @classmethod
    def of(cls, worker: WorkerInfo, exchange: Exchange | None = None) -> DistributedContext:
        """Return the context of a worker with a given exchange; None for a single worker."""
        context = cls.__new__(cls)
        context._place(worker, exchange or LocalExchange())
        return context

    @classmethod
    def from_horovod(cls, hvd: Any, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a Horovod worker.

        Args:
            hvd: a Horovod module, such as `horovod.tensorflow`, on which ``init()`` was called.
            chief_ip: as in the constructor.
        """
        return cls(
            rank=hvd.rank(), size=hvd.size(), local_rank=hvd.local_rank(), local_size=hvd.local_size(),
            cross_rank=hvd.cross_rank(), cross_size=hvd.cross_size(), chief_ip=chief_ip,
        )  # fmt: skip

    @classmethod
    def from_torch_distributed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a process that torchrun started, from its variables.

        Raises:
            ClusterInfoError: the variables are missing.
        """
        return cls._from_worker(WorkerInfo.from_torch_variables(os.environ), chief_ip)

    @classmethod
    def from_deepspeed(cls, chief_ip: str | None = None) -> DistributedContext:
        """Return the context of a process that DeepSpeed's launcher started, from its variables.

        Raises:
            ClusterInfoError: the variables are missing.
        """
        return cls._from_worker(WorkerInfo.from_deepspeed_variables(os.environ), chief_ip)

    @classmethod
    def from_tf_config(cls) -> tuple[DistributedContext, Any]:
        """Return the context and the `tf.distribute` strategy of this process: all GPUs of one machine.

        Raises:
            DetError: `TF_CONFIG` names several workers, which Keras 3 cannot train on TensorFlow.
        """
        return cls(), strategy_hook.make_strategy(os.environ)

    @classmethod
    def _from_worker(cls, worker: WorkerInfo, chief_ip: str | None) -> DistributedContext:
        return cls(
            rank=worker.rank, size=worker.size, local_rank=worker.local_rank, local_size=worker.local_size,
            cross_rank=worker.cross_rank, cross_size=worker.cross_size, chief_ip=chief_ip,
        )  # fmt: skip

    def _place(self, worker: WorkerInfo, exchange: Exchange) -> None:
        self.virtual_workers = 1
        self.rank = worker.rank
        self.size = worker.size
        self.local_rank = worker.local_rank
        self.local_size = worker.local_size
        self.cross_rank = worker.cross_rank
        self.cross_size = worker.cross_size
        self._exchange = exchange

    def set_virtual_workers(self, count: int) -> None:
        """Let the workers share a number of virtual workers.

        Args:
            count: number of virtual workers, a power of two and more than 1.

        Raises:
            DetError: the number of workers does not divide it.
        """
        if count % self.size:
            raise DetError(
                f"{count} virtual workers cannot be shared by {self.size} workers. Start a number of workers that "
                f"divides {count}, such as {math.gcd(count, self.size)}."
            )
        self.virtual_workers = count

    @property
    def has_virtual(self) -> bool:
        """Whether the workers share virtual workers."""
        return self.virtual_workers > 1

    @property
    def parts(self) -> int:
        """How many parts of a batch this worker computes by themselves: its virtual workers, or 1."""
        return max(1, self.virtual_workers // self.size)

    @property
    def is_alone(self) -> bool:
        """Whether one worker trains whole batches: there is no other, and there are no virtual workers."""
        return self.size == 1 and not self.has_virtual

    @property
    def shard_index(self) -> int:
        """Which of every `size` elements this worker takes: its rank, or with virtual workers its rank's bits reversed.

        Then the elements of two neighbours are those that one of half as many workers would have.
        """
        return reversed_bits(self.rank, self.size) if self.has_virtual else self.rank

    @property
    def is_chief(self) -> bool:
        """Whether this is rank 0, which communicates with the master and writes shared files."""
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

    def gather(self, value: object) -> list[Any] | None:
        """Return every worker's `value` by rank on the chief, None elsewhere."""
        values = self._exchange.allgather(value)
        return values if self.is_chief else None

    def gather_local(self, value: object) -> list[Any] | None:
        """Return `value` of every worker of this machine on its first worker, None on the others."""
        values = self._exchange.allgather(value, local=True)
        return values if self.is_local_chief else None

    def allgather(self, value: object) -> list[Any]:
        """Return every worker's `value` by rank, on every worker."""
        return self._exchange.allgather(value)

    def allgather_local(self, value: object) -> list[Any]:
        """Return `value` of every worker of this machine, on each of them."""
        return self._exchange.allgather(value, local=True)

    def broadcast(self, value: Any) -> Any:
        """Return the chief's `value` on every worker."""
        return self._exchange.allgather(value if self.is_chief else None)[0]

    def broadcast_local(self, value: Any) -> Any:
        """Return the `value` of each machine's first worker on every worker of that machine."""
        return self._exchange.allgather(value if self.is_local_chief else None, local=True)[0]

    def on_chief(self, question: Callable[[], T]) -> T:
        """Call `question` on the chief only, and return its result on every worker.

        Raises:
            DetError: `question` raised one on the chief; the other workers raise a DetError with the same text.
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
        # The other workers wait here, so an error is broadcast as well, and raised afterwards.
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
            ValueError: it cannot be split evenly; the message has the nearest sizes that can.
        """
        try:
            # Converts NumPy's integers to Python's: the size is stored in checkpoints as JSON.
            size = 0 if isinstance(global_batch_size, bool) else operator.index(global_batch_size)
        except TypeError:
            size = 0
        if size < 1:
            raise ValueError(
                f"The global batch size must be a positive integer. Received: {global_batch_size!r}."
            )
        per_worker, rest = divmod(size, self.size)
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


def reversed_bits(number: int, size: int) -> int:
    """Return `number` with its bits in reverse order, where `size`, a power of two, is above it."""
    width = size.bit_length() - 1
    return int(f"{number:0{width}b}"[::-1], 2) if width else 0


def _check(worker: WorkerInfo) -> None:
    for name, place, size in (
        ("rank", worker.rank, worker.size),
        ("local_rank", worker.local_rank, worker.local_size),
        ("cross_rank", worker.cross_rank, worker.cross_size),
    ):
        if not 0 <= place < size:
            raise ValueError(f"`{name}` must be from 0 to {size - 1}. Received: {place!r}.")


def _address(worker: WorkerInfo, chief_ip: str | None) -> str:
    if worker.cross_size == 1:
        return LOOPBACK
    if not chief_ip:
        raise ValueError(
            f"{worker.cross_size} machines require the address of rank 0: pass `chief_ip`, or set DET_CHIEF_IP."
        )
    return chief_ip


def _key(worker: WorkerInfo, chief: ChiefInfo) -> bytes:
    if chief.key:
        return chief.key.encode()
    if worker.cross_size > 1:
        raise ValueError(
            f"{worker.cross_size} machines require a secret key: set DET_CHIEF_KEY to the same long "
            "random text on all machines."
        )
    # The key includes the job, so that workers of different jobs of one user do not accept each other.
    return own_key(Home.from_environment()) + chief.job.encode()
