"""`det.keras.callbacks.Callback`: a Keras callback with additional hooks and a state that checkpoints store."""

from __future__ import annotations

from typing import Any

import keras


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback with hooks for workloads and checkpoints, whose state is stored in checkpoints.

    A *workload* is a part of the training of at most ``scheduling_unit`` batches; a validation ends it as well. The
    hooks of Keras are called as in any `model.fit`, with the real epoch and batch numbers, also after a resume. After
    a resume the hooks ``on_train_begin``, ``on_train_workload_begin`` and ``on_epoch_begin`` are called again with the
    same arguments if training, workload or epoch had begun before; then the state is restored. Hooks for ends are
    called once.
    """

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int | None, logs: dict[str, Any]
    ) -> None:
        """Act before a workload.

        Args:
            total_batches_trained: batches trained before it, over the whole trial.
            batches_requested: number of batches of the workload; it has fewer if the data or the training ends.
            logs: empty.
        """

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        """Act after a workload.

        Args:
            total_batches_trained: batches trained so far, over the whole trial.
            logs: Keras's running training metrics of the epoch, floats by name.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """Act while a checkpoint is captured; called on the chief, on the training thread.

        Args:
            checkpoint_dir: an empty directory; files that are written to it become part of the checkpoint.
        """

    def get_state(self) -> Any:
        """Return the state of this callback; any object that can be pickled."""
        return None

    def load_state(self, state: Any) -> None:
        """Restore the state that `get_state` returned; called after ``on_train_begin``, which may reset the state."""


def hooks(callbacks: Any, name: str) -> list[Any]:
    """Return the bound hooks `name` of the callbacks that define or override it."""
    found = []
    for callback in callbacks:
        hook = getattr(callback, name, None)
        if callable(hook) and getattr(type(callback), name, None) is not getattr(Callback, name):
            found.append(hook)
    return found
