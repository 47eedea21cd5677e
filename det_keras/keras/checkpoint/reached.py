"""The state of everything that a training can reach: compared with its start, saved where it changed, and restored.

Values are saved by their places: an object that existed at the start is saved as a reference to its path, and what was
assigned to an attribute, added to a container or bound in a closure is pickled. So objects that are shared stay shared.
"""

from __future__ import annotations

import functools
import io
import logging
import pickle
import types
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.checkpoint.reach import SCALARS, Absent, Node, Reach, is_long, is_of_product, is_plain
from det_keras.keras.checkpoint.variables import REACHED, LooseVariable, TrackedVariable
from det_keras.keras.private_api.steps import used_variables
from det_keras.keras.random_ops.counters import random_counters

logger = logging.getLogger(__name__)

_SMALL_BYTES = 4096
_SAMPLED_BYTES = 256 << 20
_SAMPLED_ROWS = 1000
_LARGEST_BYTES = 1 << 30
# They do not change themselves: another one in the same place is a change.
_UNCHANGING = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)

_Key = tuple[str, str]


@dataclass(frozen=True)
class _Opaque:
    """What can be seen of a value that cannot be pickled: which object it is, and how far it was read or written."""

    number: int
    position: Any


@dataclass(frozen=True)
class _Seen:
    """A value as it was at some moment, to compare with.

    Attributes:
        value: the value; it is kept, so that no other object gets its id.
        content: a digest of its content; None if it is a number, text, or an object that is compared by itself.
    """

    value: Any
    content: Any = None


class _Entry(NamedTuple):
    """A value in a checkpoint, which stores it as a tuple.

    Attributes:
        origin: the representation of the number or text with which the script began; None for another value.
        has_moved: it has changed since ``on_train_begin``, and not only before.
        value: the value.
    """

    origin: str | None
    has_moved: bool
    value: Any


