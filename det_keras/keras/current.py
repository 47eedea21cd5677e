"""The context that is open in this process; one can be open at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from det_keras.core import Context


@dataclass(frozen=True)
class Opened:
    """An open context.

    Attributes:
        core: its framework-free context, for objects that a script creates without passing a context.
        context: the `KerasContext`.
        arguments: those of `init`, in a form in which they can be compared.
    """

    core: Context
    context: Any
    arguments: tuple[Any, ...]


_opened: Opened | None = None


def set_opened(found: Opened | None) -> None:
    """Record the context that `det.keras.init()` opened; None once it is closed."""
    global _opened
    _opened = found


def opened() -> Opened | None:
    """Return the open context; None without one."""
    return _opened
