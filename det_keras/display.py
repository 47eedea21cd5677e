"""Text for times, sizes and numbers, on a terminal and on a page."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from det_keras.protocol.states import bare
from det_keras.protocol.values import parse_timestamp

_NOTHING = "-"


def state_text(state: str | None) -> str:
    """Return a state without its prefix: ``COMPLETED``."""
    return bare(state or "") or _NOTHING


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the REST API, which may have any number of digits after the second; None if it is not a time."""
    try:
        return parse_timestamp(text or "")
    except ValueError:
        return None


def time_text(text: str | None) -> str:
    """Return a time of the REST API in local time."""
    moment = parse_time(text)
    if moment is None:
        return _NOTHING
    # A time of year 1 or 9999 may have no local time. %Y would not fill a year with zeros.
    with contextlib.suppress(OverflowError):
        moment = moment.astimezone()
    return moment.replace(tzinfo=None).isoformat(" ", "seconds")


def duration_text(start: str | None, end: str | None) -> str:
    """Return the duration from `start` to `end`, or until now if there is no `end`: ``1h 02m``."""
    first, last = parse_time(start), parse_time(end) or datetime.now(timezone.utc)
    return _NOTHING if first is None else seconds_text((last - first).total_seconds())


def seconds_text(duration_s: float) -> str:
    """Return a duration in its two largest units: ``1h 02m``."""
    seconds = max(0, round(duration_s))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


def pace_texts(pace: Mapping[str, Any] | None) -> list[str]:
    """Return what is known of a trial's speed: ``1,234 samples/s``, ``about 2m 05s left``.

    Args:
        pace: the field of a trial in the REST API; None if nothing is known.
    """
    known, texts = pace or {}, []
    for name, unit in (("samplesPerSecond", "samples/s"), ("batchesPerSecond", "batches/s")):
        if known.get(name) is not None:
            texts.append(f"{speed_text(known[name])} {unit}")
    if known.get("secondsLeft") is not None:
        texts.append(f"about {seconds_text(known['secondsLeft'])} left")
    return texts


def speed_text(per_second: float) -> str:
    """Return a rate with three digits, and with all those before the point: ``1,234``, ``0.0512``."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


_DONE = {
    "cancel": "canceled",
    "login": "logged in",
    "logout": "logged out",
    "pin": "pinned",
    "refused login": "refused a login",
    "set": "set",
    "stop": "stopped",
    "unpin": "unpinned",
}


def deed_text(entry: Mapping[str, Any]) -> str:
    """Return what an entry of the record of changes says was done and by whom, such as ``killed by ada``."""
    first, _, rest = entry["verb"].partition(" ")
    done = (
        _DONE.get(entry["verb"]) or f"{first}{'d' if first.endswith('e') else 'ed'}{' ' * bool(rest)}{rest}"
    )
    who = entry["username"] or "nobody"
    if entry["tokenId"] is not None:
        who += f" (token {entry['tokenId']})"
    if entry["allocationId"] is not None:
        who += f" (task {entry['allocationId']})"
    return f"{done} by {who}"


def object_text(entry: Mapping[str, Any]) -> str:
    """Return what an entry of the record of changes is about, such as ``link 3 of experiment 7``."""
    text = f"{entry['kind']} {entry['objectId']}".strip()
    return f"{text} of {entry['ofKind']} {entry['ofId']}" if entry["ofKind"] else text


def triggers_text(triggers: Iterable[Mapping[str, Any]]) -> str:
    """Return when a webhook is told, such as ``COMPLETED, log /nan/, alerts``."""
    texts = []
    for trigger in triggers:
        condition = trigger["condition"] or {}
        if "state" in condition:
            texts.append(str(condition["state"]))
        elif "regex" in condition:
            texts.append(f"log /{condition['regex']}/")
        else:
            texts.append("alerts")
    return ", ".join(texts)


def size_text(size_bytes: float) -> str:
    """Return a number of bytes: ``2.5KB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f}B"
    for unit in ("KB", "MB", "GB"):
        size_bytes /= 1024
        if size_bytes < 1024:
            return f"{size_bytes:.1f}{unit}"
    return f"{size_bytes / 1024:.1f}TB"


def percent_text(fraction: float | None) -> str:
    """Return a fraction as a whole percentage, rounded down, so that unfinished work never shows 100%."""
    return _NOTHING if fraction is None else f"{math.floor(fraction * 100 + 1e-9)}%"


def number_text(value: object) -> str:
    """Return a number with four significant digits; integers in full, other values unchanged."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.4g}"


def metric_text(value: object) -> str:
    """Return a metric; unlike a count it keeps its decimals: ``1.0``."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return f"{value:.1f}"
    return number_text(value)


def hparams_text(hparams: Mapping[str, Any]) -> str:
    """Return hyperparameters on one line: ``learning_rate=0.01  optimizer.name=adam``."""
    return "  ".join(f"{name}={number_text(value)}" for name, value in flat_hparams(hparams)) or _NOTHING


def flat_hparams(hparams: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of hyperparameters, nested ones under names with dots."""
    for name, value in hparams.items():
        if isinstance(value, Mapping) and value:
            yield from flat_hparams(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
