"""A record of provenance as the pages show it. Clients send any values: what has another type is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from det_keras.master.web.differences import MOST_LINES, marked_lines

_FACTS = {
    "command": "Command",
    "host": "Host",
    "user": "User",
    "directory": "Directory",
    "system": "System",
    "python": "Python",
    "version": "det_keras",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
}
_OF_REPOSITORY = {"commit": "Commit", "branch": "Branch", "remote": "Remote", "root": "Repository"}


@dataclass(frozen=True)
class Shown:
    """A record to show.

    Attributes:
        facts: names and values.
        time: when it was made, as ISO 8601.
        packages: ``name==version`` of each package.
        diff: lines of the diff with their kinds, as `marked_lines` returns them.
        is_cut: whether the diff has more lines.
        untracked: names of new files.
        withheld: names of changed files whose changes are not stored.
    """

    facts: list[tuple[str, str]]
    time: str | None
    packages: list[str]
    diff: list[tuple[str, str]]
    is_cut: bool
    untracked: list[str]
    withheld: list[str]


def shown_record(record: Mapping[str, Any] | None) -> Shown | None:
    """Return what to show of a record; None if there is none."""
    if not record:
        return None
    repository = record.get("repository")
    if not isinstance(repository, Mapping):
        repository = {}
    facts = [(title, record[key]) for key, title in _FACTS.items() if isinstance(record.get(key), str)]
    facts += [("GPUs", ", ".join(gpus))] if (gpus := _names(record.get("gpus"))) else []
    facts += [
        (title, repository[key])
        for key, title in _OF_REPOSITORY.items()
        if isinstance(repository.get(key), str)
    ]
    if isinstance(repository.get("isDirty"), bool):
        facts.append(("Work tree", "with changes" if repository["isDirty"] else "as committed"))
    diff = repository.get("diff")
    lines = marked_lines(diff) if isinstance(diff, str) else []
    return Shown(
        facts=facts,
        time=record["time"] if isinstance(record.get("time"), str) else None,
        packages=packages_of(record),
        diff=lines[:MOST_LINES],
        is_cut=len(lines) > MOST_LINES or repository.get("isCut") is True,
        untracked=_names(repository.get("untracked")),
        withheld=_names(repository.get("withheld")),
    )


def packages_of(record: Mapping[str, Any] | None) -> list[str]:
    """Return the packages of a record, ``name==version`` each; empty if they are unknown."""
    return _names((record or {}).get("packages"))


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
