"""Names in the model registry: of models, of aliases, and references such as ``digits@champion``."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: Most characters of the name of a model, a label or an alias.
LONGEST_NAME = 255
#: Most labels of a model or version.
MOST_LABELS = 100
#: The alias that the newest version always has.
NEWEST = "latest"
# What separates a name from the rest of a reference or of an address.
_NOT_IN_NAMES = "/\\@:"
_ALIAS = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_LIKE_A_VERSION = re.compile(r"v\d+")


@dataclass(frozen=True)
class ModelReference:
    """Which version of which model is meant.

    Attributes:
        name: name of the model.
        version: number of the version; None for that of the alias.
        alias: alias of the version; ``latest`` is the newest one.
    """

    name: str
    version: int | None = None
    alias: str = NEWEST

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Return what ``digits``, ``digits:3`` or ``digits@champion`` means.

        Raises:
            ValueError: it is none of the three.
        """
        # A text with both marks has one of them in the rest, which is then refused.
        name, mark, rest = text.partition(":" if ":" in text else "@")
        is_number = rest.isascii() and rest.isdigit()
        if (
            name_problem(name)
            or (mark == ":" and not is_number)
            or (mark == "@" and not _ALIAS.fullmatch(rest))
        ):
            raise ValueError(
                "A model is named like 'digits' (its newest version), 'digits:3' or 'digits@champion', received "
                f"{text!r}."
            )
        return cls(name, version=int(rest)) if mark == ":" else cls(name, alias=rest or NEWEST)


def name_problem(name: str) -> str:
    """Return what is wrong with the name of a model; empty if nothing is."""
    if not name.strip() or len(name) > LONGEST_NAME or not name.isprintable():
        return f"The name of a model must have 1 to {LONGEST_NAME} characters that are printed, received {name!r}."
    if name != name.strip() or "  " in name:
        return f"The name of a model may have single spaces between its words only, received {name!r}."
    if name.isdigit():
        return f"The name of a model may not be a number, which is another model's own, received {name!r}."
    if any(mark in name for mark in _NOT_IN_NAMES):
        return f"The name of a model may have none of {' '.join(_NOT_IN_NAMES)}, received {name!r}."
    return ""


def alias_problem(alias: str) -> str:
    """Return what is wrong with an alias; empty if nothing is."""
    if alias == NEWEST:
        return f"The newest version always has the alias {NEWEST!r}: it can be neither given nor removed."
    if not _ALIAS.fullmatch(alias) or len(alias) > LONGEST_NAME or _LIKE_A_VERSION.fullmatch(alias):
        return (
            f"An alias must have 1 to {LONGEST_NAME} letters, digits and characters of _ . - and begin with a letter, "
            f"and may not look like a version, such as v3. Received {alias!r}."
        )
    return ""
