"""A config on its way into today's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from det_keras.errors import ConfigProblem

__all__ = ["Folding", "as_int", "section_of"]


@dataclass
class Folding:
    """What folding has made of a config so far.

    Attributes:
        config: the config, a copy that is changed in place.
        notices: what the user should know about the changes.
        problems: what could not be folded.
    """

    config: dict[str, Any]
    notices: list[str] = field(default_factory=list)
    problems: list[ConfigProblem] = field(default_factory=list)

    def refuse(self, path: str, message: str) -> None:
        """Note that what stands at `path` is wrong."""
        self.problems.append(ConfigProblem(path, message))


def section_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section `name`, to be changed in place; an unconnected empty one if it is no mapping."""
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def as_int(value: Any) -> int | None:
    """Return `value` if it is a whole number, also one written as a float; else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
