"""Detects ranks that hang, by the absence of signs of life; both ends, the rank's and its launcher's.

A rank that is stopped or swapped out does not end and does not answer: the other ranks would wait for it forever.
So the launcher checks every rank a few times before the timeout. Each of these is a sign of life:

- a heartbeat: a datagram ``<rank> <pid>`` on the launcher's abstract Unix socket, sent by a thread of the rank;
- processor time used, even without a heartbeat: slow work that lets no other thread run is not a hang;
- not being stopped, if the rank has never sent a heartbeat: a program that sends none may be asleep.

The launcher counts checks, not seconds: a launcher that was itself asleep ends no rank for that.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: The environment variable with the address of the launcher's socket; a leading ``@`` stands for its null byte.
ADDRESS_VARIABLE = "DET_HEARTBEAT_ADDRESS"

# Launchers check ranks six times within their timeout, which is 30 s by default.
_PERIOD_S = 0.5

# Acquired by the first call and never released. A forked child inherits it in this state, but not the thread: the child
# sends no heartbeats in the name of its parent's rank.
_started = threading.Lock()

_CHECKS = 6
# Share of the time between two checks: a process that thrashes in swap uses less.
_BUSY_SHARE = 0.01
_LONGEST_MESSAGE_BYTES = 64
# The process, account and group that sent a datagram, as the kernel says.
_CREDENTIALS = struct.Struct("3i")
_STOPPED = "T"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def socket_address(text: str) -> str:
    """Return the address to bind or to send to, from the text of the variable."""
    return f"\0{text[1:]}" if text.startswith("@") else text


def format_beat(rank: int, pid: int) -> bytes:
    """Return the datagram of a rank's process."""
    return f"{rank} {pid}".encode()


def parse_beat(datagram: bytes) -> tuple[int, int]:
    """Return the rank and the process number of a datagram.

    Raises:
        ValueError: it does not hold two numbers; any process of the machine can write to the socket.
    """
    rank, pid = map(int, datagram.split())
    return rank, pid


def beat_for_ever(rank: int, environ: Mapping[str, str]) -> None:
    """Send the launcher a datagram twice a second, until the process ends.

    A second call has no effect. Without a launcher's address, no call has an effect.

    Args:
        rank: of this process.
        environ: with the launcher's address.
    """
    address = environ.get(ADDRESS_VARIABLE)
    if not address or not _started.acquire(blocking=False):
        return
    where = socket_address(address)
    beats = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    beats.setblocking(False)
    # The first one is sent at once: it tells the launcher the pid.
    _beat(beats, rank, where)
    threading.Thread(
        target=_beat_until_exit, args=(beats, rank, where), name="heartbeat", daemon=True
    ).start()


def _beat_until_exit(beats: socket.socket, rank: int, address: str) -> None:
    pause = threading.Event()
    while not pause.wait(_PERIOD_S):
        _beat(beats, rank, address)


def _beat(beats: socket.socket, rank: int, address: str) -> None:
    # Training does not depend on a launcher that is busy or has ended. The socket does not block.
    with contextlib.suppress(OSError):
        beats.sendto(format_beat(rank, os.getpid()), address)


@dataclass
class _Rank:
    beating_pid: int | None = None
    has_beaten: bool = False
    processor_s: float = 0.0
    failed_checks: int = 0


class Heartbeats:
    """Receives the heartbeats of the ranks and finds ranks that hang.

    Args:
        patience_s: how long a rank may show no sign of life, in seconds.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self._period_s = patience_s / _CHECKS
        self._next_check = time.monotonic() + self._period_s
        self._ranks: dict[int, _Rank] = {}
        self.address = f"@det-keras-{secrets.token_hex(8)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(socket_address(self.address))

    @property
    def due_in_s(self) -> float:
        """Seconds until the next check."""
        return max(0.0, self._next_check - time.monotonic())

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when a heartbeat arrives."""
        return self._socket.fileno()

    def receive(self) -> None:
        """Record the received heartbeats; call it often, since the socket's queue may hold as few as ten."""
        with contextlib.suppress(BlockingIOError):
            while True:
                message, attached, _, _ = self._socket.recvmsg(
                    _LONGEST_MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
                # Any process on this machine may write to this socket.
                if any(_CREDENTIALS.unpack(found)[1] != os.getuid() for _, _, found in attached):
                    continue
                with contextlib.suppress(ValueError):
                    rank, pid = parse_beat(message)
                    seen = self._ranks.setdefault(rank, _Rank())
                    seen.beating_pid, seen.has_beaten = pid, True

    def hanging(self, leaders: Mapping[int, int]) -> int | None:
        """Check the ranks if a check is due.

        Args:
            leaders: pid of the process that was started for each living rank, by rank.

        Returns:
            A rank that has shown no sign of life for too long; None if there is none or no check is due.
        """
        if self.due_in_s:
            return None
        self._next_check = time.monotonic() + self._period_s
        self.receive()
        for rank, leader in leaders.items():
            seen = self._ranks.setdefault(rank, _Rank())
            seen.failed_checks = 0 if self._is_alive(seen, leader) else seen.failed_checks + 1
            if seen.failed_checks >= _CHECKS:
                return rank
        return None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _is_alive(self, seen: _Rank, leader: int) -> bool:
        has_beaten, seen.has_beaten = seen.has_beaten, False
        state, processor_s = _process_state(seen.beating_pid or leader)
        is_busy = processor_s - seen.processor_s >= _BUSY_SHARE * self._period_s
        seen.processor_s = processor_s
        return has_beaten or is_busy or (seen.beating_pid is None and state != _STOPPED)


def _process_state(pid: int) -> tuple[str, float]:
    """Return the state of a process, one character, and the processor time it has used, in seconds."""
    try:
        # The program's name precedes these fields, in brackets, and may itself hold brackets and spaces.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        # The process has ended; the launcher notices and reports that elsewhere.
        return "", 0.0
    return fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


#: A rank's script raised `InvalidHP`. With 0, the launcher would wait for the other ranks, which wait for this one.
REJECTS_HPARAMS = 79


def code_of_rejection(environ: Mapping[str, str]) -> int:
    """Return the exit code after `InvalidHP`: 0, which a master takes for a regular end, except below our launcher."""
    return REJECTS_HPARAMS if environ.get(ADDRESS_VARIABLE) else 0
