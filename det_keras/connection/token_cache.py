"""The tokens of `det user login`, one per master and user, readable only by their owner."""

from __future__ import annotations

import contextlib
import json
from typing import Any
from urllib.parse import urlsplit

from det_keras.files import write_file
from det_keras.home import Home


def canonical_address(url: str) -> str:
    """Return the same text for every way to write a master's address: case of the host, default port, last slash."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if ":" in host:
        host = f"[{host}]"
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{'127.0.0.1' if host == 'localhost' else host}:{port}{parts.path.rstrip('/')}"


class TokenCache:
    """Stores tokens between commands, and the last user who logged in.

    Args:
        home: the data root with the file.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path = home.root / "logins.json"

    def find(self, url: str, user: str | None) -> tuple[str, str] | None:
        """Return the user and the token for the master at `url`; without a user, those of the last login."""
        known = self._read().get(canonical_address(url), {})
        name = user or known.get("last")
        token = known.get("tokens", {}).get(name)
        return None if token is None else (str(name), str(token))

    def store(self, url: str, user: str, token: str) -> None:
        """Store a token, and the user as the last login.

        Args:
            url: address of the master.
            user: name of the user.
            token: the user's token.
        """
        content = self._read()
        known = content.setdefault(canonical_address(url), {"tokens": {}})
        known["tokens"][user] = token
        known["last"] = user
        self._write(content)

    def forget(self, url: str, user: str) -> None:
        """Delete a token."""
        content = self._read()
        known = content.get(canonical_address(url), {"tokens": {}})
        known["tokens"].pop(user, None)
        if known.get("last") == user:
            known["last"] = next(iter(known["tokens"]), None)
        self._write(content)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # A malformed file counts as empty: logging in again replaces it.
            return {}
        found = {}
        for url, known in content.items() if isinstance(content, dict) else ():
            # An address that cannot be read is of no use to anybody.
            with contextlib.suppress(ValueError):
                found[canonical_address(url)] = known
        return found

    def _write(self, content: dict[str, Any]) -> None:
        self._home.create()
        write_file(self._path, json.dumps(content, indent=1), mode=0o600)
