"""The two tiers of the tests: `fast`, which runs with each change, and the rest.

A test is fast if it runs in the process of the tests alone, that is, starts no process, browser or server, and takes
at most a second. Besides, each promise has pilots: a few tests, mostly with real processes, that show that it
holds at all. ``docs/promises.md`` names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["COLLECTED", "PAGE", "PROCESS_MARKERS", "Row", "is_fast", "pilots", "rows"]

PAGE = Path(__file__).resolve().parents[1] / "docs" / "promises.md"

#: Where a run stores the names of all tests that it collected, those of both tiers.
COLLECTED = pytest.StashKey[frozenset[str]]()

#: What says that a test needs more than its own process: markers, fixtures, and parameters.
PROCESS_MARKERS = frozenset({"browser", "kill", "packaging", "process", "stock"})
_SERVERS = ("bucket", "machines", "on_two_hosts", "postgresql")
_STORES = ("azure", "gcs", "s3")
_CODE = re.compile(r"`(tests/[^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of the table of promises.

    Attributes:
        promise: as the README begins it.
        subject: what the tests of this row are about.
        pilots: names of fast tests.
        full: files or folders with the other tests.
    """

    promise: str
    subject: str
    pilots: tuple[str, ...]
    full: tuple[str, ...]


def rows() -> Iterator[Row]:
    """Yield the rows of the table in ``docs/promises.md``."""
    table = PAGE.read_text(encoding="utf-8").split("| Promise |")[1].split("\n\n")[0]
    for line in table.splitlines()[2:]:
        promise, subject, pilot_cell, full_cell = (cell.strip() for cell in line.strip("|").split(" | "))
        yield Row(promise, subject, tuple(_CODE.findall(pilot_cell)), tuple(_CODE.findall(full_cell)))


def pilots() -> frozenset[str]:
    """Return the names of all pilots."""
    return frozenset(name for row in rows() for name in row.pilots)


def is_fast(item: pytest.Item, pilot_names: frozenset[str], slow: frozenset[str]) -> bool:
    """Return whether a test belongs to the fast tier.

    Args:
        item: the test; its name begins with the path from the root of the repository.
        pilot_names: as from `pilots`.
        slow: names of tests that take too long.
    """
    name = item.nodeid
    if name in pilot_names:
        return True
    if name in slow or any(item.get_closest_marker(marker) for marker in PROCESS_MARKERS):
        return False
    callspec = getattr(item, "callspec", None)
    values = (
        [] if callspec is None else [value for value in callspec.params.values() if isinstance(value, str)]
    )
    return not set(getattr(item, "fixturenames", ())) & set(_SERVERS) and not set(values) & set(_STORES)
