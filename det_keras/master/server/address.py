"""Where the master listens, and under which certificate: nobody else's machine reaches it in the clear."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from det_keras.errors import DetError

__all__ = ["LOOPBACK", "Address", "choose_address"]

#: Where a master listens that is told nothing: nobody outside of the machine reaches it.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """Where to listen.

    Attributes:
        host: to bind to.
        cert: PEM file with the certificate, and those between it and the root; None without TLS.
        key: PEM file with its private key.
        trusted: what clients of this machine check the certificate with; `cert` itself unless it is said.
    """

    host: str = LOOPBACK
    cert: Path | None = None
    key: Path | None = None
    trusted: Path | None = None

    def url(self, port: int) -> str:
        """Return the address as clients of this machine use it."""
        if self.cert is None:
            return f"http://{_bracketed(self.host)}:{port}"
        return f"https://{_bracketed(self._name)}:{port}"

    @property
    def _name(self) -> str:
        # Nobody can connect to "everywhere", and no certificate names it.
        return socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host

    def check(self) -> None:
        """Make sure that clients of this machine will take the certificate: shake hands without a network.

        Raises:
            DetError: they would not, or a file cannot be used.
        """
        if self.cert is None:
            return
        try:
            server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server.load_cert_chain(self.cert, self.key)
            client = ssl.create_default_context(cafile=str(self.trusted))
            _shake_hands(server, client, self._name)
        except (OSError, ssl.SSLError) as error:
            raise DetError(
                f"The certificate {self.cert} cannot be used for https://{_bracketed(self._name)}: {error}. "
                f"It must name {self._name!r} (or choose another --host), fit the key {self.key}, and be signed by "
                f"itself or by an authority of the file that DET_MASTER_CERT_FILE names."
            ) from error


def choose_address(host: str | None, cert: str | None, key: str | None, trusted: str | None) -> Address:
    """Return where to listen.

    Args:
        host: None for loopback.
        cert: certificate, None for no TLS.
        key: its key; it may be in the same file.
        trusted: what ``DET_MASTER_CERT_FILE`` says.

    Raises:
        DetError: it would be reachable from other machines without TLS, or the certificate does not do.
    """
    host = host or LOOPBACK
    if cert is None and key is not None:
        raise DetError("A key without a certificate: give both, --tls-cert CERT.pem --tls-key KEY.pem.")
    if cert is None:
        if not _is_loopback(host):
            raise DetError(
                f"Refusing to listen on {host} without TLS: passwords and code would cross the network in the clear. "
                f"Use: det deploy local cluster-up --host {host} --tls-cert CERT.pem --tls-key KEY.pem"
            )
        return Address(host)
    paths = [Path(path).absolute() for path in (cert, key or cert, trusted or cert)]
    address = Address(host, *paths)
    address.check()
    return address


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Each turn moves it on by one flight; there are three.
    for _ in range(4):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not sides
