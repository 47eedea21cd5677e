"""Keras's TensorBoard callback, which writes to the trial's directory of events."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Any

import keras

from det_keras.core import Context
from det_keras.errors import DetError
from det_keras.keras.callbacks.callback import Callback
from det_keras.keras.callbacks.old_arguments import current_arguments
from det_keras.keras.current import opened

logger = logging.getLogger(__name__)


class TensorBoard(keras.callbacks.TensorBoard, Callback):  # type: ignore[misc]
    """Keras's `TensorBoard`, whose events are kept beside the trial's checkpoints.

    Its arguments are Keras's; `log_dir` has no effect, the trial's own directory is used.

    Raises:
        DetError: the package tensorboard is not installed.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _need_tensorboard()
        if args or "log_dir" in kwargs:
            logger.info("`log_dir` has no effect: TensorBoard's events are kept with the trial.")
        kwargs.pop("log_dir", None)
        super().__init__(*(("", *args[1:]) if args else ()), **current_arguments("TensorBoard", kwargs))

    def set_model(self, model: Any) -> None:
        """Set the directory of the context that trains, which is known only when training begins."""
        context = opened()
        if context is not None:
            self.log_dir = str(context.core.train.get_tensorboard_path())
        super().set_model(model)

    def get_state(self) -> dict[str, Any]:
        """Return the counters of batches."""
        names = ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations")
        return {name: getattr(self, name) for name in names if hasattr(self, name)}

    def load_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned."""
        for name, value in state.items():
            setattr(self, name, value)


class TFKerasTensorBoard(TensorBoard):
    """The older name of `det.keras.callbacks.TensorBoard`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        warnings.warn(
            "det.keras.TFKerasTensorBoard is an old name of det.keras.callbacks.TensorBoard.",
            FutureWarning,
            stacklevel=2,
        )
        super().__init__(*args, **kwargs)


class CoreTensorBoard(keras.callbacks.TensorBoard):  # type: ignore[misc]
    """Keras's `TensorBoard` for the user's own `model.fit`, which writes to a core context's directory of events.

    Args:
        core_context: the context that `det.core.init()` returned.
        args: as Keras's; the core context's own directory replaces `log_dir`, in a trial and in a local run.
        kwargs: as Keras's.

    Raises:
        DetError: the package tensorboard is not installed.
    """

    def __init__(self, core_context: Context, *args: Any, **kwargs: Any) -> None:
        _need_tensorboard()
        directory: Path = core_context.train.get_tensorboard_path()
        kwargs.pop("log_dir", None)
        super().__init__(str(directory), *args[1:], **current_arguments("TensorBoard", kwargs))


def _need_tensorboard() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise DetError(
            "Keras's TensorBoard callback needs the package tensorboard: `pip install 'det_keras[tensorboard]'`."
        )
