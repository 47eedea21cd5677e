"""Finds the objects that a training can reach and change: the graph of objects behind its callbacks, model and data.

The search follows attributes, items of containers, closures, defaults, bound methods, and the global names that
functions of the script use. It ends at objects of libraries, except those of Keras and TensorFlow that have state, and
at the product's own objects.

Each object that was found is a `Node` with a path, such as ``callbacks[0].fn.<closure>.rows``. A later process that
runs the same script finds the same objects under the same paths.
"""

from __future__ import annotations

import dis
import enum
import functools
import inspect
import random
import site
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.keras.checkpoint.drawn import draw_up_to, number_drawn
from det_keras.keras.private_api.models import own_layers

SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None), type(Ellipsis)})
STREAMS = (np.random.Generator, np.random.RandomState, random.Random)
_MANY = 1000
_MUTABLE = (list, dict, set, deque, bytearray, np.ndarray)
_OF_KERAS = (
    keras.Layer,
    keras.Loss,
    keras.callbacks.Callback,
    keras.metrics.Metric,
    keras.optimizers.Optimizer,
    keras.optimizers.schedules.LearningRateSchedule,
    keras.regularizers.Regularizer,
    keras.utils.PyDataset,
)
# Set by Keras, or restored by other parts of a checkpoint. The variables that steps use are found in their traces.
_OF_CALLBACKS = frozenset({"_model", "params", "validation_data"})
_OF_OTHERS = frozenset(
    {"build", "built", "call_signature_parameters", "compiled", "history", "input_spec", "quantize"}
    | {"stop_training", "train_function", "test_function", "predict_function"}
)
_OF_BOTH = _OF_CALLBACKS | _OF_OTHERS
_HELD = (*_OF_KERAS, keras.Variable, types.FunctionType, types.MethodType)
_LIBRARIES = tuple(
    sorted(
        {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
        | {*site.getsitepackages(), site.getusersitepackages()}
    )
)
_PRODUCT = __name__.split(".")[0]


class Absent(enum.Enum):
    """The value of an attribute that an object does not have."""

    ABSENT = "absent"


class Node:
    """An object with state of its own, besides the objects that it refers to.

    Args:
        path: how the object was reached.
        owner: the object.

    Attributes:
        is_of_script: the script defines it, so that what cannot be stored of it matters.
        holds_anything: values of any kind are state; otherwise plain ones and the objects that are found by themselves.
        changes_others: writing it also brings what only it leads to, to where that was.
        is_selection: which of the values are looked at depends on what was found so far.
    """

    is_of_script = True
    is_selection = False
    changes_others = False
    holds_anything = True

    def __init__(self, path: str, owner: Any) -> None:
        self.path = path
        self.owner = owner

    def values(self) -> dict[str, Any]:
        """Return the current values by name; one without a name is the whole content of the object."""
        raise NotImplementedError

    def write(self, name: str, value: Any) -> None:
        """Set one of the values, in place."""
        raise NotImplementedError

    def children(self) -> Iterable[tuple[str, Any]]:
        """Return the objects to which this one refers, by path."""
        return [(self.path_of(name), value) for name, value in self.values().items()]

    def path_of(self, name: str) -> str:
        """Return the path of one of the values, for messages and for the object that it is."""
        return f"{self.path}.{name}" if name else self.path


class _Attributes(Node):
    """The attributes of an object."""

    def __init__(self, path: str, owner: Any, *, is_of_script: bool) -> None:
        super().__init__(path, owner)
        self.is_of_script = is_of_script
        self.holds_anything = is_of_script or isinstance(owner, keras.callbacks.Callback)

    def values(self) -> dict[str, Any]:
        owner = self.owner
        kind: Any = type(owner)
        found = {name: getattr(owner, name) for name in _slots(kind) if hasattr(owner, name)}
        found.update(getattr(owner, "__dict__", {}))
        if not isinstance(owner, _OF_KERAS):
            return found
        is_callback = isinstance(owner, keras.callbacks.Callback)
        ours = _OF_CALLBACKS if is_callback else _OF_OTHERS
        hidden = frozenset() if is_callback else _stored_by_keras(kind)
        kept = {
            name: value
            for name, value in found.items()
            if name not in ours
            and not name.startswith("_self_")
            and not (name in hidden and (name[0] == "_" or _holds_objects(value)))
        }
        return {**kept, "trainable": owner.trainable} if isinstance(owner, keras.Layer) else kept

    def write(self, name: str, value: Any) -> None:
        if value is Absent.ABSENT:
            delattr(self.owner, name)
        elif name != "trainable" or self.owner.trainable != value:
            setattr(self.owner, name, value)

    def children(self) -> Iterator[tuple[str, Any]]:
        owner, shown = self.owner, self.values()
        if isinstance(owner, keras.Layer):
            for index, layer in enumerate(own_layers(owner)):
                yield f"{self.path}.layers[{index}]", layer
        for name, value in shown.items():
            yield self.path_of(name), value
        if isinstance(owner, _OF_KERAS):
            # What Keras holds: objects with state, such as metrics and the functions that `compile` was given.
            for name, value in vars(owner).items():
                if not (name in shown or name in _OF_BOTH or name.startswith("_self_")):
                    yield from _held_in(self.path_of(name), value)
        if is_of_script(type(owner)):
            yield type(owner).__name__, type(owner)


class _Class(Node):
    """The attributes of a class that the script defines."""

    def values(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in vars(self.owner).items()
            if not _is_special(name) and not inspect.isdatadescriptor(value)
        }

    def write(self, name: str, value: Any) -> None:
        if value is Absent.ABSENT:
            delattr(self.owner, name)
        else:
            setattr(self.owner, name, value)

    def children(self) -> Iterator[tuple[str, Any]]:
        for name, value in vars(self.owner).items():
            # Besides methods, these are Python's own, such as the annotations, which it makes when they are asked for.
            if not _is_special(name) or isinstance(value, types.FunctionType):
                yield self.path_of(name), getattr(value, "fget", None) or getattr(value, "__func__", value)
        for base in self.owner.__bases__:
            yield base.__name__, base


class _Cell(Node):
    """A variable of a function that functions inside of it use."""

    def values(self) -> dict[str, Any]:
        try:
            return {"": self.owner.cell_contents}
        except ValueError:
            # It is not bound yet.
            return {}

    def write(self, name: str, value: Any) -> None:
        if value is not Absent.ABSENT:
            self.owner.cell_contents = value

    def path_of(self, name: str) -> str:
        return "<closure>".join(self.path.rsplit("<cell>", 1))


class _Globals(Node):
    """The global names that functions of the script use."""

    is_selection = True

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__(str(owner.get("__name__", "globals")), owner)
        self.names: set[str] = set()

    def values(self) -> dict[str, Any]:
        return {name: self.owner[name] for name in sorted(self.names) if name in self.owner}

    def write(self, name: str, value: Any) -> None:
        if value is Absent.ABSENT:
            self.owner.pop(name, None)
        else:
            self.owner[name] = value

    def path_of(self, name: str) -> str:
        return name


class _Items(Node):
    """The items of a container, or the numbers of an array."""

    def values(self) -> dict[str, Any]:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            return {"": owner.view(np.ndarray) if owner.dtype != object else owner.copy()}
        kind: Any = next((each for each in (dict, set, bytearray) if isinstance(owner, each)), list)
        return {"": kind(owner)}

    def write(self, name: str, value: Any) -> None:
        owner = self.owner
        if isinstance(owner, np.ndarray):
            owner[...] = value
        elif isinstance(owner, bytearray):
            owner[:] = value
        else:
            owner.clear()
            (owner.extend if isinstance(owner, list | deque) else owner.update)(value)

    def children(self) -> Iterator[tuple[str, Any]]:
        # What a long container has is one value, and its items have no identity: a buffer of thousands of samples.
        if not (is_long(self.owner) and is_plain(self.values()[""])):
            yield from _items(self.path, self.owner)


class Stream(Node):
    """A random stream of NumPy or Python."""

    def values(self) -> dict[str, Any]:
        owner = self.owner
        if isinstance(owner, np.random.Generator):
            return {"": owner.bit_generator.state}
        return {
            "": owner.get_state(legacy=False)
            if isinstance(owner, np.random.RandomState)
            else owner.getstate()
        }

    def write(self, name: str, value: Any) -> None:
        if isinstance(self.owner, np.random.Generator):
            self.owner.bit_generator.state = value
        elif isinstance(self.owner, np.random.RandomState):
            self.owner.set_state(value)
        else:
            self.owner.setstate(value)

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class _Drawn(Node):
    """How many items loops that have ended took from a generator."""

    changes_others = True

    def values(self) -> dict[str, Any]:
        return {"": number_drawn(self.owner)}

    def write(self, name: str, value: Any) -> None:
        draw_up_to(self.owner, value)

    def children(self) -> Iterator[tuple[str, Any]]:
        # How far it has come besides cannot be restored, except by drawing from it; the objects that it holds can.
        held = self.owner.gi_frame.f_locals if self.owner.gi_frame is not None else {}
        yield from ((f"{self.path}.<locals>.{name}", each) for name, each in held.items())
        if self.owner.gi_yieldfrom is not None:
            yield f"{self.path}.<from>", self.owner.gi_yieldfrom


class _Own(Node):
    """An object that defines its state, with ``get_state()`` and ``load_state(state)``."""

    def values(self) -> dict[str, Any]:
        return {"": self.owner.get_state()}

    def write(self, name: str, value: Any) -> None:
        self.owner.load_state(value)

    def children(self) -> Iterator[tuple[str, Any]]:
        return iter(())


class Reach:
    """The objects with state that can be reached from some roots.

    Args:
        roots: the objects to begin with, by name.
        without: objects whose state is kept in another way, such as the training data, by path.

    Attributes:
        nodes: the objects, by path.
        variables: the variables, by path.
        objects: everything that was found, by path.
        paths: the path of each of these objects, by its id.
        traced: every `tf.function`, by path.
        seeds: the paths of the states of random generators of Keras and TensorFlow.
    """

    def __init__(self, roots: Mapping[str, Any], without: Mapping[str, Any] | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.variables: dict[str, Any] = {}
        self.traced: dict[str, Any] = {}
        self.seeds: set[str] = set()
        # They also keep the objects, without which their ids would not be theirs.
        self.objects: dict[str, Any] = {}
        self.paths: dict[int, str] = {}
        self._roots = dict(roots)
        for path, value in (without or {}).items():
            self._know(path, value)
        self._without = frozenset(self.paths)
        self._left_out: list[Any] = []
        self.search()

    def streams(self) -> list[Node]:
        """Return the random streams of NumPy and Python."""
        return [node for node in self.nodes.values() if isinstance(node, Stream)]

    def leave_out(self, values: Iterable[Any]) -> None:
        """Leave out objects whose state is kept in another way, and what only they lead to."""
        found = {id(value): value for value in values if id(value) not in self._without}
        if found:
            self._left_out += found.values()
            self._without |= found.keys()
            reached = self.search()
            self.nodes = {
                path: node
                for path, node in self.nodes.items()
                if id(node.owner) in reached or (isinstance(node, _Drawn) and id(node.owner) in self._without)
            }
            self.variables = {path: each for path, each in self.variables.items() if id(each) in reached}

    @contextmanager
    def forgetting(self) -> Iterator[None]:
        """Forget at the end of the block what was found in it."""
        known: Any = (self.nodes, self.variables, self.objects, self.paths, self._roots)
        kept: Any = [dict(each) for each in known]
        try:
            yield
        finally:
            self.nodes, self.variables, self.objects, self.paths, self._roots = kept

    def search(self, further: Mapping[str, Any] | None = None) -> set[int]:
        """Add what can be reached now, the objects with the shortest paths first, and return the ids of all of it.

        Args:
            further: more objects to begin with, by path.
        """
        self._roots |= further or {}
        seen, taken = set(self._without), frozenset(self.objects)
        waiting = deque(self._roots.items())
        while waiting:
            path, value = waiting.popleft()
            if type(value) in SCALARS or id(value) in seen:
                continue
            if isinstance(value, tuple | frozenset):
                waiting.extend(_items(path, value))
                continue
            seen.add(id(value))
            known = self.paths.get(id(value))
            if known is None and path in taken:
                # It has replaced another object since. Which one that was may differ in another process, so it has no
                # path of its own, and is stored as the value of the place that holds it.
                continue
            waiting.extend(self._add(known or path, value))
        return seen - self._without

    def _add(self, path: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Add an object if it has state or leads to some, and return what to follow."""
        if isinstance(value, types.MethodType):
            return [(path, value.__self__), (f"{path}.{value.__func__.__name__}", value.__func__)]
        if isinstance(value, functools.partial):
            arguments = [*_items(f"{path}.args", value.args), *_items(f"{path}.args", value.keywords)]
            return [(path, value.func), *arguments]
        if isinstance(value, types.GeneratorType):
            # Only those that are roots are known: a container that holds another one cannot be stored.
            drawn = _Drawn(self._know(path, value) if path in self._roots else path, value)
            self.nodes[drawn.path] = drawn
            return drawn.children()
        if isinstance(value, keras.random.SeedGenerator | tf.random.Generator):
            self.seeds.add(f"{path}.state")
            return [(f"{path}.state", value.state)]
        if _is_traced(value):
            known = self._know(path, value)
            self.traced[known] = value
            return [(f"{known}.python_function", value.python_function)]
        if isinstance(value, keras.Variable | tf.Variable):
            self.variables[self._know(path, value)] = value
            return ()
        if isinstance(value, types.FunctionType):
            return self._of_function(self._know(path, value), value)
        node = _node(path, value)
        if node is None:
            return ()
        node.path = self._know(path, value)
        return self.nodes.setdefault(node.path, node).children()

    def _know(self, path: str, value: Any) -> str:
        """Return the path of an object, which is a new one if another object has it."""
        while path in self.objects and self.objects[path] is not value:
            path += "'"
        self.paths[id(value)], self.objects[path] = path, value
        return path

    def _of_function(self, path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if is_of_script(function):
                yield f"{path}.<cell>.{name}", cell
            else:
                # A wrapper: what it wraps may be of the script.
                yield from ((f"{path}.<closure>.{name}", each) for each in _Cell("", cell).values().values())
        yield from _items(f"{path}.<defaults>", function.__defaults__ or ())
        yield from _items(f"{path}.<defaults>", function.__kwdefaults__ or {})
        if hasattr(function, "__wrapped__"):
            yield path, function.__wrapped__
        if not is_of_script(function):
            return
        scope = function.__globals__
        node = _Globals(scope)
        node.path = self._know(node.path, scope)
        names = self.nodes.setdefault(node.path, node).names  # type: ignore[attr-defined]
        for name in sorted(_global_names(function.__code__) & scope.keys()):
            names.add(name)
            yield name, scope[name]
        if vars(function):
            attributes = _Attributes(f"{path}.<attributes>", function, is_of_script=True)
            yield from self.nodes.setdefault(attributes.path, attributes).children()


def variables_of(frame: types.FrameType) -> dict[str, Any]:
    """Return what the variables refer to that the code in a frame uses, by name: its own and global ones."""
    names = _global_names(frame.f_code)
    of_module = {name: value for name, value in frame.f_globals.items() if name in names}
    return of_module if frame.f_locals is frame.f_globals else {**of_module, **frame.f_locals}


def _is_special(name: str) -> bool:
    return name[:2] == name[-2:] == "__"


def _node(path: str, value: Any) -> Node | None:
    """Return the node of an object; None if it has no state that is known."""
    if isinstance(value, types.CellType):
        return _Cell(path, value)
    if isinstance(value, STREAMS):
        return Stream(path, value)
    if isinstance(value, type):
        return _Class(path, value) if is_of_script(value) and not issubclass(value, enum.Enum) else None
    kind: Any = type(value)
    if _defines_state(kind) and (is_of_script(kind) or isinstance(value, keras.callbacks.Callback)):
        return _Own(path, value)
    if isinstance(value, _MUTABLE):
        return _Items(path, value)
    if isinstance(value, types.ModuleType | types.GeneratorType | enum.Enum):
        return None
    if isinstance(value, _OF_KERAS) or is_of_script(kind):
        return _Attributes(path, value, is_of_script=is_of_script(kind))
    return None


def is_of_product(value: Any) -> bool:
    """Return whether an object is one of this package, such as the context of the script."""
    return bool(type(value).__module__.split(".")[0] == _PRODUCT)


def is_of_script(value: Any) -> bool:
    """Return whether a class or function is the script's, not that of an installed library."""
    if isinstance(value, types.FunctionType):
        return _is_script_file(value.__code__.co_filename)
    module: str = value.__module__
    if module.split(".")[0] == _PRODUCT:
        return False
    if module == "__main__" or module not in sys.modules:
        return module != "builtins"
    file = getattr(sys.modules[module], "__file__", None)
    return bool(isinstance(file, str) and _is_script_file(file))


def _is_traced(value: Any) -> bool:
    """Return whether a value is a `tf.function`."""
    return bool(type(value).__module__.startswith("tensorflow.") and hasattr(value, "python_function"))


@functools.cache
def _is_script_file(file: str) -> bool:
    return (
        not file.startswith((*_LIBRARIES, "<frozen", "<__array_function__")) and f"/{_PRODUCT}/" not in file
    )


@functools.cache
def _defines_state(kind: Any) -> bool:
    own = [getattr(kind, name, None) for name in ("get_state", "load_state")]
    # The product's own callback has both, which return and restore nothing.
    return all(callable(each) and each.__module__ != f"{_PRODUCT}.keras.callbacks.callback" for each in own)


@functools.cache
def _slots(kind: Any) -> tuple[str, ...]:
    found = [vars(base).get("__slots__", ()) for base in kind.__mro__ if is_of_script(base)]
    names = [name for slots in found for name in ([slots] if isinstance(slots, str) else slots)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


@functools.cache
def _stored_by_keras(kind: Any) -> frozenset[str]:
    """Return the names of the attributes that the code of Keras and TensorFlow sets on objects of a class."""
    return frozenset({"_lock"}).union(*map(_stored_by, kind.__mro__))


@functools.cache
def _stored_by(kind: Any) -> frozenset[str]:
    if kind.__module__.split(".")[0] not in ("keras", "tensorflow"):
        return frozenset()
    functions = [inspect.unwrap(member) for member in vars(kind).values() if inspect.isfunction(member)]
    steps = [step for function in functions for step in dis.get_instructions(function)]
    return frozenset(str(step.argval) for step in steps if step.opname == "STORE_ATTR")


@functools.cache
def _global_names(code: types.CodeType) -> frozenset[str]:
    """Return the names in a function that may be global, also in the functions that it defines."""
    inner = [_global_names(each) for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(code.co_names).union(*inner)


def is_plain(value: Any, *, deep: bool = True) -> bool:
    """Return whether a value consists of numbers, text and arrays only.

    Args:
        value: the value.
        deep: containers and arrays in it are allowed too.
    """
    kind = type(value)
    if kind in SCALARS or isinstance(value, np.generic):
        return True
    if kind is np.ndarray:
        return bool(value.dtype != object)
    if kind is dict:
        return is_plain(list(value), deep=deep) and is_plain(list(value.values()), deep=deep)
    if kind not in (list, tuple, set, frozenset, deque):
        return False
    kinds = set(map(type, value))
    if kinds <= SCALARS:
        return True
    return (deep or kinds.isdisjoint(_MUTABLE)) and all(is_plain(item, deep=deep) for item in value)


def _holds_objects(value: Any) -> bool:
    return isinstance(value, (*_MUTABLE, tuple)) and not is_plain(value)


def is_long(value: Any) -> bool:
    """Return whether a container has so many items that they are no objects of their own."""
    if isinstance(value, np.ndarray):
        return value.size > _MANY
    return isinstance(value, _MUTABLE) and len(value) > _MANY


def _items(path: str, container: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(container, dict):
        for key, value in container.items():
            yield f"{path}[{key!r}]", value
            if type(key) not in SCALARS:
                yield f"{path}<key {key!r}>", key
    elif isinstance(container, list | tuple | deque):
        for index, value in enumerate(container):
            yield f"{path}[{index}]", value
    elif isinstance(container, np.ndarray) and container.dtype == object:
        yield from _items(path, list(container.flat))


def _held_in(path: str, value: Any, depth: int = 2) -> Iterator[tuple[str, Any]]:
    """Yield what has state of a value of Keras and of the items of its containers, by path."""
    if isinstance(value, _HELD):
        yield path, value
    elif depth and isinstance(value, list | tuple | dict):
        for inner, item in _items(path, value):
            yield from _held_in(inner, item, depth - 1)
