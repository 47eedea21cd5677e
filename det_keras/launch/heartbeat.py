"""Detects ranks that hang, by the absence of signs of life.

A rank that is stopped or swapped out ends nothing and answers nothing: the others would wait for it for ever. So
the launcher looks at every rank a few times before its patience ends. Each of these is a sign of life:

- a heartbeat: the datagram of `protocol.heartbeat` on the launcher's socket, from a thread of the rank that does
  nothing else;
- processor time used, however silent the heartbeat: slow work that lets no other thread run is not a hang;
- without a heartbeat so far, not being stopped: a program that sends none may well sleep.

Looks are counted, not seconds: a launcher that was itself asleep accuses nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from det_keras.protocol.heartbeat import parse_beat, socket_address

__all__ = ["Heartbeats"]

_LOOKS = 6
# Of the time between two looks: a process that thrashes in swap uses less.
_BUSY_SHARE = 0.01
_LONGEST_MESSAGE_BYTES = 64
_STOPPED = "T"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class _Rank:
    beating_pid: int | None = None
    has_beaten: bool = False
    processor_s: float = 0.0
    looks_in_vain: int = 0


class Heartbeats:
    """Receives the heartbeats of the ranks and judges who hangs.

    Args:
        patience_s: how long a rank may show no sign of life.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._period_s = patience_s / _LOOKS
        self._next_look = time.monotonic() + self._period_s
        self._ranks: dict[int, _Rank] = {}
        self.address = f"@det-keras-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.bind(socket_address(self.address))

    @property
    def due_in_s(self) -> float:
        """Seconds until the next look."""
        return max(0.0, self._next_look - time.monotonic())

    def fileno(self) -> int:
        """Return what becomes readable when a heartbeat comes."""
        return self._socket.fileno()

    def receive(self) -> None:
        """Record the received heartbeats; the queue of the socket may hold no more than ten."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message = self._socket.recv(_LONGEST_MESSAGE_BYTES)
                # Any process on this machine may write to this socket.
                with contextlib.suppress(ValueError):
                    rank, pid = parse_beat(message)
                    seen = self._ranks.setdefault(rank, _Rank())
                    seen.beating_pid, seen.has_beaten = pid, True

    def hanging(self, leaders: Mapping[int, int]) -> int | None:
        """Look at the ranks if it is time to.

        Args:
            leaders: of the ranks that are alive, the process that was started for each.

        Returns:
            A rank that has shown no sign of life for too long; None if there is none.
        """
        if self.due_in_s:
            return None
        self._next_look = time.monotonic() + self._period_s
        self.receive()
        for rank, leader in leaders.items():
            seen = self._ranks.setdefault(rank, _Rank())
            seen.looks_in_vain = 0 if self._is_alive(seen, leader) else seen.looks_in_vain + 1
            if seen.looks_in_vain >= _LOOKS:
                return rank
        return None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _is_alive(self, seen: _Rank, leader: int) -> bool:
        has_beaten, seen.has_beaten = seen.has_beaten, False
        state, processor_s = _look(seen.beating_pid or leader)
        is_busy = processor_s - seen.processor_s >= _BUSY_SHARE * self._period_s
        seen.processor_s = processor_s
        return has_beaten or is_busy or (seen.beating_pid is None and state != _STOPPED)


def _look(pid: int) -> tuple[str, float]:
    """Return the state of a process, one character, and the processor time it has used, in seconds."""
    try:
        # The name of the program stands before, in brackets, and may itself hold brackets and spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        # It has ended: that is seen, and said, elsewhere.
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
