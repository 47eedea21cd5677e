"""The packages that a config asks for, compared with what is submitted, and where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.config import Environment

_FIELDS = ("python", "pip", "requirements")


def check_requirements(environment: Environment, entries: Iterable[Mapping[str, Any]]) -> None:
    """Check that the requirements file is among the files that are sent.

    Args:
        environment: of the config.
        entries: the files of the context directory, as sent.

    Raises:
        DetError: it is not.
    """
    name = environment.requirements
    if name is not None and name not in {entry["path"] for entry in entries}:
        raise DetError(
            f"`environment.requirements` is {name!r}, which is not among the files of the context directory. Add the "
            "file, or remove it from .detignore."
        )


def notice_without_effect(environment: Environment, where: str) -> list[str]:
    """Return a notice if a config asks for packages, which have no effect.

    Args:
        environment: of the config.
        where: where they have none, and what to do.
    """
    given = [f"`environment.{name}`" for name in _FIELDS if getattr(environment, name)]
    if not given:
        return []
    verb = "has" if len(given) == 1 else "have"
    return [f"{', '.join(given)} {verb} no effect {where}."]
