"""Finds the master that a user means, and the token for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from det_keras.connection.settings import Settings
from det_keras.connection.token_cache import TokenCache, canonical_address
from det_keras.errors import DetError, MasterError
from det_keras.home import Home

if TYPE_CHECKING:
    from det_keras.client import Session

#: The user that the embedded master creates for the owner of the machine's account.
DEFAULT_USER = "determined"

# Long enough for a restart of the master, short enough for a mistyped address.
_PATIENCE_S = 5.0
_DEFAULT_PORT = 8080
_HOST = re.compile(r"[^\s/?#@]+")


def open_session(
    settings: Settings, start: Callable[[Settings], str] | None = None, *, patience_s: float = _PATIENCE_S
) -> Session:
    """Return a session with the master that the user means.

    Args:
        settings: of the command line and the environment.
        start: starts an embedded master and returns its address, if no master is named and none runs. By default that
            is an error.
        patience_s: for how many seconds a request is repeated while the master does not answer.

    Raises:
        DetError: there is no master, or no token for it.
        MasterError: the master does not accept the password of the environment.
    """
    url = find_url(settings, start)
    return _session(settings, url, _token(settings, url), patience_s)


def find_url(settings: Settings, start: Callable[[Settings], str] | None = None) -> str:
    """Return the address of the master that the user means; arguments and errors are those of `open_session`."""
    if settings.master is not None:
        return _whole_url(settings.master)
    url = start(settings) if start is not None else embedded_url(settings.home)
    if url is None:
        raise DetError(
            "No master is named and none runs. Start one with `det deploy local cluster-up`, or set DET_MASTER."
        )
    return url


def embedded_url(home: Home) -> str | None:
    """Return the last address of the embedded master of `home`, even if it is not running; None if unknown."""
    url = _announcement(home).get("url")
    return None if url is None else str(url).rstrip("/")


def find_cert_file(settings: Settings, url: str) -> str | None:
    """Return the PEM file that checks the certificate of the master at `url`; None for the system's authorities."""
    if settings.cert_file is None and _same_place(url, embedded_url(settings.home)):
        return _announcement(settings.home).get("cert_file")
    return settings.cert_file


def _announcement(home: Home) -> dict[str, str]:
    try:
        content = json.loads(home.master_file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def log_in(settings: Settings, url: str, user: str, password: str) -> str:
    """Return a new token of `user`.

    Raises:
        DetError: the master does not accept the name and password.
    """
    with _session(settings, url, "") as session:
        try:
            return session.api.accounts.log_in(user, password)
        except MasterError as error:
            if error.status not in (401, 403):
                raise
            raise DetError(
                f"Unauthenticated: the master at {url} does not accept user {user!r} with this password "
                f"({error.message}). Try again with `det user login {user}`."
            ) from error


def _session(settings: Settings, url: str, token: str, patience_s: float = _PATIENCE_S) -> Session:
    from det_keras.client import Session

    return Session(
        url,
        token,
        patience_s=patience_s,
        cert_file=find_cert_file(settings, url),
        cert_name=settings.cert_name,
    )


def _token(settings: Settings, url: str) -> str:
    if settings.is_environment_user and settings.token is not None:
        return _usable(settings.token, "DET_USER_TOKEN")
    if settings.is_environment_user and settings.user is not None and settings.password is not None:
        return log_in(settings, url, settings.user, settings.password)
    cached = TokenCache(settings.home).find(url, settings.user)
    if cached is not None:
        return _usable(cached[1], "the file of your logins")
    if settings.user in (None, DEFAULT_USER) and _same_place(url, embedded_url(settings.home)):
        return _embedded_token(settings.home)
    with _session(settings, url, "") as session:
        # A wrong address is no matter of a login.
        session.api.accounts.check_is_master(url)
    whose = f" of user {settings.user!r}" if settings.user else ""
    raise DetError(
        f"Unauthenticated: there is no token{whose} for the master at {url}. "
        f"Log in with `det -m {url} user login`, or set DET_USER and DET_PASS."
    )


def _usable(token: str, source: str) -> str:
    """Return a token that can be sent.

    Raises:
        DetError: no token has such characters.
    """
    if token.isascii() and token.isprintable():
        return token
    raise DetError(f"Unauthenticated: what is in {source} is no token. Log in again with `det user login`.")


def _embedded_token(home: Home) -> str:
    try:
        return home.token_file.read_bytes().decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no token"
        raise DetError(
            f"Unauthenticated: the embedded master's token cannot be read at {home.token_file} ({reason}). "
            "Restart the master: it writes a new one."
        ) from error


def _whole_url(text: str) -> str:
    """Return an address with its scheme. An address without scheme and port gets the port 8080.

    Raises:
        DetError: it is not an address of a master.
    """
    given = text.strip()
    has_scheme = "://" in given
    try:
        parts = urlsplit(given if has_scheme else f"http://{given}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise _wrong_address(text, str(error)) from error
    if parts.scheme not in ("http", "https"):
        raise _wrong_address(text, f"there is no master behind {parts.scheme}://")
    if not host or not _HOST.fullmatch(host):
        raise _wrong_address(text, "it names no host")
    if parts.username is not None or parts.password is not None:
        raise DetError(
            f"The master's address contains a user, before the @ of {host!r}. Leave it out, and log in with `det user "
            "login`, or set DET_USER and DET_PASS."
        )
    if has_scheme:
        return given.rstrip("/")
    return f"http://{parts.netloc}" if port else f"http://{parts.netloc}:{_DEFAULT_PORT}"


def _wrong_address(text: str, reason: str) -> DetError:
    return DetError(
        f"{text!r} is not the address of a master: {reason}. `-m` or DET_MASTER names it, such as "
        "http://127.0.0.1:8080."
    )


def _same_place(url: str, other: str | None) -> bool:
    return other is not None and canonical_address(url) == canonical_address(other)
