"""The parts of a training whose state its checkpoints contain, and their order when they are restored.

A training has a list of parts. A checkpoint asks each for its state, and a resume restores them in the order of the
list. The values of variables are held apart from the rest, because they are large.
"""

from __future__ import annotations

import base64
import json
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import keras
import numpy as np

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.comparison import REACHED_NAME
from det_keras.keras.checkpoint.model_file import ModelFile
from det_keras.keras.checkpoint.random_state import capture_streams, restore_random_state
from det_keras.keras.checkpoint.reached import ReachedState
from det_keras.keras.checkpoint.variables import REACHED, TrackedVariable, VariableSet
from det_keras.keras.history import FitHistory, pack_history
from det_keras.keras.random_ops.counters import random_counters
from det_keras.keras.training.progress import Progress
from det_keras.scratch import Scratch

#: The file with the entries of one worker.
_OWN_NAME = "worker.json"
# A hyphen is in no name that a script gives.
_OWN_REACHED_NAME = "reached.pkl"


class SavedState(Protocol):
    """A state to restore: that of a checkpoint, or one that is held in memory."""

    @property
    def state(self) -> Mapping[str, Any]:
        """The entries of all parts."""

    @property
    def folder(self) -> Path:
        """The directory of the training state's files."""

    @property
    def variables(self) -> Sequence[Mapping[str, Any]]:
        """The descriptions of all variables, in order."""

    def values(self) -> Sequence[Any]:
        """Return the values of all variables, in order."""

    def pickles(self) -> Mapping[str, Any]:
        """Return the unpickled states by name."""


