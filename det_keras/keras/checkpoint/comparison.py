"""Compares the whole state of two checkpoints of a script, bit for bit, in a process that has the script's classes."""

from __future__ import annotations

import io
import pickle
import types
import warnings
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from det_keras.checkpoint_comparison import differences
from det_keras.keras.checkpoint.training_state import RestoredState

#: The name under which a checkpoint has the objects that training can reach.
REACHED_NAME = "reached-objects"


# How a CSVLogger opens its file, to which a process that resumes appends.
_OF_CSV_LOGGERS = frozenset({"append", "append_header"})
# Compared by their pickles alone, and with `==`.
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_COMPARED_AS_THEY_ARE = (set, frozenset, type, types.FunctionType, types.BuiltinFunctionType)


class _Reference(NamedTuple):
    """An object that both states name by its path."""

    path: str


class _Missing:
    """The place of a value that only one of the states has."""


def state_differences(expected: Path, found: Path) -> Iterator[str]:
    """Yield what differs between two checkpoints, with the objects that training can reach.

    Args:
        expected: the directory of a checkpoint.
        found: the directory of another one.

    Raises:
        CheckpointError: one of them has no training state.
    """
    yield from differences(expected, found, RestoredState)
    before, after = RestoredState.read(expected).pickles(), RestoredState.read(found).pickles()
    for name in sorted({*before, *after}):
        if name == REACHED_NAME:
            yield from _differing_objects(before.get(name), after.get(name))
        elif not Values().are_same(before.get(name, _Missing), after.get(name, _Missing)):
            yield f"the state of the callback `{name}`"


def _differing_objects(expected: bytes | None, found: bytes | None) -> Iterator[str]:
    before, after = _entries(expected), _entries(found)
    values = Values(_by_path(before), _by_path(after))
    different = [
        key for key in sorted(before.keys() & after.keys()) if not values.are_same(before[key], after[key])
    ]
    # What only one of them has may be a part of a value that the other has as a whole.
    alone = [key for key in sorted(before.keys() ^ after.keys()) if key[0] not in values.inlined]
    for path, name in [*different, *alone]:
        if name in _OF_CSV_LOGGERS:
            continue
        yield f"`{path}{name if name.startswith('[') or not name else f'.{name}'}`"


def _by_path(entries: Mapping[tuple[str, str], Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (path, name), value in entries.items():
        found[path][name] = value
    return found


def _entries(content: bytes | None) -> dict[tuple[str, str], Any]:
    """Return the values of `ReachedState.dump` by path and name."""
    if content is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entries = _Unpickler(io.BytesIO(pickle.loads(content)["entries"])).load()
    # Each is the first value, whether it has moved, and the value.
    return {(path, str(name)): entry[2] for (path, name), entry in entries.items()}


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, path: str) -> Any:
        return _Reference(path)


class Values:
    """Compares values of two states.

    A process that resumes looks for objects once more. So one state may have an object by its path, with its parts,
    that the other has as a value.

    Args:
        before: the parts of the objects of one state, by path.
        after: those of the other state.

    Attributes:
        inlined: paths of objects that were compared with a value.
    """

    def __init__(
        self,
        before: Mapping[str, Mapping[str, Any]] | None = None,
        after: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._before, self._after = before or {}, after or {}
        self.inlined: set[str] = set()

    def are_same(self, one: Any, other: Any) -> bool:
        """Return whether two values are the same to the last bit; not whether parts of them are one object."""
        if isinstance(one, _Reference) or isinstance(other, _Reference):
            return self._are_same_objects(one, other)
        if type(one) is not type(other):
            return False
        if isinstance(one, np.ndarray) and one.dtype != object:
            is_alike = one.dtype == other.dtype and one.shape == other.shape
            return bool(is_alike and one.tobytes() == other.tobytes())
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self.are_same(one[key], other[key]) for key in one)
        if isinstance(one, list | tuple | deque):
            return len(one) == len(other) and all(map(self.are_same, one, other))
        if isinstance(one, _COMPARED_AS_THEY_ARE):
            return bool(one == other)
        try:
            # A pickle of the same value may have other bytes, since it names an object that it has seen before.
            return pickle.dumps(one) == pickle.dumps(other) or (
                not isinstance(one, _SCALARS) and self.are_same(_reduced(one), _reduced(other))
            )
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError):
            # Both were unpickled. What cannot be pickled again, such as an object in a cycle, is compared as shown.
            return repr(one) == repr(other)

    def _are_same_objects(self, one: Any, other: Any) -> bool:
        if isinstance(one, _Reference) and isinstance(other, _Reference):
            return one == other
        reference, value = (one, other) if isinstance(one, _Reference) else (other, one)
        parts = (self._before if reference is one else self._after).get(reference.path)
        if parts is None or reference.path in self.inlined:
            return False
        self.inlined.add(reference.path)
        whole = parts[""] if "" in parts else dict(parts)
        against = value if "" in parts else getattr(value, "__dict__", None)
        return self.are_same(*((whole, against) if reference is one else (against, whole)))


def _reduced(value: Any) -> Any:
    """Return what pickle makes an object from: a function, its arguments, and the state."""
    reduced = value.__reduce_ex__(4)
    if isinstance(reduced, str):
        return reduced
    made, arguments, *rest = reduced
    # Items of subclasses of list and dict are iterators.
    return [made, arguments, *(list(each) if hasattr(each, "__next__") else each for each in rest)]
