"""Names of Determined's SDK that det_keras does not have: importing them does no harm, using them says what to do."""

from __future__ import annotations

from typing import Any

from det_keras.errors import DetError


class Absent:
    """Stands for a name that is imported by scripts which may never use it.

    Args:
        name: the whole name, such as ``determined.experimental.Model``.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise self._error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()

    def __or__(self, other: Any) -> Any:
        # In an annotation.
        return Any

    __ror__ = __or__

    def __instancecheck__(self, instance: Any) -> bool:
        raise self._error()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        raise self._error()

    def __repr__(self) -> str:
        return f"<{self._name}, which det_keras does not have>"

    def _error(self) -> DetError:
        return DetError(
            f"det_keras has no `{self._name}`. Install the original `determined` into an environment of its own and "
            "point it at the master: `det deploy local credentials` prints how."
        )
