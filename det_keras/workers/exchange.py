"""The exchange of small Python objects between the workers of a job.

Every worker makes the same calls in the same order. Objects are pickled, and unpickling can run code: nothing is
unpickled before both ends of a `Channel` have proved that they know the job's key.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import os
import pickle
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from det_keras.cluster_info import WorkerInfo
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.workers.channel import Channel, Greeting, present

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_PATIENCE_S = 600.0
_RETRY_S = 0.05
# How long a client that has connected may be silent.
_GREETING_S = 60.0


class Exchange(abc.ABC):
    """Exchanges small Python objects between the workers of a job; every worker makes the same calls."""

    @abc.abstractmethod
    def allgather(self, value: object, *, local: bool = False) -> list[Any]:
        """Return every worker's `value` by rank; with `local`, of the workers on this machine only."""

    def close(self) -> None:
        """Close all connections."""
        return


class LocalExchange(Exchange):
    """The exchange of a job with one worker."""

    def allgather(self, value: object, *, local: bool = False) -> list[Any]:
        return [value]


class SocketExchange(Exchange):
    """Connects all workers with the chief and, with several machines, those of each machine with its first worker.

    Args:
        worker: ranks and sizes of this process.
        address: address of the chief; workers of one machine use loopback instead.
        port: port of the chief; with several machines, the next port is used within each machine.
        key: secret shared by the workers of the job.
        patience_s: how long to wait for all workers, in seconds.

    Raises:
        DetError: a worker did not connect in time or does not know the key, or the port is taken.
    """

    def __init__(
        self, worker: WorkerInfo, address: str, port: int, key: bytes, *, patience_s: float = _PATIENCE_S
    ) -> None:
        is_one_machine = worker.cross_size == 1
        self._all = Star(
            worker.rank, worker.size, LOOPBACK if is_one_machine else address, port, key, patience_s
        )
        self._local = self._all
        if not is_one_machine:
            self._local = Star(worker.local_rank, worker.local_size, LOOPBACK, port + 1, key, patience_s)

    def allgather(self, value: object, *, local: bool = False) -> list[Any]:
        return (self._local if local else self._all).allgather(value)

    def close(self) -> None:
        self._local.close()
        self._all.close()


class Star:
    """Connections between place 0 and every other place, which is a rank, a local rank or a machine.

    Args:
        place: of this process.
        size: number of places.
        address: address of place 0.
        port: port of place 0.
        key: secret shared by all places.
        patience_s: how long to wait for all places, in seconds.
        listener: a socket that listens there already, for place 0; None to make one.

    Raises:
        DetError: as `SocketExchange`.
    """

    def __init__(
        self,
        place: int,
        size: int,
        address: str,
        port: int,
        key: bytes,
        patience_s: float = _PATIENCE_S,
        *,
        listener: socket.socket | None = None,
    ) -> None:
        self._place, self._size = place, size
        self._others: dict[int, Channel] = {}
        if size == 1:
            return
        deadline = time.monotonic() + patience_s
        if place == 0:
            with listener or _listen(address, port, size) as accepting:
                self._others = _accept(accepting, size, key, deadline)
        else:
            self._others = {0: _connect(place, address, port, key, deadline)}

    def allgather(self, value: object) -> list[Any]:
        """Return the `value` of every place."""
        found: list[Any] = self.combine(value, lambda values: values)
        return found

    def combine(self, value: object, combine: Callable[[list[Any]], Any]) -> Any:
        """Return on every place what `combine` returns on place 0 for the values of all places."""
        if self._place > 0:
            self._send(0, value)
            return self._receive(0)
        result = combine([value, *(self._receive(place) for place in range(1, self._size))])
        for place in range(1, self._size):
            self._send(place, result)
        return result

    def close(self) -> None:
        """Close all connections."""
        for connection in self._others.values():
            connection.close()
        self._others = {}

    def _send(self, place: int, value: object) -> None:
        try:
            self._others[place].send_bytes(pickle.dumps(value))
        except (OSError, KeyError) as error:
            raise _gone(place) from error

    def _receive(self, place: int) -> Any:
        try:
            return pickle.loads(self._others[place].receive_bytes(None))
        except (OSError, KeyError) as error:
            raise _gone(place) from error


def own_key(home: Home) -> bytes:
    """Return a key that this user's processes share through a file of the data root, created at the first call."""
    path = home.create().root / "exchange.key"
    if not path.exists():
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".exchange-")
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        # `link` fails if the file exists, and makes it appear complete: of several processes that start at once, all
        # read the key of the first.
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        Path(draft).unlink()
    return path.read_bytes()


def _accept(listener: socket.socket, size: int, key: bytes, deadline: float) -> dict[int, Channel]:
    address, port = listener.getsockname()[:2]
    listener.settimeout(4 * _RETRY_S)
    found: dict[int, Channel] = {}
    changed = threading.Condition()

    def greet(connected: socket.socket) -> None:
        # On its own thread: a client that connects and sends nothing must not block the other workers.
        channel = Channel(connected)
        try:
            greeting = Greeting(channel, key)
            place = greeting.check(channel.receive(_GREETING_S)).get("place")
        except OSError as error:
            logger.warning("A connection to port %s was refused: %s.", port, error)
            channel.close()
            return
        with changed:
            if isinstance(place, int) and 1 <= place < size and place not in found:
                found[place] = channel
                changed.notify_all()
                return
        logger.warning("An unexpected or second rank %r of %s was refused at port %s.", place, size, port)
        channel.close()

    while len(found) < size - 1:
        if time.monotonic() > deadline:
            missing = sorted(set(range(1, size)) - set(found))
            raise DetError(f"Ranks {missing} of {size} did not connect to {address}:{port} in time.")
        with contextlib.suppress(TimeoutError):
            connected, _ = listener.accept()
            threading.Thread(target=greet, args=(connected,), name="det-exchange", daemon=True).start()
            with changed:
                changed.wait_for(lambda: len(found) == size - 1, timeout=_RETRY_S)
    return found


def _listen(address: str, port: int, size: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise DetError(
            f"The workers cannot connect at {address}:{port}: {error.strerror}. Another job may use the port: pass "
            "another `port_offset` to every worker's DistributedContext."
        ) from error
    listener.listen(size)
    return listener


def _connect(place: int, address: str, port: int, key: bytes, deadline: float) -> Channel:
    while True:
        try:
            connected = socket.create_connection(
                (address, port), timeout=max(deadline - time.monotonic(), 0.1)
            )
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise DetError(f"Rank 0 could not be reached at {address}:{port}: {error}.") from error
            time.sleep(_RETRY_S)
    channel = Channel(connected)
    try:
        present(channel, key, {"place": place}, max(deadline - time.monotonic(), 0.1))
    except OSError as error:
        channel.close()
        raise DetError(
            f"Rank 0 at {address}:{port} does not know the key of this job. Every worker needs the same DET_CHIEF_KEY."
        ) from error
    return channel


def _gone(place: int) -> DetError:
    return DetError(f"The worker at place {place} ended while objects were exchanged.")
