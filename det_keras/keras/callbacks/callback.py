"""`det.keras.callbacks.Callback`: a Keras callback with more hooks and a state that outlives pauses."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["Callback", "hooks"]


class Callback(keras.callbacks.Callback):  # type: ignore[misc]
    """A Keras callback that also hears of workloads and checkpoints, and whose state goes into checkpoints.

    A *workload* is a stretch of training of at most ``scheduling_unit`` batches; validations end one as well. The
    hooks of Keras are called as in any `model.fit`, with true epoch and batch numbers, also after a resume. What begins
    is told again after a resume inside of it: ``on_train_begin``, ``on_train_workload_begin``, ``on_epoch_begin``, with
    the same arguments; then the state is put back. What ends is told once.
    """

    def on_train_workload_begin(
        self, total_batches_trained: int, batches_requested: int | None, logs: dict[str, Any]
    ) -> None:
        """A workload begins.

        Args:
            total_batches_trained: batches trained before it, over the whole trial.
            batches_requested: how many it will have; fewer come if the data or the training ends.
            logs: empty.
        """

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        """A workload ended.

        Args:
            total_batches_trained: batches trained so far, over the whole trial.
            logs: Keras's running training metrics of the epoch, floats by name.
        """

    def on_checkpoint_end(self, checkpoint_dir: str) -> None:
        """A checkpoint is being made; on the chief, on the training thread.

        Args:
            checkpoint_dir: an empty directory; files put there come into the checkpoint.
        """

    def get_state(self) -> Any:
        """Return what describes the state of this callback; anything that can be pickled."""
        return None

    def load_state(self, state: Any) -> None:
        """Put back what `get_state` returned; called after ``on_train_begin``, which may reset."""


def hooks(callbacks: Any, name: str) -> list[Any]:
    """Return the bound hooks `name` of those callbacks that have one of their own."""
    found = []
    for callback in callbacks:
        hook = getattr(callback, name, None)
        if callable(hook) and getattr(type(callback), name, None) is not getattr(Callback, name):
            found.append(hook)
    return found
