"""Masks the secrets of configs among the files that clients send, before they are stored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection, Sequence

from det_keras.config.copies import conceal, is_candidate
from det_keras.master.database.context_store import REGULAR, FileEntry

# Parsing a mebibyte of YAML takes ten seconds: others would wait for more.
_MOST_BYTES = 1 << 20


def without_copied_secrets(entries: Sequence[FileEntry], secrets: Collection[str]) -> list[FileEntry]:
    """Return the files of a context directory, those that are configs with masked secrets.

    Args:
        entries: the files as clients send them.
        secrets: those of the submitted config.
    """
    found, left = [], _MOST_BYTES
    for entry in entries:
        content = _content(entry)
        if is_candidate(content, secrets) and len(content) <= left:
            left -= len(content)
            concealed = conceal(content, secrets)
            if concealed != content:
                entry = entry.model_copy(update={"content": base64.b64encode(concealed).decode()})
        found.append(entry)
    return found


def _content(entry: FileEntry) -> bytes:
    if entry.type not in REGULAR:
        return b""
    try:
        return base64.b64decode(entry.content, validate=True)
    except (binascii.Error, ValueError):
        # The store refuses it.
        return b""
