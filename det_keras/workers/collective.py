"""Sums of arrays over the processes of a job, through memory that the processes of a machine share.

The launcher makes the memory and the pipes, and the processes inherit them: no port is opened on one machine, and
no other process can reach them. Every process makes the same calls in the same order, which each call checks.

Sums are those of a balanced binary tree over the processes of a machine, ``(0+1)+(2+3)``, and then over machines. So
every process gets the same bits. Where all machines have the same number of processes, a power of two, these are the
bits of one tree over all processes, and twice as many processes that have half each get them too if each half is the
sum of such a tree.

The memory has two halves, each with a slot for every process of the machine. A call uses one half and the next call the
other. A process that writes into a half has passed the meeting of the call before, so that all others have passed the
call before that, which used the same half, and read nothing there any more.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from det_keras.errors import DetError
from det_keras.workers.exchange import Star
from det_keras.workers.inherited import HEADER_BYTES, SLOT_BYTES, Ends, memory_bytes

# What a slot begins with: the length of the name of the call, the name, and a number of the call.
_HEADER = struct.Struct("=H240sq")
# Below this, every process adds everything itself, instead of a part that it then shares.
_SMALL_BYTES = 1 << 17
# What a process writes to the others when it has arrived: its place. The kernel never divides so few bytes.
_ARRIVAL = struct.Struct("=H")
_ALIGNMENT_BYTES = 64

Array = np.ndarray[Any, Any]


def tree_sum(values: Sequence[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Return the sum of a balanced binary tree over `values`, whose neighbours are added first."""
    while len(values) > 1:
        pairs = [add(values[at], values[at + 1]) for at in range(0, len(values) - 1, 2)]
        values = [*pairs, *values[len(pairs) * 2 :]]
    return values[0]


