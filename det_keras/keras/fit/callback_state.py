"""The state of the user's callbacks: captured with a checkpoint, restored on a resume.

The state of Keras's own stateful callbacks is a few attributes, which ``on_train_begin`` resets. A callback that has
``get_state()`` and ``load_state(state)`` defines its own state. Of other callbacks the plain attributes that change
are stored (see `PlainState`).
"""

from __future__ import annotations

import csv
import dis
import functools
import inspect
import io
import logging
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from det_keras.files import write_file
from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.checkpoint.attributes import PlainState
from det_keras.keras.fit.callback_list import overrides
from det_keras.keras.training.parts import Part, Saved

logger = logging.getLogger(__name__)

_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    keras.callbacks.EarlyStopping: ("wait", "best", "best_weights", "best_epoch", "stopped_epoch"),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "epochs_since_last_save",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "_current_epoch",
    ),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch", "_previous_epoch_iterations"),
}

# Attributes that Keras itself sets on a callback.
_NAMES_OF_KERAS = ("_model", "params", "validation_data")
_PLAIN = "plain attributes"

_HARMLESS_AT_END = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TensorBoard,
)


class CallbackStates(Part):
    """The states of the user's callbacks in one `fit`, and the files that they add to a checkpoint.

    Args:
        callbacks: the user's callbacks.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._has_begun = False
        self._listeners = hooks(callbacks, "on_checkpoint_end")
        self._callbacks = {
            f"{index}-{type(callback).__name__}": callback for index, callback in enumerate(callbacks)
        }
        self._plain = {
            name: PlainState(callback, without=_names_of_keras(callback))
            for name, callback in self._callbacks.items()
            if type(callback) not in _ATTRIBUTES and not hooks([callback], "get_state")
        }

    def begin(self) -> None:
        """Record the attributes after ``on_train_begin``: those that differ later are state."""
        self._has_begun = True
        for plain in self._plain.values():
            plain.begin()

    def pickles(self) -> dict[str, Callable[[], bytes]]:
        """Return, by name, functions that pickle the state of each stateful callback.

        The functions may run later in another thread: values that may change until then are copied here.
        """
        states: dict[str, Callable[[], bytes]] = {}
        for name, callback in self._callbacks.items():
            if own := hooks([callback], "get_state"):
                content = pickle.dumps(own[0]())
                states[name] = functools.partial(bytes, content)
                continue
            # These callbacks replace their lists of weights and never change them in place, so no copy is needed.
            state = {attribute: getattr(callback, attribute) for attribute in _attributes(callback)}
            if name in self._plain:
                state[_PLAIN] = self._plain[name].dump()
            if state:
                states[name] = functools.partial(pickle.dumps, state)
        return states

    def files(self) -> tempfile.TemporaryDirectory[str] | None:
        """Return a directory with the files that callbacks add to this checkpoint, None if no callback has the hook."""
        if not self._listeners:
            return None
        folder = tempfile.TemporaryDirectory(prefix="det-callbacks-", ignore_cleanup_errors=True)
        for listener in self._listeners:
            listener(folder.name)
        return folder

    def restore(self, saved: Saved) -> None:
        """Restore the states that `pickles` returned.

        Without `begin`, the `fit` was finished by an earlier process, and ``on_train_begin``, which resets callbacks,
        is not called.
        """
        states = saved.pickles()
        for name, callback in self._callbacks.items():
            if name not in states:
                continue
            if own := hooks([callback], "load_state"):
                own[0](states[name])
            elif not hooks([callback], "get_state") and isinstance(states[name], Mapping):
                state = dict(states[name])
                plain = state.pop(_PLAIN, None)
                if plain is not None and name in self._plain:
                    self._plain[name].load(plain, has_begun=self._has_begun)
                for attribute, value in state.items():
                    setattr(callback, attribute, value)


def prepare_callbacks(callbacks: Sequence[Any], epoch: int) -> None:
    """Make callbacks that write files append to the existing ones; call it before ``on_train_begin``.

    Args:
        callbacks: the user's callbacks.
        epoch: the epoch from which training resumes, from 0; rows of this and later epochs are removed from CSV
            files, because they are written again.
    """
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True
            _drop_rows(Path(callback.filename), callback.sep, epoch)


def changes_weights_at_end(callback: Any) -> bool:
    """Return whether a callback's ``on_train_end`` may change the model; few of Keras's own callbacks do."""
    if isinstance(callback, keras.callbacks.EarlyStopping):
        return bool(callback.restore_best_weights)
    if isinstance(callback, _HARMLESS_AT_END):
        return False
    return overrides(callback, "on_train_end")


def _names_of_keras(callback: Any) -> set[str]:
    """Return the names of the attributes of a callback that Keras's code sets.

    For a user's subclass of a stateful Keras callback the state is the attributes in `_ATTRIBUTES` and those that the
    subclass adds. Other attributes that Keras's code sets must not be restored: it also changes arguments, such as the
    sign of ``min_delta``, and does so again on a resume.
    """
    names = set(_NAMES_OF_KERAS)
    if not isinstance(callback, tuple(_ATTRIBUTES)):
        return names
    for kind in type(callback).__mro__:
        if kind.__module__.startswith("keras."):
            functions = [member for member in vars(kind).values() if inspect.isfunction(member)]
            steps = [step for function in functions for step in dis.get_instructions(function)]
            names |= {str(step.argval) for step in steps if step.opname == "STORE_ATTR"}
    return names


def _attributes(callback: Any) -> tuple[str, ...]:
    for kind, attributes in _ATTRIBUTES.items():
        if isinstance(callback, kind):
            return tuple(attribute for attribute in attributes if hasattr(callback, attribute))
    return ()


def _drop_rows(path: Path, separator: str, epoch: int) -> None:
    if not path.exists():
        return
    with path.open(newline="") as file:
        rows = list(csv.reader(file, delimiter=separator))
    kept = [
        row
        for number, row in enumerate(rows)
        if number == 0 or (row and row[0].isdigit() and int(row[0]) < epoch)
    ]
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator).writerows(kept)
    write_file(path, text.getvalue())
