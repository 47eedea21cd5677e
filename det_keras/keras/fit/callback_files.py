"""The files of the user's callbacks: those that they add to a checkpoint, and those that they append to.

Their state is part of what training can reach; see `det_keras.keras.checkpoint.reached`.
"""

from __future__ import annotations

import csv
import io
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from det_keras.files import write_file
from det_keras.keras.callbacks.callback import hooks
from det_keras.keras.fit.callback_list import overrides
from det_keras.keras.training.parts import Part, Saved
from det_keras.scratch import Scratch

_PLAIN = "plain attributes"

_HARMLESS_AT_END = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
    keras.callbacks.TensorBoard,
)


class CallbackPart(Part):
    """The files that the user's callbacks add to a checkpoint, and their states in checkpoints of earlier versions.

    Args:
        callbacks: the user's callbacks.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._listeners = hooks(callbacks, "on_checkpoint_end")
        self._callbacks = {
            f"{index}-{type(callback).__name__}": callback for index, callback in enumerate(callbacks)
        }

    def files(self) -> Scratch | None:
        """Return a directory with the files that callbacks add to this checkpoint, None if no callback has the hook."""
        if not self._listeners:
            return None
        folder = Scratch("callbacks")
        for listener in self._listeners:
            listener(folder.name)
        return folder

    def restore(self, saved: Saved) -> None:
        """Restore what earlier versions stored: a state by name, or attributes; today `ReachedPart` has both."""
        states = saved.pickles()
        for name, callback in self._callbacks.items():
            if own := hooks([callback], "load_state"):
                if name in states:
                    own[0](states[name])
            elif isinstance(state := states.get(name), Mapping):
                changed = pickle.loads(state.get(_PLAIN, pickle.dumps({})))
                values = {attribute: value for attribute, (_, _, value) in changed.items()}
                for attribute, value in {**state, **values}.items():
                    if attribute != _PLAIN:
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
