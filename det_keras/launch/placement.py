"""Where the ranks of a job run: how many on each node, and their numbers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from det_keras.cluster_info import ClusterInfo, WorkerInfo

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Placement:
    """The nodes of a job, and the ranks on each; a node is one container of the allocation.

    Ranks are numbered node by node, so that the chief is on node 0.

    Attributes:
        counts: number of ranks on each node.
        addresses: address of each node.
        node: index of this node.
    """

    counts: tuple[int, ...]
    addresses: tuple[str, ...] = (_LOOPBACK,)
    node: int = 0

    @classmethod
    def of_task(cls, info: ClusterInfo) -> Placement:
        """Return the placement of a task: a rank for each slot, one on a node without slots."""
        counts = info.container_slot_counts or (len(info.slot_ids),)
        return cls(tuple(max(1, count) for count in counts), info.container_addrs, info.container_rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(self.counts)

    @property
    def is_single(self) -> bool:
        """Whether there is one node only."""
        return len(self.counts) == 1

    @property
    def address(self) -> str:
        """Address of this node."""
        return self.addresses[self.node]

    @property
    def chief_address(self) -> str:
        """Address of the chief's node."""
        return self.addresses[0]

    @property
    def others(self) -> list[int]:
        """The indices of the other nodes."""
        return [node for node in range(len(self.counts)) if node != self.node]

    def workers(self) -> list[WorkerInfo]:
        """Return the place of each rank of this node.

        Horovod connects the ranks with the same local rank across the nodes. On nodes with unequal numbers of ranks,
        `cross_rank` and `cross_size` therefore count only the nodes that have this local rank.
        """
        first = list(itertools.accumulate(self.counts, initial=0))[self.node]
        local_size = self.counts[self.node]
        return [
            WorkerInfo(
                rank=first + local_rank,
                size=self.size,
                local_rank=local_rank,
                local_size=local_size,
                cross_rank=sum(count > local_rank for count in self.counts[: self.node]),
                cross_size=sum(count > local_rank for count in self.counts),
            )
            for local_rank in range(local_size)
        ]

    def describe_node(self, node: int) -> str:
        """Return a node's index and address, for messages."""
        return f"node {node} ({self.addresses[node]})"

    def describe_rank(self, rank: int) -> str:
        """Return the name of one of this node's ranks, for messages."""
        return f"Rank {rank}" if self.is_single else f"Rank {rank} on {self.describe_node(self.node)}"
