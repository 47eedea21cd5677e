"""The modules that import TensorFlow and Keras: the script API and the training engine."""

from __future__ import annotations

import importlib.util as _util
import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from det_keras.errors import DetError as _DetError
from det_keras.errors import TensorFlowMissingError as _TensorFlowMissingError

# Keras treats an empty variable as unset, and then uses the backend of its keras.json.
_backend, _where = _os.environ.get("KERAS_BACKEND") or "tensorflow", "KERAS_BACKEND"
if "keras" in _sys.modules:
    _backend, _where = _sys.modules["keras"].config.backend(), "Keras's backend"
if _backend != "tensorflow":
    # Check before Keras is imported: the import fails if the other backend is not installed.
    raise _DetError(
        f"det_keras trains with Keras on TensorFlow, but {_where} is {_backend!r}. "
        'Set KERAS_BACKEND=tensorflow before Keras is imported, or `"backend": "tensorflow"` in keras.json.'
    )
_os.environ["KERAS_BACKEND"] = "tensorflow"


def _has_tensorflow() -> bool:
    try:
        spec = _util.find_spec("tensorflow")
    except ValueError:
        # Loaded, but by no finder.
        return True
    # A directory without code, such as an uninstalled package leaves behind, has no origin.
    return spec is not None and spec.origin is not None


if not _has_tensorflow():
    raise _TensorFlowMissingError(
        "det_keras.keras needs TensorFlow, and none is installed here: "
        "`pip install 'det_keras[tensorflow]'`, or `pip install tensorflow-cpu` for a smaller one without GPUs."
    )

from det_keras.core.script_end import HINTS as _HINTS  # noqa: E402 - the check comes first
from det_keras.keras import callbacks  # noqa: E402
from det_keras.keras.callbacks.tensorboard import CoreTensorBoard as TensorBoard  # noqa: E402
from det_keras.keras.callbacks.tensorboard import TFKerasTensorBoard  # noqa: E402
from det_keras.keras.checkpoint.load import load_model_from_checkpoint_path  # noqa: E402
from det_keras.keras.context import KerasContext  # noqa: E402
from det_keras.keras.generations.determined_callback import DeterminedCallback  # noqa: E402
from det_keras.keras.generations.sequences import InMemorySequence, SequenceAdapter  # noqa: E402
from det_keras.keras.generations.trial_context import TFKerasExperimentalContext, TFKerasTrialContext  # noqa: E402
from det_keras.keras.hints import hint_for as _hint_for  # noqa: E402
from det_keras.keras.history import FitHistory  # noqa: E402
from det_keras.keras.init import init  # noqa: E402

if _TYPE_CHECKING:
    from det_keras.keras.generations.trial import TFKerasTrial

_HINTS.append(_hint_for)

__all__ = [
    "ArrayLike",
    "DeterminedCallback",
    "FitHistory",
    "InMemorySequence",
    "InputData",
    "KerasContext",
    "SequenceAdapter",
    "TFKerasExperimentalContext",
    "TFKerasTensorBoard",
    "TFKerasTrial",
    "TFKerasTrialContext",
    "TensorBoard",
    "callbacks",
    "init",
    "load_model_from_checkpoint_path",
]

# Types that older scripts annotate with.
ArrayLike = _Any
InputData = _Any


def __getattr__(name: str) -> _Any:
    # Not imported above: `python -m det_keras.keras.generations.trial` runs that module, and Python warns if it is
    # loaded already.
    if name == "TFKerasTrial":
        from det_keras.keras.generations.trial import TFKerasTrial

        return TFKerasTrial
    raise AttributeError(f"module 'det_keras.keras' has no attribute {name!r}")
