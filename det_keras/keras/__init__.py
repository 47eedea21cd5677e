"""Everything that imports TensorFlow and Keras: the script API and the engine behind it."""

from __future__ import annotations

import os as _os

from det_keras.errors import DetError as _DetError

_backend = _os.environ.get("KERAS_BACKEND", "tensorflow")
if _backend != "tensorflow":
    # Before Keras is imported: it would fail first, where the other backend is not installed.
    raise _DetError(
        f"det_keras trains with Keras on TensorFlow, but KERAS_BACKEND is {_backend!r}. "
        "Unset it, or set KERAS_BACKEND=tensorflow."
    )

from det_keras.keras.context import KerasContext  # noqa: E402 - the check comes first
from det_keras.keras.history import FitHistory  # noqa: E402
from det_keras.keras.opening import init  # noqa: E402

__all__ = ["FitHistory", "KerasContext", "init"]