class Collective:
    """The exchange of arrays and bytes between the processes of a job.

    Args:
        place: the index of this process on its machine.
        size: number of processes on this machine.
        ends: what this process inherited.
        is_single: whether there is one machine only.
        machines: on the first process of each of several machines, the connections between these.

    Raises:
        DetError: this process did not inherit the memory.
    """

    def __init__(
        self, place: int, size: int, ends: Ends, *, is_single: bool = True, machines: Star | None = None
    ) -> None:
        self._place, self._size, self._ends = place, size, ends
        self._is_single, self._machines = is_single, machines
        _check_inherited(ends)
        for descriptor in ends.local:
            # Processes that the script starts must not keep the ends of this rank open.
            os.set_inheritable(descriptor, False)
        # Nor may forked ones: others see that this rank has ended by the end of its inbox.
        os.register_at_fork(after_in_child=self._forget)
        self._memory = mmap.mmap(ends.memory, memory_bytes(size))
        self._calls = 0
        # How often each process has arrived at a meeting that this one has not passed.
        self._arrived = [0] * size
        self._waiting = select.poll()
        self._waiting.register(ends.inbox, select.POLLIN)
        self._places = {outbox: place for place, outbox in enumerate(ends.outboxes) if outbox >= 0}
        for outbox in self._places:
            # `poll` reports by itself that a pipe has no reader any more.
            self._waiting.register(outbox, 0)

    def sum(self, array: Array, name: str = "") -> Array:
        """Return the sum of `array` over all processes, as a new array of the same shape and dtype.

        Args:
            array: of the same shape and dtype in every process.
            name: of the call, for the message if another process makes another call.

        Raises:
            DetError: a process makes another call, or has ended.
        """
        flat = np.ascontiguousarray(array).reshape(-1)
        result = _aligned(flat)
        step = SLOT_BYTES // flat.itemsize
        said = f"{name} {flat.dtype} {flat.size}"
        for start in range(0, flat.size, step):
            self._sum_piece(flat[start : start + step], result[start : start + step], said)
        return result.reshape(array.shape)

    def gather(self, content: bytes, name: str = "") -> list[bytes]:
        """Return the bytes of every process, by rank.

        Args:
            content: of this process; its length may differ from the others'.
            name: as in `sum`.

        Raises:
            DetError: as `sum`.
        """
        own = self._gather_here(content, name)
        if self._is_single:
            return own
        packed = b""
        if self._machines is not None:
            packed = _pack([content for here in self._machines.allgather(own) for content in here])
        # Back to the other processes of this machine, as one text.
        return _unpack(self._gather_here(packed, name)[0])

    def _sum_piece(self, piece: Array, result: Array, said: str) -> None:
        slots = self._begin(said)
        values = [np.frombuffer(slot, piece.dtype, piece.size) for slot in slots]
        values[self._place][...] = piece
        self._meet(said)
        if piece.nbytes <= _SMALL_BYTES and self._is_single:
            result[...] = tree_sum(values, np.add)
            return
        start, stop = (piece.size * place // self._size for place in (self._place, self._place + 1))
        tree_sum([value[start:stop] for value in values], lambda one, other: np.add(one, other, out=one))
        self._meet_again()
        if not self._is_single:
            if self._machines is not None:
                values[0][...] = self._machines.combine(values[0], lambda there: tree_sum(there, np.add))
            self._meet_again()
        result[...] = values[0]

    def _gather_here(self, content: bytes, name: str) -> list[bytes]:
        parts: list[list[bytes]] = [[] for _ in range(self._size)]
        sent, is_complete = 0, False
        while not is_complete:
            slots = self._begin(name)
            left = len(content) - sent
            now = min(left, SLOT_BYTES - 8)
            slots[self._place][:8] = left.to_bytes(8, "little")
            slots[self._place][8 : 8 + now] = content[sent : sent + now]
            sent += now
            self._meet(name)
            is_complete = True
            for found, slot in zip(parts, slots, strict=True):
                there = int.from_bytes(slot[:8], "little")
                found.append(bytes(slot[8 : 8 + min(there, SLOT_BYTES - 8)]))
                is_complete = is_complete and there <= SLOT_BYTES - 8
        return [b"".join(found) for found in parts]

    def _begin(self, said: str) -> list[memoryview]:
        """Write the header of this process's slot; return the data of all slots."""
        self._calls += 1
        text = said.encode()[:240]
        _HEADER.pack_into(self._memory, self._start(self._place), len(text), text, self._calls)
        whole = memoryview(self._memory)
        starts = [self._start(place) + HEADER_BYTES for place in range(self._size)]
        return [whole[start : start + SLOT_BYTES] for start in starts]

    def _start(self, place: int) -> int:
        return (self._calls % 2 * self._size + place) * (HEADER_BYTES + SLOT_BYTES)

    def _meet(self, said: str) -> None:
        """Wait for all processes of this machine, and check that they make the same call."""
        self._meet_again()
        own = said.encode()[:240]
        for place in range(self._size):
            length, text, calls = _HEADER.unpack_from(self._memory, self._start(place))
            if text[:length] != own or calls != self._calls:
                raise DetError(
                    f"The workers make different calls: number {self._calls} of local rank {self._place} is {said!r}, "
                    f"number {calls} of local rank {place} is {text[:length].decode(errors='replace')!r}. "
                    "Every worker runs the same script on the same data."
                )

    def _meet_again(self) -> None:
        arrival = _ARRIVAL.pack(self._place)
        for place, outbox in enumerate(self._ends.outboxes):
            if outbox >= 0:
                self._tell(place, outbox, arrival)
        self._arrived[self._place] += 1
        # An arrival may be that of a faster process at its next meeting, after all have arrived at this one.
        while not all(self._arrived):
            self._wait()
        self._arrived = [count - 1 for count in self._arrived]

    def _wait(self) -> None:
        """Wait until another process arrives.

        Raises:
            DetError: a process that has not arrived has ended.
        """
        ready = dict(self._waiting.poll())
        if not ready.get(self._ends.inbox, 0) & select.POLLIN:
            # Asked again: a process that ended just now may have arrived between the two looks.
            ready = dict(self._waiting.poll(0))
        if ready.get(self._ends.inbox, 0) & select.POLLIN:
            for (place,) in _ARRIVAL.iter_unpack(os.read(self._ends.inbox, 4096)):
                self._arrived[place] += 1
            return
        for descriptor in ready:
            place = self._places.get(descriptor)
            if place is None:
                raise DetError("All other workers ended during an exchange.")
            if not self._arrived[place]:
                raise _ended(place)
            self._waiting.unregister(descriptor)

    def _tell(self, place: int, outbox: int, arrival: bytes) -> None:
        try:
            os.write(outbox, arrival)
        except BrokenPipeError as error:
            raise _ended(place) from error

    def _forget(self) -> None:
        for descriptor in self._ends.local:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _ended(place: int) -> DetError:
    return DetError(f"The worker of local rank {place} ended during an exchange.")


def _pack(contents: Sequence[bytes]) -> bytes:
    return b"".join(len(content).to_bytes(8, "little") + content for content in contents)


def _unpack(packed: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(packed):
        end = at + 8 + int.from_bytes(packed[at : at + 8], "little")
        found.append(packed[at + 8 : end])
        at = end
    return found


def _aligned(like: Array) -> Array:
    """Return an empty array whose memory TensorFlow takes over without a copy."""
    memory = np.empty(like.nbytes + _ALIGNMENT_BYTES, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT_BYTES
    return memory[start : start + like.nbytes].view(like.dtype)


def _check_inherited(ends: Ends) -> None:
    try:
        found = os.fstat(ends.memory)
        is_inherited = (found.st_dev, found.st_ino) == ends.identity
    except OSError:
        is_inherited = False
    if not is_inherited:
        raise DetError(
            "This process has the variables of a rank, but was not started by the launcher: a rank started it. Start a "
            "training with `python3 -m det_keras.launch.distributed`, or unset DET_KERAS_COLLECTIVE and HOROVOD_RANK."
        )
