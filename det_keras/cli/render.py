"""How values look on screen: tables, times, sizes and numbers as people read them.

On a terminal tables fit its width; in a pipe they are as wide as their content, so that ids stay whole.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

__all__ = [
    "duration_text",
    "hparams_text",
    "metric_text",
    "number_text",
    "parse_time",
    "percent_text",
    "print_facts",
    "print_json",
    "print_table",
    "printable",
    "size_text",
    "state_text",
    "time_text",
]

_NOTHING = "-"
# Wide enough that nothing wraps where nobody looks at a window.
_PIPE_COLUMNS = 10_000
_SHORTEST_ID = 20
_GAP = 2


def print_json(value: Any) -> None:
    """Print JSON for programs and patient people."""
    print(json.dumps(value, indent=2))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, title: str | None = None) -> None:
    """Print rows below the names of their columns, aligned.

    Ids, times and numbers stay whole, even where a terminal is too narrow; only long texts are wrapped.

    Args:
        columns: a name that ends with ``>`` has its values on the right.
        rows: one text per column.
        title: stands above.
    """
    # Imported here, as rich takes longer to load than most commands take to run.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    needed = 0
    for index, column in enumerate(columns):
        name, is_right = column.removesuffix(">"), column.endswith(">")
        longest = max([len(name), *(len(row[index]) for row in rows)])
        is_whole = not is_terminal or longest <= _SHORTEST_ID or column.startswith("UUID")
        least = longest if is_whole else _SHORTEST_ID
        table.add_column(name, justify="right" if is_right else "left", no_wrap=is_whole, min_width=least)
        needed += least + _GAP
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = Console(highlight=False)
    console.width = max(console.width, needed) if is_terminal else _PIPE_COLUMNS
    with console.capture() as captured:
        if title is not None:
            console.print(Text(printable(title), style="bold"))
        console.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_facts(facts: Mapping[str, str]) -> None:
    """Print named values, one per line."""
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name + ':':<{width + 1}} {printable(value)}")


def printable(text: str) -> str:
    """Return text without anything that would move a cursor or change a colour."""
    return "".join(character if character.isprintable() else " " for character in text)


def state_text(state: str | None) -> str:
    """Return a state without its prefix: ``COMPLETED``."""
    return (state or "").removeprefix("STATE_") or _NOTHING


def parse_time(text: str | None) -> datetime | None:
    """Return a time of the REST API, which has any number of digits after the second."""
    match = re.fullmatch(r"(.*?)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)?", (text or "").strip())
    if match is None or not match[1]:
        return None
    try:
        moment = datetime.fromisoformat(match[1] + (match[3] or "Z").replace("Z", "+00:00"))
    except ValueError:
        return None
    return moment + timedelta(microseconds=int((match[2] or "0").ljust(6, "0")[:6]))


def time_text(text: str | None) -> str:
    """Return a time of the REST API in this place's time."""
    moment = parse_time(text)
    return _NOTHING if moment is None else f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def duration_text(start: str | None, end: str | None) -> str:
    """Return how long it took from `start`, until now if there is no `end`: ``1h 02m``."""
    first, last = parse_time(start), parse_time(end) or datetime.now(timezone.utc)
    if first is None:
        return _NOTHING
    seconds = max(0, round((last - first).total_seconds()))
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {seconds:02}s" if minutes else f"{seconds}s"


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
    """Return a fraction as a whole percentage, never rounded up to done."""
    return _NOTHING if fraction is None else f"{math.floor(fraction * 100 + 1e-9)}%"


def number_text(value: Any) -> str:
    """Return a number with four significant digits, integers whole, anything else as it is."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value if isinstance(value, str) else json.dumps(value)
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return str(int(value))
    return f"{value:.4g}"


def metric_text(value: Any) -> str:
    """Return a metric; unlike a count it keeps its decimals: ``1.0``."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e6:
        return f"{value:.1f}"
    return number_text(value)


def hparams_text(hparams: Mapping[str, Any]) -> str:
    """Return hyperparameters on one line: ``learning_rate=0.01  optimizer.name=adam``."""
    return "  ".join(f"{name}={number_text(value)}" for name, value in _flat(hparams)) or _NOTHING


def _flat(hparams: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in hparams.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
