"""Values in strict JSON, and times in UTC."""

from __future__ import annotations

import hashlib
import ipaddress
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

_TIME = re.compile(r"(.*?)(?:\.(\d+))?(Z|z|[+-]\d\d:\d\d)?")


def finite(value: Any) -> Any:
    """Return `value` in a form that strict JSON can represent.

    Values of NumPy and TensorFlow become Python values, tuples become lists, names of fields become text, and NaN and
    infinities become the text ``NaN``, ``Infinity`` and ``-Infinity``.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if hasattr(value, "numpy"):
        return finite(value.numpy())
    return value


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(timezone.utc)


def timestamp(time: datetime | None) -> str | None:
    """Return a time as text for the protocol, None for None."""
    if time is None:
        return None
    return f"{time.astimezone(timezone.utc).isoformat(timespec='microseconds')[: -len('+00:00')]}Z"


def parse_timestamp(text: str) -> datetime:
    """Return an RFC 3339 time in UTC; without an offset it is UTC.

    Args:
        text: the time, with any number of digits after the second; Python 3.10 cannot parse that.

    Raises:
        ValueError: `text` is not such a time, or it is before year 1 or after year 9999 in UTC.
    """
    match = _TIME.fullmatch(text.strip())
    if match is None or not match[1]:
        raise ValueError(f"{text!r} is not a time such as 2026-01-02T03:04:05.678901Z.")
    offset = (match[3] or "Z").upper().replace("Z", "+00:00")
    try:
        moment = datetime.fromisoformat(match[1] + offset)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-01-02T03:04:05.678901Z.") from None
    try:
        # Times are stored in UTC. One of year 1 or 9999 with an offset may be outside of what `datetime` represents.
        moment = moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{text!r} is before year 1 or after year 9999 in UTC.") from None
    return moment + timedelta(microseconds=int((match[2] or "0").ljust(6, "0")[:6]))


# Fixed by Determined's protocol, so that every client sends the same text for a password.
_SALT = "GubPEmmotfiK9TMD6Zdw"


def hash_password(password: str) -> str:
    """Return the text that a client sends in place of a password; an empty password stays empty."""
    return hashlib.sha512((_SALT + password).encode()).hexdigest() if password else ""


def is_loopback(host: str) -> bool:
    """Return whether a name or address is of this machine alone: other machines cannot reach what listens there."""
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"
