"""The callback list that hides the segments of a training from the user's callbacks.

Keras calls it in each `model.fit`. The user's callbacks see one training with the real epoch and batch
numbers, even if the training was interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import keras

from det_keras.keras.private_api.models import progress_bar_of, stop_threads, wait_for_threads


class SegmentListener(Protocol):
    """Receives the events of Keras inside a segment."""

    def epoch_begins(self, epoch: int) -> bool:
        """Prepare an epoch or the rest of one, and return whether to notify the user's callbacks."""

    def epoch_begun(self) -> None:
        """Act after the user's callbacks were notified and before the first batch."""

    def batch_trained(self, step: int) -> None:
        """Note a batch before the user's callbacks are notified of it.

        Args:
            step: number of batches of this epoch that the segment has trained so far.
        """

    def batch_ended(self, step: int, logs: Any) -> None:
        """Act after a batch.

        Args:
            step: number of batches of this epoch that the segment has trained so far.
            logs: Keras's running training metrics.
        """

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """Act after Keras ended its epoch."""


def overrides(callback: Any, *names: str) -> bool:
    """Return whether a callback overrides any of the hooks `names`, in its class or on the instance.

    LambdaCallback sets its hooks on the instance.
    """
    base = keras.callbacks.Callback
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(base, name) for name in names
    )


class SeamlessCallbackList(keras.callbacks.CallbackList):  # type: ignore[misc]
    """Passes Keras's events to the user's callbacks as if the segments were one `model.fit`.

    Args:
        callbacks: the user's callbacks, then the history and the live view of a notebook.
        model: the model that is trained.
        verbose: 0, 1 or 2; a progress bar is added unless it is 0.
        epochs: number of epochs of the training, for the progress bar.
        steps: batches per epoch, None if unknown.

    Attributes:
        before_first_batch: called once, between the user's ``on_train_batch_begin`` of the first batch and its step.
    """

    def __init__(
        self,
        callbacks: Sequence[Any],
        *,
        model: Any,
        verbose: int,
        epochs: int,
        steps: int | None,
    ) -> None:
        self._executor: Any = None
        super().__init__(
            list(callbacks),
            add_history=False,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=steps,
        )
        # Set by `begin_segment`. Keras calls no hook that uses it before the first segment begins.
        self._listener: SegmentListener
        self._first_step = 0
        self._begun = False
        self.before_first_batch: Callable[[], None] | None = None
        # Calling two hooks per batch is most of the time that Keras itself spends between two steps, so they are
        # skipped if no callback overrides them.
        bar = progress_bar_of(self)
        silent = [bar] if bar is not None and verbose != 1 and steps else []
        listening = [callback for callback in self.callbacks if callback not in silent]
        self._needs_batch_begin = any(
            overrides(callback, "on_train_batch_begin", "on_batch_begin") for callback in listening
        )
        self._needs_batch_end = any(
            overrides(callback, "on_train_batch_end", "on_batch_end") for callback in listening
        )

    def begin_segment(self, first_step: int, listener: SegmentListener) -> None:
        """Set the number, in its epoch, of the batch that Keras calls batch 0, and the listener of the segment."""
        self._first_step = first_step
        self._listener = listener

    def on_train_begin(self, logs: Any = None) -> None:
        """Notify the user's callbacks, once for the whole training."""
        if not self._begun:
            self._begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Do nothing: Keras calls it at the end of each segment; see `finish`."""

    def finish(self, logs: Any = None) -> None:
        """Notify the user's callbacks that the whole training ended."""
        super().on_train_end(logs)

    def flush(self) -> None:
        """Wait for callbacks that Keras runs in threads."""
        wait_for_threads(self)

    def abandon(self) -> None:
        """Wait for callbacks that Keras runs in threads and stop the threads, without calling ``on_train_end``."""
        self.flush()
        stop_threads(self)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notify the user's callbacks, unless the segment continues an epoch that they know of."""
        if self._listener.epoch_begins(epoch):
            super().on_epoch_begin(epoch, logs)
        self._listener.epoch_begun()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notify the user's callbacks with the batch's number in its epoch."""
        if self._needs_batch_begin:
            super().on_train_batch_begin(batch + self._first_step, logs)
        if self.before_first_batch is not None:
            act, self.before_first_batch = self.before_first_batch, None
            act()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notify the user's callbacks with the batch's number in its epoch, then the segment's listener."""
        if self._needs_batch_end:
            self._listener.batch_trained(batch + 1)
            super().on_train_batch_end(batch + self._first_step, logs)
        self._listener.batch_ended(batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notify the listener, which calls `end_epoch` if the epoch is complete."""
        wait_for_threads(self)
        self._listener.epoch_ended(epoch, dict(logs or {}))

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """Notify the user's callbacks that an epoch ended."""
        super().on_epoch_end(epoch, logs)