class Saved:
    """A state that is restored, from the point of view of one worker.

    Args:
        found: the state.
        workers: the workers of this process.

    Attributes:
        state: the entries of all parts.
        drawn: names of the random streams that a part has already brought to where they were.
        is_end: whether it is the end of a training that is skipped.
    """

    def __init__(self, found: SavedState, workers: DistributedContext, *, is_end: bool = False) -> None:
        self.state = found.state
        self.drawn: frozenset[str] = frozenset()
        self.is_end = is_end
        self._found = found
        self._is_alike = self.state.get("workers", 1) == workers.size
        self._folder = found.folder / f"rank-{workers.rank}"

    @property
    def is_of_other_workers(self) -> bool:
        """Whether another number of workers saved it."""
        return not self._is_alike

    @cached_property
    def own(self) -> Mapping[str, Any] | None:
        """The entries of this worker; None if there was one worker, or another number of them."""
        path = self._folder / _OWN_NAME
        if not self._is_alike or not path.exists():
            return None
        entries: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return entries

    def of_all_workers(self) -> list[Mapping[str, Any]]:
        """Return the entries of all workers that saved it, by rank; none if there was one worker."""
        count = self.state.get("workers", 1)
        paths = [self._folder.parent / f"rank-{rank}" / _OWN_NAME for rank in range(count)]
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]

    def own_file(self, name: str) -> Path:
        """Return the path of a file or directory of this worker."""
        return self._folder / name

    def data_state(self, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Return what of a data source's state holds for this number of workers.

        With another one the data is divided differently: it is read again up to the position.
        """
        if self._is_alike:
            return dict(shared)
        return {name: value for name, value in shared.items() if name in ("dataset", "ended")}

    def values(self) -> list[Any]:
        """Return the values of the variables that models, optimizers and metrics list, in order."""
        return [value for variable, value in self._values if variable["group"] != REACHED]

    def reached_values(self) -> dict[str, Any]:
        """Return the values of the other variables, by path."""
        return {variable["path"]: value for variable, value in self._values if variable["group"] == REACHED}

    @cached_property
    def _values(self) -> list[tuple[Mapping[str, Any], Any]]:
        return list(zip(self._found.variables, self._found.values(), strict=True))

    def pickles(self) -> Mapping[str, Any]:
        """Return the unpickled states by name."""
        return self._found.pickles()


class Part:
    """A part of a training whose state the next step depends on; every method does nothing by default."""

    def capture(self, directory: Path) -> Mapping[str, Any]:
        """Return entries of the training state, as JSON values.

        Args:
            directory: for files, which belong to the chief.
        """
        return {}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        """Return entries that differ between workers, as JSON values; called only if there are several.

        Args:
            directory: for files of this worker.
        """
        return {}

    def pickles(self) -> Mapping[str, Callable[[], bytes]]:
        """Return functions that pickle objects, by name; they may run later, in another thread."""
        return {}

    def further_variables(self) -> Sequence[TrackedVariable]:
        """Return variables of the part whose values the checkpoint contains, besides those of `WeightsPart`."""
        return ()

    def files(self) -> Scratch | None:
        """Return a directory with files that the checkpoint contains as well; it is deleted with the object."""
        return None

    def restore(self, saved: Saved) -> None:
        """Restore what `capture`, `capture_own` and `pickles` returned in another process."""


class WeightsPart(Part):
    """All variables that training changes, and the files of the models that have them.

    Args:
        variables: returns the variables that exist now.
        models: the models by name; the first is the ``model.keras`` of a checkpoint.
        optimizers: returns the optimizers.
    """

    def __init__(
        self,
        variables: Callable[[], VariableSet],
        models: Mapping[str, Any],
        optimizers: Callable[[], Iterable[Any]],
    ) -> None:
        self.variables = variables
        self._models = models
        self._optimizers = optimizers
        self._files: dict[str, ModelFile] = {}

    def model_files(self, variables: VariableSet) -> dict[str, ModelFile]:
        """Return the files of the models with their present values beside variables, the first model's first."""
        found = [item.variable for item in variables.tracked]
        for name, model in self._models.items():
            if isinstance(model, keras.Model) and model.variables:
                known = self._files.get(name)
                if known is None or not known.has_variables(found):
                    known = ModelFile(model, found, self._optimizers())
                self._files[name] = known.refreshed()
        return self._files

    def restore(self, saved: Saved) -> None:
        self.variables().assign(saved.values())


class ReachedPart(Part):
    """What the training can reach besides: objects behind callbacks, model and data, and variables that nobody lists.

    Args:
        state: finds, compares and restores it.
        has_hooks: hooks may reset it when the training begins, and `begin` is called after them.
    """

    def __init__(self, state: ReachedState, *, has_hooks: bool = True) -> None:
        self._state = state
        self._has_begun = not has_hooks

    def begin(self) -> None:
        """Record that ``on_train_begin`` was called, which may reset what was reached."""
        self._has_begun = True
        self._state.begin()

    def extend(self) -> None:
        """Look for what the first batch has made."""
        self._state.extend()

    def leave_out(self, values: Iterable[Any]) -> None:
        """Leave out data, whose state the data source keeps."""
        self._state.leave_out(values)

    def draws(self) -> str:
        """Return the states of everything that draws random numbers, as JSON."""
        return base64.b64encode(self._state.draws()).decode()

    def assign_draws(self, state: str) -> None:
        """Restore the states that `draws` returned."""
        self._state.assign_draws(base64.b64decode(state))

    def note_traced(self) -> None:
        """Record the values with which a step is traced."""
        self._state.note_traced()

    def as_traced(self, saved: Saved | None) -> AbstractContextManager[None]:
        """Return a block in which everything has the values with which an earlier process traced its step."""
        return self._state.as_traced(None if saved is None else self._found(saved)[0])

    def further_variables(self) -> Sequence[TrackedVariable]:
        return self._state.variables()

    def pickles(self) -> Mapping[str, Callable[[], bytes]]:
        return {REACHED_NAME: partial(pickle.dumps, self._state.dump())}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        values = {item.path: np.asarray(item.variable.value) for item in self._state.variables()}
        (directory / _OWN_REACHED_NAME).write_bytes(pickle.dumps((self._state.dump(), values)))
        return {}

    def restore(self, saved: Saved) -> None:
        content, values = self._found(saved)
        if content is not None:
            self._state.load(content, has_begun=self._has_begun)
        self._state.assign(values)

    def _found(self, saved: Saved) -> tuple[bytes | None, Mapping[str, Any]]:
        """Return the pickled values and the variables of this worker."""
        if saved.own is not None and (path := saved.own_file(_OWN_REACHED_NAME)).exists():
            content, values = pickle.loads(path.read_bytes())
            return content, values
        return saved.pickles().get(REACHED_NAME), saved.reached_values()


class HistoryPart(Part):
    """The metrics of finished epochs."""

    def __init__(self, history: FitHistory) -> None:
        self._history = history

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {"history": pack_history(self._history.get_state())}

    def restore(self, saved: Saved) -> None:
        self._history.load_state(saved.state["history"])


class ProgressPart(Part):
    """The progress of the training; on a resume the position is set before.

    Args:
        progress: the progress.
        with_logs: returns whether a process that resumes here needs the running training metrics.
    """

    def __init__(self, progress: Progress, with_logs: Callable[[], bool]) -> None:
        self._progress = progress
        self._with_logs = with_logs

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return self._progress.get_state(with_logs=self._with_logs())

    def restore(self, saved: Saved) -> None:
        self._progress.load_state(saved.state)


class RandomPart(Part):
    """The states of random streams, and of random ops in traced functions.

    It is restored last: what is restored before may draw from them.

    Args:
        model: the model that is trained, whose steps have states apart; None for a loop.
        is_chief: whether this worker's state is in the shared part of a checkpoint.
    """

    def __init__(self, model: Any = None, *, is_chief: bool) -> None:
        self._model = model
        self._is_chief = is_chief
        random_counters.begin_training()

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {"random": capture_streams(), "random_counters": random_counters.get_state(self._model)}

    def capture_own(self, directory: Path) -> Mapping[str, Any]:
        # Not that of a subclass, which has more.
        return {} if self._is_chief else RandomPart.capture(self, directory)

    def restore(self, saved: Saved) -> None:
        state = {**saved.state, **(saved.own or {})}
        # Checkpoints of earlier versions do not have them.
        random_counters.restore(state.get("random_counters"), self._model, is_end=saved.is_end)
        restore_random_state(self._model, state["random"], without=saved.drawn)


class InMemory:
    """The state of some parts of this process, as it is now, for a restore in the same process.

    Args:
        parts: the parts; they need no files.
        weights: one of them.
        workers: the workers of this process.
    """

    folder = Path(os.devnull)

    def __init__(self, parts: Sequence[Part], weights: WeightsPart, workers: DistributedContext) -> None:
        self.state = {**captured(parts, self.folder), "workers": workers.size}
        further = [item for part in parts for item in part.further_variables()]
        self.variables = [*weights.variables().describe(), *(item.describe() for item in further)]
        self._values = [*weights.variables().copy(), *(item.variable.value for item in further)]
        self._pickles = {
            name: pickle.loads(dump()) for part in parts for name, dump in part.pickles().items()
        }

    def values(self) -> Sequence[Any]:
        """Return the values of all variables, in order."""
        return self._values

    def pickles(self) -> Mapping[str, Any]:
        """Return the objects by name."""
        return self._pickles


def captured(parts: Iterable[Part], directory: Path) -> dict[str, Any]:
    """Return the entries of all parts; entries of one name are joined."""
    return _joined(part.capture(directory) for part in parts)


def own_files(parts: Iterable[Part]) -> dict[str, bytes]:
    """Return the files of this worker by their path in its directory."""
    with Scratch("state") as name:
        folder = Path(name)
        entries = _joined(part.capture_own(folder) for part in parts)
        (folder / _OWN_NAME).write_text(json.dumps(entries), encoding="utf-8")
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _joined(groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {}
    for entries in groups:
        for name, value in entries.items():
            known = joined.get(name)
            joined[name] = {**known, **value} if isinstance(known, dict) else value
    return joined
