"""The context that is open in this process, for objects that a script creates without passing a context."""

from __future__ import annotations

from det_keras.core import Context

__all__ = ["current_core", "set_current"]

_current: Context | None = None


def set_current(core: Context | None) -> None:
    """Record the core of the context that `det.keras.init()` opened; None once it is closed."""
    global _current
    _current = core


def current_core() -> Context | None:
    """Return the core of the open context, None without one."""
    return _current
