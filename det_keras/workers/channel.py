"""A connection between two processes of a job, whose ends both know the job's key.

Each message is its length, in four bytes, and its content. Both ends prove with an HMAC over fresh random numbers that
they know the key, before anything else that they send is used, and until then a message may only be short: unpickling,
as `workers/exchange.py` does, can run code. The connections are not encrypted.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
import struct
from collections import deque
from typing import Any

_RECEIVE_BYTES = 1 << 18
_LENGTH = struct.Struct("!I")
# What a peer may send before it has proved that it knows the key.
_LONGEST_GREETING_BYTES = 1 << 12
_LONGEST_MESSAGE_BYTES = (1 << 32) - 1
_NONCE_BYTES = 32
_PROBES = 3


class Channel:
    """One end of a connection.

    Args:
        connected: the connected socket; closed with the channel.
        silence_s: how long the other machine may be unreachable before the connection counts as lost, in seconds; None
            for as long as the system allows.
    """

    def __init__(self, connected: socket.socket, silence_s: float | None = None) -> None:
        self._socket = connected
        self._socket.settimeout(silence_s)
        self._rest = bytearray()
        self._messages: deque[bytes] = deque()
        self._longest_bytes = _LONGEST_GREETING_BYTES
        self.is_closed = False
        with contextlib.suppress(OSError):
            # Short messages wait for each other: with the system's delay before them, each would take 40 ms.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if silence_s is not None:
            _notice_dead_machines(connected, silence_s)

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when something arrives."""
        return self._socket.fileno()

    @property
    def port(self) -> int:
        """The port of the other end."""
        port: int = self._socket.getpeername()[1]
        return port

    def trust(self) -> None:
        """Accept long messages from now on: the other end knows the key."""
        self._longest_bytes = _LONGEST_MESSAGE_BYTES

    def send_bytes(self, content: bytes) -> None:
        """Send a message.

        Raises:
            OSError: the connection is lost.
        """
        self._socket.sendall(_LENGTH.pack(len(content)) + content)

    def send(self, message: dict[str, Any]) -> None:
        """Send an object as JSON; raises as `send_bytes`."""
        self.send_bytes(json.dumps(message).encode())

    def read(self) -> list[dict[str, Any]]:
        """Receive once, and return the objects that are complete by then.

        Raises:
            OSError: the connection has ended, or what arrived is not a message.
        """
        self._receive_once()
        found = [_parse(content) for content in self._messages]
        self._messages.clear()
        return found

    def receive_bytes(self, timeout_s: float | None) -> bytes:
        """Return the next message.

        Args:
            timeout_s: how long to wait, in seconds; None for as long as the connection exists.

        Raises:
            TimeoutError: there was none in time.
            OSError: the connection has ended, or what arrived is not a message.
        """
        if not self._messages:
            silence_s = self._socket.gettimeout()
            self._socket.settimeout(timeout_s)
            try:
                while not self._messages:
                    self._receive_once()
            finally:
                with contextlib.suppress(OSError):
                    self._socket.settimeout(silence_s)
        return self._messages.popleft()

    def receive(self, timeout_s: float | None) -> dict[str, Any]:
        """Return the next message, an object as JSON; as `receive_bytes`."""
        return _parse(self.receive_bytes(timeout_s))

    def close(self) -> None:
        """Close the connection."""
        self.is_closed = True
        self._socket.close()

    def _receive_once(self) -> None:
        data = self._socket.recv(_RECEIVE_BYTES)
        if not data:
            raise ConnectionResetError("the other end has closed the connection")
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > self._longest_bytes:
                raise ConnectionAbortedError("the other end sent no message of a job, or too long a one")
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            self._messages.append(bytes(self._rest[_LENGTH.size : end]))
            del self._rest[:end]


class Greeting:
    """The accepting side of a new connection: it sends a random number and expects a proof over it.

    Args:
        channel: the new connection.
        key: secret of the job.
    """

    def __init__(self, channel: Channel, key: bytes) -> None:
        self.channel = channel
        self._key = key
        self._nonce = secrets.token_hex(_NONCE_BYTES)
        channel.send({"nonce": self._nonce})

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return what the peer says of itself, after its proof was verified.

        Raises:
            PermissionError: it does not know the key.
        """
        hello, theirs = message.get("hello"), str(message.get("nonce"))
        expected = _proof(self._key, "join", self._nonce, theirs, hello)
        if not hmac.compare_digest(expected.encode(), str(message.get("proof")).encode()):
            raise PermissionError("it does not know the key of this job")
        assert isinstance(hello, dict)
        self.channel.trust()
        self.channel.send({"proof": _proof(self._key, "host", self._nonce, theirs, hello)})
        return hello


def present(channel: Channel, key: bytes, hello: dict[str, Any], timeout_s: float) -> None:
    """Prove to the accepting side that this end knows the key, and require the same of it.

    Args:
        channel: the new connection.
        key: secret of the job.
        hello: what to tell of this end.
        timeout_s: how long to wait for each answer, in seconds.

    Raises:
        PermissionError: the other end does not know the key.
        OSError: the connection has ended, or the other end is silent.
    """
    theirs, ours = str(channel.receive(timeout_s).get("nonce")), secrets.token_hex(_NONCE_BYTES)
    channel.send({"nonce": ours, "hello": hello, "proof": _proof(key, "join", theirs, ours, hello)})
    expected = _proof(key, "host", theirs, ours, hello)
    if not hmac.compare_digest(expected.encode(), str(channel.receive(timeout_s).get("proof")).encode()):
        raise PermissionError("the program that listens there does not know the key of this job")
    channel.trust()


def _proof(key: bytes, side: str, host_nonce: str, guest_nonce: str, hello: object) -> str:
    text = json.dumps([side, host_nonce, guest_nonce, hello], sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _parse(content: bytes) -> dict[str, Any]:
    try:
        message = json.loads(content)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise ConnectionAbortedError("the other end sent no message of a job")
    return message


def _notice_dead_machines(connected: socket.socket, silence_s: float) -> None:
    """Let the kernel end the connection when the other machine is gone without closing it."""
    pause_s = max(1, round(silence_s / (_PROBES + 1)))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", pause_s),
        ("TCP_KEEPINTVL", pause_s),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", round(1000 * silence_s)),
    ):
        # The names that this system has; without them its own, longer times hold.
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
