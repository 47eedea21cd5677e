"""The callback list that hides how `fit` cuts a training into segments.

Keras calls it for each `model.fit`; the user's callbacks see one training with true epoch and batch
numbers, whether it was interrupted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import keras

__all__ = ["SeamlessCallbackList", "SegmentListener", "overrides"]


class SegmentListener(Protocol):
    """Who is told what Keras does inside a segment."""

    def epoch_begins(self, epoch: int) -> bool:
        """Prepare an epoch or the rest of one; return whether the user's callbacks shall know."""

    def epoch_begun(self) -> None:
        """The user's callbacks know; the first batch comes next."""

    def batch_ended(self, step: int, logs: Any) -> None:
        """The batch before `step` of the segment's epoch, counted from the segment's first, is trained."""

    def epoch_ended(self, epoch: int, logs: dict[str, Any]) -> None:
        """Keras has come to the end of its epoch."""


def overrides(callback: Any, *names: str) -> bool:
    """Tell whether a callback has a hook of its own: of its class, or set on the object as LambdaCallback does."""
    base = keras.callbacks.Callback
    return any(
        name in vars(callback) or getattr(type(callback), name) is not getattr(base, name) for name in names
    )


class SeamlessCallbackList(keras.callbacks.CallbackList):  # type: ignore[misc]
    """Passes Keras's events on to the user's callbacks, without the seams between segments.

    Args:
        callbacks: the user's, then the history.
        model: the model that is trained.
        verbose: 0, 1 or 2; a progress bar is added unless it is 0.
        epochs: how many the training will have, for the progress bar.
        steps: batches per epoch, None if unknown.
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
        # Keras calls nothing before the first segment begins.
        self._listener: SegmentListener
        self._first_step = 0
        self._begun = False
        # Two hooks per batch that nobody listens to are most of what Keras itself spends between two steps.
        silent = [self._progbar] if self._progbar is not None and verbose != 1 and steps else []
        listening = [one for one in self.callbacks if one not in silent]
        self._hears_batch_begin = any(
            overrides(one, "on_train_batch_begin", "on_batch_begin") for one in listening
        )
        self._hears_batch_end = any(overrides(one, "on_train_batch_end", "on_batch_end") for one in listening)

    def begin_segment(self, first_step: int, listener: SegmentListener) -> None:
        """Say which batch of its epoch Keras's batch 0 is, and who listens."""
        self._first_step = first_step
        self._listener = listener

    def on_train_begin(self, logs: Any = None) -> None:
        """Tell the user's callbacks, once for the whole training."""
        if not self._begun:
            self._begun = True
            super().on_train_begin(logs)

    def on_train_end(self, logs: Any = None) -> None:
        """A segment ended; see `finish`."""

    def finish(self, logs: Any = None) -> None:
        """Tell the user's callbacks that the whole training ended."""
        super().on_train_end(logs)

    def flush(self) -> None:
        """Wait for callbacks that run behind."""
        self._flush_futures()

    def abandon(self) -> None:
        """Wait for callbacks that run behind and free their threads, without an end of training."""
        self.flush()
        if self._executor is not None:
            self._executor.shutdown()
            self._executor = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Tell the user's callbacks, unless the epoch only goes on."""
        if self._listener.epoch_begins(epoch):
            super().on_epoch_begin(epoch, logs)
        self._listener.epoch_begun()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Tell the user's callbacks with the batch's true number."""
        if self._hears_batch_begin:
            super().on_train_batch_begin(batch + self._first_step, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Tell the user's callbacks with the batch's true number, then the segment's listener."""
        if self._hears_batch_end:
            super().on_train_batch_end(batch + self._first_step, logs)
        self._listener.batch_ended(batch + 1, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Tell the listener, which ends the epoch for the user's callbacks when it is a true end."""
        self._flush_futures()
        self._listener.epoch_ended(epoch, dict(logs or {}))

    def end_epoch(self, epoch: int, logs: dict[str, Any]) -> None:
        """Tell the user's callbacks that an epoch ended."""
        super().on_epoch_end(epoch, logs)
