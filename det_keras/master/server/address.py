"""The address on which the master listens, and its certificate; other machines need TLS."""

from __future__ import annotations

import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from det_keras.errors import DetError
from det_keras.protocol.values import is_loopback

#: The default address of a master; other machines cannot reach it.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Address:
    """The address on which a master listens.

    Attributes:
        host: the address to bind to.
        cert: PEM file with the certificate and its intermediate certificates; None without TLS.
        key: PEM file with its private key.
        trusted: PEM file with which clients on this machine check the certificate; by default `cert` itself.
    """

    host: str = LOOPBACK
    cert: Path | None = None
    key: Path | None = None
    trusted: Path | None = None

    def url(self, port: int) -> str:
        """Return the URL for clients on this machine."""
        if self.cert is None:
            return f"http://{_bracketed(self.host)}:{port}"
        return f"https://{_bracketed(self._name)}:{port}"

    @property
    def _name(self) -> str:
        # Clients cannot connect to the wildcard address, and no certificate names it.
        return socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host

    def check(self) -> None:
        """Check that clients on this machine accept the certificate, by a TLS handshake in memory.

        Raises:
            DetError: they do not accept it, or a file cannot be used.
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
                f"It must name {self._name!r} (or choose another --host), match the key {self.key}, and be signed by "
                f"itself or by an authority in the file that DET_MASTER_CERT_FILE names."
            ) from error


def choose_address(host: str | None, cert: str | None, key: str | None, trusted: str | None) -> Address:
    """Return the address on which to listen.

    Args:
        host: None for loopback.
        cert: PEM file with the certificate; None for no TLS.
        key: PEM file with its key; None if it is in the same file.
        trusted: value of ``DET_MASTER_CERT_FILE``.

    Raises:
        DetError: other machines could reach it without TLS, or the certificate cannot be used.
    """
    host = host or LOOPBACK
    if cert is None and key is not None:
        raise DetError("There is a key but no certificate. Use both: --tls-cert CERT.pem --tls-key KEY.pem.")
    if cert is None:
        if not is_loopback(host):
            raise DetError(
                f"Refusing to listen on {host} without TLS: passwords and code would cross the network unencrypted. "
                f"Use: det deploy local cluster-up --host {host} --tls-cert CERT.pem --tls-key KEY.pem"
            )
        return Address(host)
    paths = [Path(path).absolute() for path in (cert, key or cert, trusted or cert)]
    address = Address(host, *paths)
    address.check()
    return address


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    # Each iteration advances the handshake by one flight; there are three.
    for _ in range(4):
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not sides
