"""`determined.keras`, provided by det_keras."""

from __future__ import annotations

from typing import Any

from determined.keras import callbacks


def __getattr__(name: str) -> Any:
    import det_keras.keras

    return getattr(det_keras.keras, name)


def __dir__() -> list[str]:
    import det_keras.keras

    return [*det_keras.keras.__all__]


__all__ = ["callbacks"]
