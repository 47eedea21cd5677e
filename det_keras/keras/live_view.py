"""The live view of a training in a notebook: the last metrics and a curve of each, in one output that is updated."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Any

import keras

from det_keras import notebook
from det_keras.keras.history import FitHistory

logger = logging.getLogger(__name__)

_PERIOD_S = 1.0
# A view takes at most this part of the time, however long it takes to draw.
_MOST_TIME = 0.005


def live_views(history: FitHistory, *, verbose: int) -> list[LiveView]:
    """Return the live view of a training in a notebook's kernel; none elsewhere and with `verbose=0`.

    Args:
        history: the history of the training.
        verbose: 1 to update the view also inside of epochs, 2 at ends of epochs only.
    """
    return [LiveView(history, inside_epochs=verbose == 1)] if verbose != 0 and _is_in_kernel() else []


class LiveView(keras.callbacks.Callback):  # type: ignore[misc]
    """Displays a training while it runs.

    Args:
        history: the history of the training; it must be notified of ends of epochs before this callback.
        inside_epochs: whether the view is updated also inside of epochs.
    """

    def __init__(self, history: FitHistory, *, inside_epochs: bool) -> None:
        super().__init__()
        self._history = history
        self._handle: Any = None
        self._next_s = 0.0
        self._epoch = 0
        if inside_epochs:
            # On the instance: a hook of the class would make Keras compute the metrics of each batch, which the
            # progress bar needs inside of epochs but not at their ends.
            self.on_train_batch_end = self._show_batch

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        """Create the output."""
        self._show("Training")

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the epoch, for updates inside of it."""
        self._epoch = epoch

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Update the output, unless that was done less than a second ago."""
        if time.monotonic() >= self._next_s:
            self._show(f"Epoch {epoch + 1}{_of(self.params.get('epochs'))}")

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        """Display the final state."""
        count = len(self._history.epoch)
        self._show(f"{count} epoch{'' if count == 1 else 's'}")

    def _show_batch(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        if time.monotonic() < self._next_s:
            return
        steps = self.params.get("steps")
        where = f"Epoch {self._epoch + 1}{_of(self.params.get('epochs'))}, batch {batch + 1}{_of(steps)}"
        place = self._epoch + (batch + 1) / steps if steps else None
        self._show(where, logs, place)

    def _show(self, title: str, running: Mapping[str, Any] | None = None, place: float | None = None) -> None:
        started_s = time.monotonic()
        html = notebook.live_card(title, self._history.columns(), running or {}, place)
        try:
            self._display(html)
        except Exception:
            # The display is the notebook's: whatever it raises, training continues.
            logger.warning(
                "The live view of the training ends, because it cannot be displayed.", exc_info=True
            )
            self._next_s = float("inf")
            return
        ended_s = time.monotonic()
        self._next_s = ended_s + max(_PERIOD_S, (ended_s - started_s) / _MOST_TIME)

    def _display(self, html: str) -> None:
        # Imported here: it is only present in a notebook.
        from IPython.display import HTML, display

        if self._handle is None:
            self._handle = display(HTML(html), display_id=True)
        else:
            self._handle.update(HTML(html))


def _is_in_kernel() -> bool:
    """Return whether this process is the kernel of a notebook, without importing IPython."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return get_ipython is not None and getattr(get_ipython(), "kernel", None) is not None


def _of(total: int | None) -> str:
    return f" of {total}" if total else ""
