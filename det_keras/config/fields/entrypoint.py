"""The command of a task: a shell command, an argument list, or a trial class of the older API."""

from __future__ import annotations

import re
from typing import Any

from det_keras.config.kinds import Kind, ListOf, Place, Text, shown

Entrypoint = str | tuple[str, ...]

_TRIAL_CLASS = re.compile(r"[A-Za-z0-9_.]+:[A-Za-z0-9_.]+")


class _Argument(Kind[str]):
    """Text that can be an argument of a process."""

    def parse(self, raw: Any, place: Place) -> str:
        text = Text().parse(raw, place)
        if "\0" in text:
            raise place.error(f"must not contain a null character, received {shown(text)}.")
        return text


class EntrypointKind(Kind[Entrypoint]):
    """Text for the shell, or a list of arguments that is executed directly."""

    def parse(self, raw: Any, place: Place) -> Entrypoint:
        if isinstance(raw, (list, tuple)) and raw:
            return ListOf(_Argument()).parse(raw, place)
        if isinstance(raw, str) and raw.strip():
            return _Argument().parse(raw, place)
        raise place.error(
            f"must be a command such as `python3 train.py`, or a list of its words, received {shown(raw)}."
        )

    def dump(self, value: Entrypoint) -> Any:
        return value if isinstance(value, str) else list(value)


def trial_class(entrypoint: Entrypoint | None) -> str | None:
    """Return `entrypoint` if it has the form `module:Class`; else None."""
    if not isinstance(entrypoint, str) or not _TRIAL_CLASS.fullmatch(entrypoint):
        return None
    return entrypoint


def as_command(script: Any) -> Any:
    """Return `script` in a form that is never read as a trial class; values of a wrong type are not changed."""
    return ["sh", "-c", script] if trial_class(script) is not None else script


def command(entrypoint: Entrypoint | None) -> list[str]:
    """Return the arguments to execute; for a trial class, the program that runs it.

    Raises:
        ValueError: there is no entrypoint.
    """
    if entrypoint is None:
        raise ValueError("The config has no `entrypoint`, so there is nothing to execute.")
    class_name = trial_class(entrypoint)
    if class_name is not None:
        return ["python", "-m", "det_keras.keras.generations.trial", class_name]
    return ["sh", "-c", entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
