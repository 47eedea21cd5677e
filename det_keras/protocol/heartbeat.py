"""The datagrams by which a rank shows its launcher that it is alive: ``<rank> <pid>`` to an abstract Unix socket."""

from __future__ import annotations

__all__ = ["ADDRESS_VARIABLE", "format_beat", "parse_beat", "socket_address"]

#: The environment variable with the address of the launcher's socket; a leading ``@`` stands for its null byte.
ADDRESS_VARIABLE = "DET_HEARTBEAT_ADDRESS"


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
