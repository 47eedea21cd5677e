"""Requests of the master to addresses that users name: only to networks that are not its own.

Whoever may name an address could otherwise reach, through the master, services that trust its machine or its network.
So the address of each connection is checked after its name was resolved, and the connection is made to this address: a
name that resolves to another one a moment later changes nothing. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from det_keras.master.errors import InvalidArgumentError

#: Characters of an address.
LONGEST_URL = 2_000
#: How long a request may take in all, in seconds.
LIMIT_S = 15.0
_SOCKET_S = 10.0
#: Of an answer, what is kept.
MOST_ANSWER_BYTES = 2_000

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# IPv4 addresses behind a gateway (RFC 6052).
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


class ForbiddenAddressError(Exception):
    """A name leads to an address that the master does not call."""


@dataclass(frozen=True)
class Answer:
    """What came back of a request.

    Attributes:
        status: of HTTP; None if there was no answer.
        text: the beginning of the answer, or why there is none.
    """

    status: int | None
    text: str


class Networks:
    """Decides which addresses the master calls: public ones, and those of allowed networks.

    Args:
        allowed: networks that the administrator allows.
    """

    def __init__(self, allowed: Sequence[_Network] = ()) -> None:
        self._allowed = tuple(allowed)

    @classmethod
    def parse(cls, text: str) -> Networks:
        """Return those that a list such as ``127.0.0.0/8,10.1.0.0/16`` allows.

        Raises:
            ValueError: an item is no network.
        """
        return cls([ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()])

    def allows(self, address: str) -> bool:
        """Return whether the master calls an address of IP."""
        found = ipaddress.ip_address(address.partition("%")[0])
        if any(found.version == network.version and found in network for network in self._allowed):
            return True
        meant = _embedded(found)
        if meant is not None:
            return self.allows(str(meant))
        return found.is_global and not found.is_multicast

    def check_url(self, url: str) -> None:
        """Refuse an address that the master does not call. A name that has no address now may get one.

        Raises:
            InvalidArgumentError: it is malformed, or leads to a network that is not allowed.
        """
        parts = split_url(url)
        with contextlib.suppress(OSError):
            try:
                self.resolve(parts)
            except ForbiddenAddressError as error:
                raise InvalidArgumentError(str(error)) from None

    def resolve(self, parts: SplitResult) -> list[str]:
        """Return the addresses of a host, all of which are allowed.

        Raises:
            OSError: its name is unknown.
            ForbiddenAddressError: one of them is not allowed.
        """
        found = socket.getaddrinfo(parts.hostname, _port(parts), type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        for address in addresses:
            if not self.allows(address):
                raise ForbiddenAddressError(
                    f"{parts.hostname} is {address}, in a network that the master does not call. An administrator "
                    "allows networks with `DET_KERAS_WEBHOOK_NETWORKS` where the master is started."
                )
        return addresses

    def post(self, url: str, body: bytes, headers: Mapping[str, str], limit_s: float = LIMIT_S) -> Answer:
        """Send a body, and return what came back; nothing is raised.

        Args:
            url: as `check_url` accepts it.
            body: what is sent.
            headers: what is sent with it.
            limit_s: how long it may take in all, in seconds.
        """
        try:
            parts = split_url(url)
            addresses = self.resolve(parts)
            with _connection(parts, addresses, limit_s) as connection:
                target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request("POST", target, body, {"Host": _host(parts), **headers})
                answer = connection.getresponse()
                text = answer.read(MOST_ANSWER_BYTES).decode(errors="replace")
                return Answer(answer.status, text)
        except (
            OSError,
            http.client.HTTPException,
            ValueError,
            ForbiddenAddressError,
            InvalidArgumentError,
        ) as error:
            return Answer(None, f"{type(error).__name__}: {error}"[:MOST_ANSWER_BYTES])


def split_url(url: str) -> SplitResult:
    """Return the parts of an address.

    Raises:
        InvalidArgumentError: it is none of HTTP, too long, or has a user.
    """
    try:
        parts = urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.username is None
        is_valid = is_valid and (parts.port is None or parts.port > 0) and url.isprintable() and url.isascii()
    except ValueError:
        is_valid = False
    if not is_valid or len(url) > LONGEST_URL or " " in url:
        raise InvalidArgumentError(
            "valid url required: http:// or https://, a host, no user and password, "
            f"at most {LONGEST_URL} characters of ASCII. Received {url[:LONGEST_URL]!r}."
        )
    return parts


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def _host(parts: SplitResult) -> str:
    return parts.netloc


def _embedded(address: _Address) -> ipaddress.IPv4Address | None:
    """Return the address of IPv4 that one of IPv6 leads to."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (None if teredo is None else teredo[1])


@contextlib.contextmanager
def _connection(
    parts: SplitResult, addresses: Sequence[str], limit_s: float
) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection to the first address that answers, all of which were checked; no name is resolved again.

    It ends after a time, whatever the receiver does: it may send a byte at a time.
    """
    host = parts.hostname or ""
    connection = http.client.HTTPConnection(host, _port(parts), timeout=_SOCKET_S)
    sock = _connect(addresses, _port(parts))
    if parts.scheme == "https":
        context = ssl.create_default_context()
        sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    timer = threading.Timer(limit_s, _shut, (sock,))
    timer.daemon = True
    timer.start()
    try:
        if isinstance(sock, ssl.SSLSocket):
            sock.do_handshake()
        connection.sock = sock
        yield connection
    finally:
        timer.cancel()
        connection.close()
        sock.close()


def _connect(addresses: Sequence[str], port: int) -> socket.socket:
    *others, last = addresses
    for address in others:
        with contextlib.suppress(OSError):
            return socket.create_connection((address, port), timeout=_SOCKET_S / len(addresses))
    return socket.create_connection((last, port), timeout=_SOCKET_S)


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