class ReachedState:
    """What can be reached from some roots, and has changed since this object was made.

    Args:
        roots: the objects to begin with, by name.
        without: objects whose state is kept in another way, by path.
        known: returns the variables whose values are kept in another way.
        hidden: returns handles of variables that no object leads to, by name.
        reads_traces: what only the traces of a `tf.function` use is state too. False where their steps exchange
            gradients, and use variables of this package.
    """

    def __init__(
        self,
        roots: Mapping[str, Any],
        *,
        without: Mapping[str, Any] | None = None,
        known: Callable[[], Iterable[Any]] = tuple,
        hidden: Callable[[], Mapping[str, Any]] = dict,
        reads_traces: bool = True,
    ) -> None:
        self._known = known
        self._reads_traces = reads_traces
        self._hidden = hidden
        self._reach = Reach(roots, without)
        # What makes the objects that the script does not have before training, by path.
        self._makers: dict[str, bytes] = {}
        self._making: set[str] = set()
        self._traced: bytes | None = None
        self._named: set[str] = set()
        self._made = self._first = self._look()
        self._values_made = {variable.path: variable.value for variable in self._loose_variables()}

    def begin(self) -> None:
        """Record the values after ``on_train_begin``, which may reset them: those that differ later have moved."""
        self.extend()
        self._first = self._look()

    def extend(self) -> None:
        """Find the objects that were made since, by ``on_train_begin`` or in the first batch."""
        before = dict(self._reach.objects)
        self._reach.search()
        if len(before) == len(self._reach.objects):
            return
        known = {id(value): path for path, value in before.items()}
        new: tuple[str, ...] = ()
        for path, value in self._reach.objects.items():
            if path in before or path.startswith(new) or isinstance(value, keras.Variable | tf.Variable):
                continue
            # A process that skips the training, or has not trained a batch yet, does not have it.
            made = _empty(value)
            if made is value:
                new = *new, path
            maker = self._pickle(made, itself=value, paths=known)
            if isinstance(maker, bytes):
                self._makers[path] = maker

    def variables(self) -> list[TrackedVariable]:
        """Return the variables that may have changed and that nothing else keeps."""
        changed = []
        for variable in self._loose_variables():
            start = self._values_made.get(variable.path)
            if start is None or _address(start) != _address(variable.value):
                changed.append(TrackedVariable(REACHED, variable.path, variable))
        return changed

    def assign(self, values: Mapping[str, Any]) -> None:
        """Restore the values of variables.

        Args:
            values: by path.
        """
        found = {variable.path: variable for variable in self._loose_variables()} if values else {}
        for path, value in values.items():
            if path in found:
                found[path].assign(value)
            else:
                self._name(path, "is in the checkpoint, and this script has no such variable")

    def leave_out(self, values: Iterable[Any]) -> None:
        """Leave out objects whose state is kept in another way, and what only they lead to."""
        self._reach.leave_out(values)

    def draws(self) -> bytes:
        """Return the states of everything that draws random numbers, for `assign_draws` in any process."""
        self._reach.search()
        streams = {node.path: node.values()[""] for node in self._reach.streams()}
        seeds = {
            variable.path: np.array(variable.value)
            for variable in self._loose_variables()
            if variable.path in self._reach.seeds
        }
        return pickle.dumps((streams, seeds))

    def assign_draws(self, content: bytes) -> None:
        """Restore the states that `draws` returned."""
        streams, seeds = pickle.loads(content)
        for node in self._reach.streams():
            if node.path in streams:
                node.write("", streams[node.path])
        for variable in self._loose_variables():
            if variable.path in seeds:
                variable.assign(seeds[variable.path])

    def dump(self) -> bytes:
        """Return the values that differ from the first ones, pickled."""
        stored = {"entries": self._changes(), "makers": self._makers, "traced": self._traced}
        return pickle.dumps(stored, protocol=4)

    def note_traced(self) -> None:
        """Record the values as they are when a step is traced: Python values become constants of the step."""
        self._traced = self._changes()

    @contextmanager
    def as_traced(self, content: bytes | None) -> Iterator[None]:
        """Restore inside the block the values with which an earlier process traced its step.

        Args:
            content: what `dump` returned there; None for no change.
        """
        stored = {} if content is None else pickle.loads(content)
        self._traced = stored.get("traced")
        if self._traced is None:
            yield
            return
        before: list[tuple[Node, str, Any]] = []
        makers = self._makers
        self._makers = {**stored["makers"], **makers}
        with self._reach.forgetting():
            for (path, name), entry in self._unpickle(self._traced).items():
                if (node := self._reach.nodes.get(path)) is not None:
                    value = node.values().get(name, Absent.ABSENT)
                    before.append((node, name, value.copy() if isinstance(value, np.ndarray) else value))
                    node.write(name, _Entry(*entry).value)
            try:
                yield
            finally:
                for node, name, value in reversed(before):
                    node.write(name, value)
                self._makers, self._making = makers, set()

    def load(self, content: bytes, *, has_begun: bool = True) -> None:
        """Restore the values that `dump` returned in another process; other places get their first values.

        A number or text that differs at the start from that in the process that wrote the state keeps its value: the
        script's author has changed an argument.

        Args:
            content: the state.
            has_begun: `begin` was called; False if the training is over and no hook was called.
        """
        stored = pickle.loads(content)
        self._reach.search()
        self._makers = {**stored["makers"], **self._makers}
        found = {key: _Entry(*entry) for key, entry in self._unpickle(stored["entries"]).items()}
        entries = {key: entry for key, entry in found.items() if entry.has_moved or not has_begun}
        for (path, name), entry in entries.items():
            self._find(path)
            node, made = self._reach.nodes.get(path), self._made.get(path, {}).get(name)
            if node is None:
                self._name(f"{path}.{name}", "is in the checkpoint, and this script has no such object")
            elif entry.origin is None or made is None or repr(made.value) == entry.origin:
                node.write(name, entry.value)
                if node.changes_others:
                    self._reach.leave_out([node.owner])
        if has_begun:
            self._undo(entries)

    def _changes(self) -> bytes:
        """Return the entries of the values that differ from the first ones, pickled."""
        entries: dict[_Key, tuple[Any, ...]] = {}
        for node in self._reach.nodes.values():
            values, made = node.values(), self._made.get(node.path, {})
            for name in [*values, *(made.keys() - values.keys())]:
                value = values.get(name, Absent.ABSENT)
                now = self._see(node, value)
                if _is_alike(made.get(name), now):
                    continue
                first = self._first.get(node.path, {}).get(name)
                has_moved = not _is_alike(first, now)
                if self._can_store(node, name, now, has_moved=has_moved, is_new=first is None):
                    was = made.get(name)
                    origin = repr(was.value) if was is not None and type(was.value) in SCALARS else None
                    entries[node.path, name] = tuple(_Entry(origin, has_moved, value))
        content = self._pickle(entries)
        assert isinstance(content, bytes)
        return content

    # Looking.

    def _look(self) -> dict[str, dict[str, _Seen]]:
        return {
            node.path: {name: self._see(node, value) for name, value in node.values().items()}
            for node in list(self._reach.nodes.values())
        }

    def _see(self, node: Node, value: Any) -> _Seen:
        is_known = id(value) in self._reach.paths and value is not node.owner
        if type(value) in SCALARS or isinstance(value, _UNCHANGING) or is_known or is_of_product(value):
            return _Seen(value)
        return _Seen(value, self._digest(node, value))

    def _digest(self, node: Node, value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.dtype != object and value.nbytes > _SAMPLED_BYTES:
            numbers = np.unique(np.linspace(0, len(value) - 1, _SAMPLED_ROWS).astype(np.int64))
            value = value[numbers]
        if not node.holds_anything and not is_plain(value):
            return _opaque(value)
        checksum = 0

        def add(buffer: Any) -> None:
            nonlocal checksum
            checksum = zlib.crc32(buffer.raw(), checksum)

        content = self._pickle(value, itself=value if value is node.owner else None, buffers=add)
        if isinstance(content, bytes) and len(content) > _SMALL_BYTES:
            return len(content), zlib.crc32(content), checksum
        return content if isinstance(content, _Opaque) else (content, checksum)

    def _can_store(self, node: Node, name: str, now: _Seen, *, has_moved: bool, is_new: bool) -> bool:
        """Return whether a changed value can be stored; if not, and it matters, name it once."""
        value = now.value
        size = value.nbytes if isinstance(value, np.ndarray) else 0
        is_unpickled = now.content is None and type(value) not in SCALARS
        content = self._digest(node, value) if is_unpickled else now.content
        is_storable = not isinstance(content, _Opaque)
        if is_storable and size <= _LARGEST_BYTES:
            return True
        if is_new and node.is_selection:
            # It was there before, and is looked at from now on.
            self._first.setdefault(node.path, {})[name] = now
            return False
        # The first step lets a layer make its parts, as it does in the process that resumes.
        is_built = is_new and isinstance(node.owner, keras.Layer)
        if node.is_of_script and has_moved and not is_built and not _is_writer(value):
            why = (
                f"has {size / 1e6:.0f} MB" if size else f"is a {type(value).__name__}, which cannot be stored"
            )
            self._name(
                node.path_of(name),
                f"changes during training and {why}: a resumed run begins with what the script makes of it. Give its "
                "class `get_state()` and `load_state(state)`, or keep plain values there",
            )
        return False

    def _name(self, path: str, what: str) -> None:
        if path not in self._named:
            self._named.add(path)
            logger.warning("`%s` %s.", path, what)

    def _undo(self, entries: Mapping[_Key, _Entry]) -> None:
        """Give places that have no value in the checkpoint their first ones: a hook has changed them on the resume."""
        for node in list(self._reach.nodes.values()):
            first = self._first.get(node.path, {})
            for name, value in node.values().items():
                seen = first.get(name)
                if (node.path, name) in entries or seen is None or _is_alike(seen, self._see(node, value)):
                    continue
                if seen.content is None:
                    node.write(name, seen.value)
                elif (
                    isinstance(seen.content, tuple)
                    and isinstance(seen.content[0], bytes)
                    and not seen.content[1]
                ):
                    node.write(name, self._unpickle(seen.content[0]))

    # Variables.

    def _loose_variables(self) -> list[LooseVariable]:
        found = [LooseVariable(path, each) for path, each in self._reach.variables.items()]
        # The last ones: a process that has not traced them yet finds a variable by its path only.
        traced = self._reach.traced if self._reads_traces else {}
        hidden = [self._hidden(), *(used_variables(path, each) for path, each in traced.items())]
        found += [LooseVariable(name, handle) for handles in hidden for name, handle in handles.items()]
        seen = {LooseVariable("", each).number for each in [*self._known(), *random_counters.variables()]}
        loose = []
        for variable in found:
            if variable.number not in seen and variable.is_numeric:
                seen.add(variable.number)
                loose.append(variable)
        return loose

    # Pickles.

    def _pickle(
        self,
        value: Any,
        *,
        itself: Any = None,
        paths: Mapping[int, str] | None = None,
        buffers: Callable[[Any], None] | None = None,
    ) -> bytes | _Opaque:
        """Return a pickle in which known objects are references; what is seen of the value if it has none.

        Args:
            value: the value.
            itself: an object that is pickled by its content.
            paths: the known objects, by their ids; by default all that were found.
            buffers: receives the buffers of arrays, which are not in the pickle then.
        """
        if is_plain(value, deep=is_long(value)):
            return pickle.dumps(value, protocol=5, buffer_callback=buffers)
        if isinstance(value, types.GeneratorType | types.ModuleType):
            return _opaque(value)
        file = io.BytesIO()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                known = self._reach.paths if paths is None else paths
                _Pickler(file, known, itself, buffers).dump(value)
        except Exception:
            # Any class may refuse in its own way.
            return _opaque(value)
        return file.getvalue()

    def _unpickle(self, content: bytes) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _Unpickler(io.BytesIO(content), self._find).load()

    def _find(self, path: str) -> Any:
        """Return the object at a path, made anew if this process does not have it; None if that is not possible."""
        if path in self._reach.objects:
            return self._reach.objects[path]
        for each in [each for each in self._makers if path.startswith(each)]:
            if each not in self._reach.objects and each not in self._making:
                self._making.add(each)
                value = self._unpickle(self._makers[each])
                self._reach.search({each: value() if isinstance(value, functools.partial) else value})
        return self._reach.objects.get(path)


class _Pickler(pickle.Pickler):
    def __init__(
        self, file: io.BytesIO, paths: Mapping[int, str], itself: Any, buffers: Callable[[Any], None] | None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers)
        self._paths = paths
        self._itself = id(itself)

    def persistent_id(self, value: Any) -> str | None:
        path = self._paths.get(id(value))
        if path is None and is_of_product(value) and value is not Absent.ABSENT and value is not Absent:
            raise pickle.PicklingError(f"A {type(value).__name__} belongs to its process.")
        return path if id(value) != self._itself else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, find: Callable[[str], Any]) -> None:
        super().__init__(file)
        self._find = find

    def persistent_load(self, path: str) -> Any:
        return self._find(path)


