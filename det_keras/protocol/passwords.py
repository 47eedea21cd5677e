"""Passwords as they travel: never in clear text."""

from __future__ import annotations

import hashlib

__all__ = ["hash_password"]

# Fixed by Determined's protocol, so that every client sends the same for the same password.
_SALT = "GubPEmmotfiK9TMD6Zdw"


def hash_password(password: str) -> str:
    """Return what a client sends in place of a password; an empty one stays empty."""
    return hashlib.sha512((_SALT + password).encode()).hexdigest() if password else ""
