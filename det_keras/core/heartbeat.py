"""Signs of life of a rank, for the launcher that watches it.

A thread of its own sends them, so that training that is only slow, or waits for another rank, is not taken for a hang;
a rank that is stopped or swapped out sends none. The other side is `det_keras.launch.heartbeat`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping

from det_keras.protocol.heartbeat import ADDRESS_VARIABLE, format_beat, socket_address

__all__ = ["beat_for_ever"]

# Launchers look at ranks six times in their patience, which is 30 s unless they are told otherwise.
_PERIOD_S = 0.5

_started = threading.Lock()


def beat_for_ever(rank: int, environ: Mapping[str, str]) -> None:
    """Send the launcher a datagram twice a second, until the process ends.

    A second call does nothing, and so does the first where no launcher listens.

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
    # Once at once: from here on the launcher knows which process to look at.
    _beat(beats, rank, where)
    threading.Thread(
        target=_beat_until_exit, args=(beats, rank, where), name="heartbeat", daemon=True
    ).start()


def _beat_until_exit(beats: socket.socket, rank: int, address: str) -> None:
    pause = threading.Event()
    while not pause.wait(_PERIOD_S):
        _beat(beats, rank, address)


def _beat(beats: socket.socket, rank: int, address: str) -> None:
    # A launcher that is busy or gone is no concern of the training.
    with contextlib.suppress(OSError):
        beats.sendto(format_beat(rank, os.getpid()), address)
