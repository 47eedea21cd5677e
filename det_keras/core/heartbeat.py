"""Heartbeats of a rank, for its launcher.

A separate thread sends them, so that slow training, or waiting for another rank, is not mistaken for a hang. A rank
that is stopped or swapped out sends none. The receiver is `det_keras.launch.heartbeat`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Mapping

from det_keras.protocol.heartbeat import ADDRESS_VARIABLE, format_beat, socket_address

__all__ = ["beat_for_ever"]

# Launchers check ranks six times within their timeout, which is 30 s by default.
_PERIOD_S = 0.5

# Acquired by the first call and never released. A forked child inherits it in this state, but not the thread: the child
# sends no heartbeats in the name of its parent's rank.
_started = threading.Lock()


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
