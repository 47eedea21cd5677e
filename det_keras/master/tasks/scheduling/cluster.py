"""The slots of a pool, node by node: which are unused, and which node a task gets."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from det_keras.master.resources import Node, Share


class Cluster:
    """The unused slots of a pool.

    Nodes are kept by their number of unused slots, so that a task is placed without looking at every node.

    Args:
        nodes: the nodes.
        taken: numbers of the used slots, by node.
    """

    def __init__(self, nodes: Iterable[Node], taken: Mapping[str, Collection[int]] | None = None) -> None:
        # The number of claims on a slot: two while a task waits for another one to leave it.
        self._claims: dict[str, Counter[int]] = {}
        self._free: dict[str, list[int]] = {}
        self._addresses: dict[str, str] = {}
        self._numbers: dict[str, frozenset[int]] = {}
        # The names of the nodes with a number of unused slots, sorted.
        self._by_free: dict[int, list[str]] = {}
        self.free = self.total = self.largest = 0
        #: Number of slots that are out of use; no node has them.
        self.disabled = 0
        #: Whether tasks without slots may start.
        self.runs_slotless = True
        self.resize(nodes)
        for name, numbers in (taken or {}).items():
            self.claim([Share(name, tuple(numbers))])

    def resize(self, nodes: Iterable[Node], *, disabled: int = 0, runs_slotless: bool = True) -> None:
        """Use these nodes from now on; claims on slots stay, including those of nodes and slots that are gone.

        Args:
            nodes: the nodes, with the slots that tasks may be given.
            disabled: number of their slots that are out of use.
            runs_slotless: whether tasks without slots may start.
        """
        self.disabled, self.runs_slotless = disabled, runs_slotless
        self._free, self._addresses, self._numbers, self._by_free = {}, {}, {}, {}
        self.free = 0
        for node in nodes:
            claims = self._claims.get(node.id, Counter())
            free = sorted(slot.id for slot in node.slots if not claims[slot.id])
            self._free[node.id], self._addresses[node.id] = free, node.address
            self._numbers[node.id] = frozenset(slot.id for slot in node.slots)
            bisect.insort(self._by_free.setdefault(len(free), []), node.id)
            self.free += len(free)
        self.total = sum(map(len, self._numbers.values()))
        self.largest = max(map(len, self._numbers.values()), default=0)

    def take(self, slots: int, but: Collection[str] = ()) -> tuple[Share, ...] | None:
        """Claim unused slots for a task; None if it does not fit now.

        A task that one node can hold gets slots of one node, of the fullest that has enough of them. A larger task
        gets slots of as few nodes as possible.

        Args:
            slots: their number.
            but: nodes that the task does not get.
        """
        if but and slots:
            return self._take_elsewhere(slots, but)
        if not self.fits(slots):
            return None
        shares: list[Share] = []
        if slots <= self.largest:
            if slots:
                # The fullest node that has enough, so that others stay free for large tasks.
                count = next(count for count in range(slots, self.largest + 1) if self._by_free.get(count))
                shares.append(self._share(self._by_free[count][0], slots))
        else:
            left = slots
            for count in range(self.largest, 0, -1):
                for name in self._by_free.get(count, ()):
                    if left:
                        shares.append(self._share(name, min(left, count)))
                        left -= len(shares[-1].slot_ids)
        self.claim(shares)
        return tuple(shares)

    def _take_elsewhere(self, slots: int, but: Collection[str]) -> tuple[Share, ...] | None:
        """Claim slots as `take` does, without some nodes; it looks at all others."""
        free = {name: len(numbers) for name, numbers in self._free.items() if name not in but}
        if slots > sum(free.values()):
            return None
        largest = max(len(self._numbers[name]) for name in free)
        if slots <= largest:
            enough = [(count, name) for name, count in free.items() if count >= slots]
            if not enough:
                return None
            shares = [self._share(min(enough)[1], slots)]
        else:
            shares, left = [], slots
            for name in sorted(free, key=lambda name: (-free[name], name)):
                if left and free[name]:
                    shares.append(self._share(name, min(left, free[name])))
                    left -= len(shares[-1].slot_ids)
        self.claim(shares)
        return tuple(shares)

    def fits(self, slots: int) -> bool:
        """Return whether a task fits into the unused slots."""
        if slots == 0:
            return self.runs_slotless
        if slots > self.free:
            return False
        if slots > self.largest:
            return True
        return any(self._by_free.get(count) for count in range(slots, self.largest + 1))

    def can_hold(self, slots: int) -> bool:
        """Return whether a task would fit if nothing ran."""
        return slots <= self.total if slots else self.runs_slotless

    def has(self, node: str, slot: int) -> bool:
        """Return whether a slot exists and is in use, whatever its claims."""
        return slot in self._numbers.get(node, ())

    def claim(self, shares: Sequence[Share]) -> None:
        """Record a claim on slots, whether they are free or not."""
        self._count(shares, 1)

    def give(self, shares: Sequence[Share]) -> None:
        """Remove a claim on slots."""
        self._count(shares, -1)

    def claims(self, node: str, slot: int) -> int:
        """Return the number of claims on a slot."""
        return self._claims.get(node, Counter())[slot]

    def unused(self, node: str) -> Sequence[int]:
        """Return the numbers of a node's unused slots; none for an unknown node."""
        return self._free.get(node, ())

    @property
    def nodes(self) -> Collection[str]:
        """The names of the nodes."""
        return self._free.keys()

    def address(self, node: str) -> str:
        """Return the address of a node."""
        return self._addresses[node]

    def _share(self, name: str, count: int) -> Share:
        return Share(name, tuple(self._free[name][:count]), self._addresses[name])

    def _count(self, shares: Sequence[Share], change: int) -> None:
        for share in shares:
            claims = self._claims.setdefault(share.node, Counter())
            for slot in share.slot_ids:
                claims[slot] += change
                if claims[slot] <= 0:
                    del claims[slot]
            if share.node in self._free:
                self._refresh(share.node, share.slot_ids)

    def _refresh(self, name: str, slots: Sequence[int]) -> None:
        """Update the unused slots of a node after a change of the claims on some of its slots."""
        free, claims = self._free[name], self._claims[name]
        before = len(free)
        for slot in slots:
            place = bisect.bisect_left(free, slot)
            is_listed = place < len(free) and free[place] == slot
            if is_listed and claims[slot]:
                del free[place]
            elif not is_listed and not claims[slot] and slot in self._numbers[name]:
                free.insert(place, slot)
        if len(free) != before:
            peers = self._by_free[before]
            del peers[bisect.bisect_left(peers, name)]
            bisect.insort(self._by_free.setdefault(len(free), []), name)
            self.free += len(free) - before
