"""The contexts that are open in this process, for parts that a script makes without passing one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from det_keras.core import Context

if TYPE_CHECKING:
    from det_keras.keras.context import KerasContext

__all__ = ["current_core", "set_current"]

_current: KerasContext | None = None


def set_current(context: KerasContext | None) -> None:
    """Note which context `det.keras.init()` opened, or that it is closed."""
    global _current
    _current = context


def current_core() -> Context | None:
    """Return the core of the open context, None without one."""
    return None if _current is None else _current.core
