"""What a task asks of its Python environment, as the master passes it to the supervisor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class BuildError(Exception):
    """The environment of a task cannot be provided.

    Args:
        message: what happened and what to do, for the user.
        is_transient: whether another attempt may succeed, as after a failure of the network.
    """

    def __init__(self, message: str, *, is_transient: bool = False) -> None:
        super().__init__(message)
        self.is_transient = is_transient


@dataclass(frozen=True)
class EnvironmentRequest:
    """The fields of a config about the environment. Without any of them a task runs with the pool's own Python.

    Attributes:
        python: path of the interpreter on the task's machine; None for the first `python3` on the task's PATH.
        pip: requirements, each as in a line of a requirements file.
        requirements: name of a requirements file in the context directory.
    """

    python: str | None = None
    pip: tuple[str, ...] = ()
    requirements: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any] | None) -> EnvironmentRequest:
        """Return the request that `to_dict` returned; None asks for nothing."""
        values = values or {}
        return cls(values.get("python"), tuple(values.get("pip") or ()), values.get("requirements"))

    def to_dict(self) -> dict[str, Any]:
        """Return the request as plain JSON values."""
        return {"python": self.python, "pip": list(self.pip), "requirements": self.requirements}

    @property
    def needs_packages(self) -> bool:
        """Whether packages are asked for, so that uv is needed."""
        return bool(self.pip) or self.requirements is not None

    def __bool__(self) -> bool:
        """Return whether anything is asked for."""
        return self.needs_packages or self.python is not None