def _is_alike(seen: _Seen | None, now: _Seen) -> bool:
    """Return whether a value is as it was seen before."""
    if seen is None:
        return False
    if seen.content is None:
        is_scalar = type(now.value) in SCALARS and type(seen.value) is type(now.value)
        return seen.value is now.value or (is_scalar and repr(seen.value) == repr(now.value))
    return bool(now.content == seen.content)


def _opaque(value: Any) -> _Opaque:
    position: object
    try:
        position = value.tell() if isinstance(value, io.IOBase) and not value.closed else None
    except (OSError, ValueError):
        position = None
    if hasattr(type(value), "__next__") and not isinstance(value, io.IOBase):
        # It may have been advanced, which cannot be seen.
        position = object()
    return _Opaque(id(value), position)


def _is_writer(value: Any) -> bool:
    """Return whether a value writes TensorBoard's events, or holds only such: nothing is read from it again."""
    if isinstance(value, dict):
        value = list(value.values())
    held = value if isinstance(value, list | tuple) else [value]
    return bool(held) and all(isinstance(each, tf.summary.SummaryWriter) for each in held)


def _empty(value: Any) -> Any:
    """Return what makes a container without its items, which are stored as its content; another object as it is."""
    if isinstance(value, np.ndarray):
        return functools.partial(np.zeros, value.shape, value.dtype)
    if isinstance(value, deque):
        return functools.partial(deque, maxlen=value.maxlen)
    kind: Any = type(value)
    return functools.partial(kind) if kind in (list, dict, set, bytearray) else value


def _address(tensor: tf.Tensor) -> int:
    """Return the address of a tensor's values: a variable that was not assigned has the same as before."""
    return int(np.asarray(tensor).__array_interface__["data"][0])
