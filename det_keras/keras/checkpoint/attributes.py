"""The plain attributes of an object: the state of a user's callback or PyDataset.

Only attributes that changed since training began are state. The script creates constructor arguments and arrays of
data again. Objects that are not plain (models, files, functions) are ignored.
"""

from __future__ import annotations

import logging
import pickle
import random
import zlib
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

_SAMPLED_BYTES = 1 << 20
_SAMPLED_ROWS = 1000
_LARGEST_BYTES = 64 << 20
_SCALARS = (bool, int, float, complex, str, bytes, type(None), np.generic)
_STREAMS = (np.random.Generator, np.random.RandomState, random.Random)
_MOST_ITEMS = 100_000


class PlainState:
    """The plain attributes of one object that change while it is used.

    Args:
        owner: the object, as the script created it.
        without: names of attributes to ignore.
    """

    def __init__(self, owner: Any, *, without: Collection[str] = ()) -> None:
        self._owner = owner
        self._without = frozenset(without)
        self._warned: set[str] = set()
        self.begin()
        self._as_made = self._at_first

    def begin(self) -> None:
        """Record the attributes again, after a hook that resets them: those that differ later are state."""
        self._at_first = {name: _digest(value) for name, value in self._plain().items()}
        # Needed to undo changes that a hook makes on a resume. Only scalars are kept, so that large arrays are not
        # stored twice.
        self._small = {name: value for name, value in self._plain().items() if isinstance(value, _SCALARS)}

    def dump(self) -> bytes:
        """Return the attributes that differ from their first values, pickled; equal states give equal bytes."""
        changed = {
            name: (self._as_made.get(name), self._at_first.get(name), value)
            for name, value in sorted(self._plain().items())
            if self._at_first.get(name) != _digest(value) and self._is_kept(name, value)
        }
        return pickle.dumps(changed, protocol=4)

    def load(self, content: bytes, *, has_begun: bool = True) -> None:
        """Restore the state that `dump` returned; attributes that are not in it get their first recorded values.

        An attribute whose first value differs from that in the process that wrote the state keeps its value: the
        script's author has changed an argument.

        Args:
            content: the state that `dump` returned in another process.
            has_begun: `begin` was called; False if the training is over and no hook was called.
        """
        saved: Mapping[str, tuple[Any, Any, Any]] = pickle.loads(content)
        changed = {
            name: value
            for name, (made, first, value) in saved.items()
            if self._at_first.get(name) == (first if has_begun else made)
        }
        for name, value in {**(self._small if has_begun else {}), **changed}.items():
            current = getattr(self._owner, name, None)
            if isinstance(value, _STREAMS) and type(current) is type(value):
                # Change the stream in place: other objects may draw from it.
                _set_stream(current, value)
            else:
                setattr(self._owner, name, value)

    def _plain(self) -> dict[str, Any]:
        attributes = getattr(self._owner, "__dict__", {})
        return {
            name: value
            for name, value in attributes.items()
            if name not in self._without and _is_plain(value, [_MOST_ITEMS])
        }

    def _is_kept(self, name: str, value: Any) -> bool:
        size = value.nbytes if isinstance(value, np.ndarray) else 0
        if size <= _LARGEST_BYTES:
            return True
        if name not in self._warned:
            self._warned.add(name)
            logger.warning(
                "`%s.%s` changes during training and has %.0f MB: it is not kept in checkpoints, and a resumed run "
                "begins with what the script makes of it. Give the class `get_state()` and `load_state(state)`.",
                type(self._owner).__name__,
                name,
                size / 1e6,
            )
        return False


def _is_plain(value: Any, left: list[int]) -> bool:
    """Return whether a value consists only of numbers, text, arrays and random streams; `left` bounds the search."""
    left[0] -= 1
    if left[0] < 0:
        return False
    if isinstance(value, (*_SCALARS, *_STREAMS)):
        return True
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if isinstance(value, dict):
        return all(_is_plain(key, left) and _is_plain(item, left) for key, item in value.items())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return all(_is_plain(item, left) for item in value)
    return False


def _digest(value: Any) -> Any:
    """Return a digest of a value; of a large array only some rows are read."""
    if isinstance(value, np.ndarray):
        rows = value
        if value.nbytes > _SAMPLED_BYTES and value.ndim > 0:
            numbers = np.unique(np.linspace(0, len(value) - 1, _SAMPLED_ROWS).astype(np.int64))
            rows = value[numbers]
        return value.shape, value.dtype.str, zlib.crc32(np.ascontiguousarray(rows).tobytes())
    if isinstance(value, _SCALARS):
        return type(value), repr(value)
    try:
        return zlib.crc32(pickle.dumps(value, protocol=4))
    except (pickle.PicklingError, TypeError, AttributeError):
        # The value cannot be pickled, such as a container class that is local to a function. It cannot be stored, so
        # it never counts as changed.
        return None


def _set_stream(stream: Any, value: Any) -> None:
    if isinstance(stream, np.random.Generator):
        stream.bit_generator.state = value.bit_generator.state
    elif isinstance(stream, np.random.RandomState):
        stream.set_state(value.get_state(legacy=False))
    else:
        stream.setstate(value.getstate())
