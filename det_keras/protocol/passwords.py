"""Passwords as clients send them: never in clear text."""

from __future__ import annotations

import hashlib

# Fixed by Determined's protocol, so that every client sends the same text for a password.
_SALT = "GubPEmmotfiK9TMD6Zdw"


def hash_password(password: str) -> str:
    """Return the text that a client sends in place of a password; an empty password stays empty."""
    return hashlib.sha512((_SALT + password).encode()).hexdigest() if password else ""
