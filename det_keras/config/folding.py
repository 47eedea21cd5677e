"""The state of a config during its conversion to the current spelling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from det_keras.errors import ConfigProblem


@dataclass
class Folding:
    """A config during its conversion, called folding.

    Attributes:
        config: the config, a copy that is changed in place.
        notices: notices for the user about the changes.
        problems: values that could not be converted.
    """

    config: dict[str, Any]
    notices: list[str] = field(default_factory=list)
    problems: list[ConfigProblem] = field(default_factory=list)

    def refuse(self, path: str, message: str) -> None:
        """Record that the value at `path` is wrong."""
        self.problems.append(ConfigProblem(path, message))


def section_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section `name`, to be changed in place; a new empty dict if it is not a mapping."""
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def as_int(value: Any) -> int | None:
    """Return `value` as int if it is an integer, or a float without a fraction; else None."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
