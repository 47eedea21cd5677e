"""Random ops of traced functions with a state that can be saved.

A kernel of `tf.random.normal` and its like keeps a counter that cannot be read or set. It draws the same numbers as a
`tf.random.Generator` that begins with its seeds: both reserve 256 samples of the Philox algorithm for each number, and
compute the numbers in the same way. So, while such an op is traced, it is replaced by the stateless op that follows a
generator of ours, whose state is a variable. The numbers are the same, bit for bit. The seeds of other ops do not
change: TensorFlow counts the seeds of a graph, not its ops.

TensorFlow has a kernel, and a counter, for each place of an op in the graph that it runs. A function that another one
calls is copied into it at each call. An op is replaced only where it surely has one place: in the function that the
script calls, its branches and loops, and in the function that Keras calls once inside its own. In a `tf.while_loop`
whose iterations overlap, a kernel draws in an order that varies between runs; the generator draws in that of the
iterations.

One difference is left: TensorFlow copies a function that is called while a `tf.GradientTape` of eager code records.
A function that is called both inside and outside of such a tape has two counters in TensorFlow, and one here; so has
the step of a model that is trained both by `fit` and by `train_on_batch`.
"""

from __future__ import annotations

import functools
import gc
import math
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.keras.private_api import (
    export_with_variables,
    function_being_traced,
    graphs_being_traced,
    instance_of,
    is_control_flow,
    lifted_with,
    noticed_kernel_resets,
    replaced_random_ops,
    step_functions,
    untracked_variable,
    without_replacement,
)

_PHILOX = 1
#: The function that Keras calls, once, inside of its other one.
_KERAS_STEP, _KERAS_STEPS = "one_step_on_data", "multi_step_on_iterator"


@dataclass(eq=False)
class Trace:
    """A trace of a function, with the generators of its random ops.

    Attributes:
        number: counts the traces of this process that have random ops.
        key: identifies it in checkpoints, also in later processes, which take it over.
        group: the same of its function: the key of the first trace.
        name: the name of the function.
        function: the `tf.function`.
        signature: its arguments, as text that is the same in another process.
        objects: ids of the arguments that are neither tensors nor plain values.
        ops: the types of the random ops, in order.
        generators: theirs.
        seeds: the states with which they began.
        first: their states before this process ran them.
        before: their states when the training began; shorter if ops were traced since.
        is_used: whether the training had used it in an earlier process.
        saved: the states that are assigned to generators as they are made.
    """

    number: int
    key: str
    group: str
    name: str
    function: weakref.ref[Any]
    signature: str
    objects: tuple[int, ...]
    ops: list[str] = field(default_factory=list)
    generators: list[tf.random.Generator] = field(default_factory=list)
    seeds: list[list[int]] = field(default_factory=list)
    first: list[list[int]] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    is_used: bool = False
    saved: Sequence[Sequence[int]] = ()

    def add(self, op: str, seed: int, seed2: int) -> tf.random.Generator:
        """Return the generator of the next random op."""
        index = len(self.generators)
        state = [0, seed2, seed]
        first = self.saved[index] if index < len(self.saved) else state
        generator = tf.random.Generator.from_state(untracked_variable(first, tf.int64), alg="philox")
        self.ops.append(op)
        self.generators.append(generator)
        self.seeds.append(state)
        self.first.append(list(first))
        return generator

    @property
    def is_run(self) -> bool:
        """Whether this process has run it."""
        return self.states() != self.first

    def states(self) -> list[list[int]]:
        """Return the states of the generators."""
        # Also while a function is traced.
        with tf.init_scope():
            return [generator.state.numpy().tolist() for generator in self.generators]

    def assign(self, entry: Mapping[str, Any]) -> None:
        """Restore the states of a trace of the same function, also of generators that are made later."""
        self.key, self.group = entry["key"], entry["group"]
        self.saved, self.is_used = entry["states"], entry["used"]
        self.assign_states(self.saved)
        self.before = self.first = self.states()

    def assign_states(self, states: Sequence[Sequence[int]]) -> None:
        """Assign the states of generators, in order; there may be more or fewer of them."""
        with tf.init_scope():
            for generator, state in zip(self.generators, states, strict=False):
                generator.state.assign(state)

    def reset(self) -> None:
        """Begin anew."""
        self.saved, self.first = (), list(self.seeds)
        self.assign_states(self.seeds)

    def describe(self) -> dict[str, Any]:
        """Return the entry of a checkpoint, as JSON values."""
        states = self.states()
        return {
            "key": self.key,
            "group": self.group,
            "name": self.name,
            "signature": self.signature,
            "states": states,
            # A function may be traced twice for its first call, and the first trace is never run.
            "used": self.is_used or states != (self.before or self.seeds[: len(states)]),
        }


@dataclass(frozen=True)
class _Named:
    """A tensor of a graph; the tensor itself would keep its graph."""

    name: str


@dataclass
class _Waiting:
    """Saved states of functions that this process has not traced yet.

    Attributes:
        entries: of the traces.
        known: ids of the objects that existed when they were restored; None if that does not matter.
        groups: of the entries, also of those that were taken.
    """

    entries: list[dict[str, Any]]
    known: frozenset[int] | None = None
    groups: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.groups = frozenset(entry["group"] for entry in self.entries)

    def assign(self, traces: Sequence[Trace]) -> None:
        """Restore the traces that this process has, and remove their entries."""
        by_key = {entry["key"]: entry for entry in self.entries}
        found = [trace for trace in traces if trace.key in by_key]
        for trace in found:
            trace.assign(by_key[trace.key])
            self.entries.remove(by_key[trace.key])
        for trace in traces:
            if trace not in found and (entry := self.take(trace, traces)) is not None:
                trace.assign(entry)

    def take(self, trace: Trace, others: Sequence[Trace]) -> dict[str, Any] | None:
        """Return the entry of a trace, and remove it; None if there is none.

        Several functions may have the same name, so first the function is found to which a trace belongs. One that the
        interrupted training has used comes first. Another one existed before: it is not a function that the script has
        made since, or that of a model that it has made since.

        Args:
            trace: a new trace.
            others: the other traces of this process.
        """
        of_function = (each.group for each in [trace, *others] if each.function() is trace.function())
        group = next((group for group in of_function if group in self.groups), None)
        trace.group = group or self._group_of(trace, others) or trace.group
        found = next(
            (
                entry
                for entry in self.entries
                if entry["group"] == trace.group and entry["signature"] == trace.signature
            ),
            None,
        )
        if found is not None:
            self.entries.remove(found)
        if not self.entries:
            self.known = None
        return found

    def _group_of(self, trace: Trace, others: Sequence[Trace]) -> str | None:
        known = {each.group for each in others if each is not trace}
        free = [
            entry for entry in self.entries if entry["name"] == trace.name and entry["group"] not in known
        ]
        for used in (True, False):
            fitting = [entry for entry in free if entry["used"] or not used]
            fitting.sort(key=lambda entry: entry["signature"] != trace.signature)
            if fitting and (used or self._existed(_ids_of(trace))):
                group: str = fitting[0]["group"]
                return group
        return None

    def _existed(self, ids: set[int]) -> bool:
        """Return whether objects existed when the entries were restored."""
        missing = set() if self.known is None else ids - self.known
        # The collector does not list what was frozen before a fork, then or now.
        return not missing or missing.isdisjoint(map(id, gc.get_objects()))


class RandomCounters:
    """The generators of this process's traced functions."""

    def __init__(self) -> None:
        self._traces: weakref.WeakKeyDictionary[Any, Trace] = weakref.WeakKeyDictionary()
        self._of_function: weakref.WeakKeyDictionary[Any, _Waiting] = weakref.WeakKeyDictionary()
        self._others = _Waiting([])
        self._suspended = threading.local()
        self._installed: ExitStack | None = None
        self._originals: weakref.WeakKeyDictionary[Any, dict[str, functools.partial[Any]]] = (
            weakref.WeakKeyDictionary()
        )
        self._num_traces = 0
        self._process = ""

    @property
    def is_installed(self) -> bool:
        """Whether random ops are replaced while they are traced."""
        return self._installed is not None

    def install(self) -> None:
        """Replace random ops from now on; a second call does nothing."""
        if self._installed is not None:
            return
        # Not before: a process may be forked after the import.
        self._process = secrets.token_hex(8)
        # It stays: a function that was traced may be exported after the context is closed.
        _export_with_states()
        with ExitStack() as stack:
            stack.enter_context(without_replacement(self.suspended))
            stack.enter_context(noticed_kernel_resets(self._reset))
            stack.enter_context(lifted_with(self._original_of))
            stack.enter_context(replaced_random_ops({name: self._replacing(name) for name in _OPS}))
            self._installed = stack.pop_all()

    def remove(self) -> None:
        """Replace nothing any more; functions that were traced keep their generators."""
        if self._installed is not None:
            self._installed.close()
            self._installed = None
        self._of_function.clear()
        self._others = _Waiting([])

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Replace nothing in this thread, inside the block."""
        self._suspended.depth = getattr(self._suspended, "depth", 0) + 1
        try:
            yield
        finally:
            self._suspended.depth -= 1

    def counters(self) -> list[tuple[str, tf.Variable]]:
        """Return the states of all generators with their names, in the order in which they were made."""
        return [
            (f"{trace.name}/{trace.number}/{op}/{index}", generator.state)
            for trace in self._in_order()
            for index, (op, generator) in enumerate(zip(trace.ops, trace.generators, strict=True))
        ]

    def variables(self) -> list[tf.Variable]:
        """Return the states of all generators."""
        return [variable for _, variable in self.counters()]

    def begin_training(self) -> None:
        """Record the states with which a training begins: what it uses is then known."""
        for trace in self._in_order():
            trace.before, trace.is_used = trace.states(), False
        for entry in self._others.entries:
            entry["used"] = False

    def get_state(self, model: Any = None) -> dict[str, Any]:
        """Return the states as JSON values, also those that wait for a function to be traced.

        Args:
            model: the states of its own steps are apart from those of other functions.
        """
        steps = {} if model is None else step_functions(model)
        of_steps = {
            name: [*self._entries_of(function), *self._waiting_for(function)]
            for name, function in steps.items()
        }
        own = set(map(id, steps.values()))
        others = [trace.describe() for trace in self._newest() if id(trace.function()) not in own]
        return {
            "steps": {name: entries for name, entries in of_steps.items() if entries},
            "others": [*others, *self._others.entries],
        }

    def restore(self, state: Mapping[str, Any] | None, model: Any = None, *, is_end: bool = False) -> None:
        """Restore states that `get_state` returned; those of functions that are not traced yet wait for their trace.

        Args:
            state: the states; None for a checkpoint without them.
            model: the model whose steps have states apart.
            is_end: the training in which they were saved is finished.
        """
        if state is None:
            return
        entries = [{**entry, "used": entry["used"] and not is_end} for entry in state["others"]]
        of_steps = {name: [dict(entry) for entry in found] for name, found in state["steps"].items()}
        own = set()
        for name, found in of_steps.items():
            # Keras keeps the function until the model is compiled again.
            getattr(model, f"make_{name}_function")()
            function = step_functions(model).get(name)
            if function is not None:
                own.add(id(function))
                self._of_function[function] = waiting = _Waiting(found)
                waiting.assign([trace for trace in self._newest() if trace.function() is function])
        self._others = _Waiting(entries)
        self._others.assign([trace for trace in self._newest() if id(trace.function()) not in own])
        if entries:
            self._others.known = frozenset(map(id, gc.get_objects()))

    def _replacing(self, name: str) -> Callable[..., Any]:
        kind = _OPS[name]

        def replace(original: Callable[..., Any], **options: Any) -> Any:
            seed, seed2 = options.get("seed") or 0, options.get("seed2") or 0
            functions = self._functions_being_traced()
            # Without seeds, a kernel takes them from the system.
            if functions is None or min(seed, seed2) < 0 or seed == seed2 == 0:
                return original(**options)
            trace = self._traces.get(functions[0]) or self._begin_trace(functions)
            if trace is None:
                return original(**options)
            del options["seed"], options["seed2"]
            generator = trace.add(name, seed, seed2)
            for graph in functions:
                # Its variable lives as long as one of the graphs that use it.
                _used.setdefault(graph, {})[generator] = trace.seeds[-1]
            tensor = kind(generator, **options)
            arguments = {
                key: _Named(value.name) if tf.is_tensor(value) else value for key, value in options.items()
            }
            here = self._originals.setdefault(tensor.graph, {})
            here[tensor.op.name] = functools.partial(original, **arguments, seed=seed, seed2=seed2)
            return tensor

        return replace

    def _original_of(self, op: Any) -> Any:
        """Return the tensor of the op that an op has replaced, added to the same graph; None if it has replaced none.

        A variable that a function makes, at its first call, gets its first value from a kernel of its own.
        """
        make = self._originals.get(op.graph, {}).get(op.name)
        if make is None:
            return None
        with op.graph.as_default(), self.suspended():
            arguments = {
                key: op.graph.get_tensor_by_name(value.name) if isinstance(value, _Named) else value
                for key, value in make.keywords.items()
            }
            return make.func(**{**arguments, "name": None})

    def _functions_being_traced(self) -> list[Any] | None:
        """Return the graphs of the functions to which a random op belongs; None if it is not replaced."""
        if getattr(self._suspended, "depth", 0):
            return None
        graphs = graphs_being_traced()
        if graphs is None:
            return None
        functions = [graph for graph in graphs if not is_control_flow(graph)]
        names = [graph.name for graph in functions]
        if len(functions) != 1 and names != [_KERAS_STEP, _KERAS_STEPS]:
            return None
        return functions

    def _begin_trace(self, functions: Sequence[Any]) -> Trace | None:
        """Return the record of a trace; None if it is not that of a `tf.function`."""
        function, arguments = function_being_traced(len(functions) - 1)
        if function is None:
            return None
        graph = functions[-1]
        self._num_traces += 1
        key = f"{self._process}-{self._num_traces}"
        others = self._in_order()[::-1]
        same = next((each for each in others if each.function() is function), None)
        trace = Trace(
            self._num_traces,
            key,
            key if same is None else same.group,
            graph.name,
            weakref.ref(function),
            _signature_of(graph),
            tuple(id(argument) for argument in arguments if _is_object(argument)),
        )
        # A function is traced a second time for its first call if it has made variables, and when it is exported.
        twin = next((each for each in others if _is_same(each, trace)), None)
        if twin is not None:
            # A trace that is exported, after the function was run, has a state of its own.
            if not twin.is_run:
                trace.key, trace.saved, trace.is_used = twin.key, twin.saved, twin.is_used
        elif (entry := self._of_function.get(function, self._others).take(trace, others)) is not None:
            trace.assign(entry)
        self._traces[functions[0]] = trace
        return trace

    def _in_order(self) -> list[Trace]:
        return sorted(self._traces.values(), key=lambda trace: trace.number)

    def _newest(self) -> list[Trace]:
        """Return the traces in order, of the same function for the same arguments only the newest that was run."""
        found: list[Trace] = []
        for trace in self._in_order():
            same = next((each for each in found if _is_same(each, trace)), None)
            if same is None or not same.is_run or trace.is_run:
                found = [*(each for each in found if each is not same), trace]
        return found

    def _entries_of(self, function: Any) -> list[dict[str, Any]]:
        return [trace.describe() for trace in self._newest() if trace.function() is function]

    def _waiting_for(self, function: Any) -> list[dict[str, Any]]:
        waiting = self._of_function.get(function)
        return [] if waiting is None else waiting.entries

    def _reset(self) -> None:
        self._of_function.clear()
        self._others = _Waiting([])
        for trace in self._in_order():
            trace.reset()


_COMPOSITE = tf.data.Iterator | tf.data.Dataset

#: Those of this process.
random_counters = RandomCounters()


#: The generators that the graph of a function uses, with the states with which they began.
_used: weakref.WeakKeyDictionary[Any, dict[tf.random.Generator, list[int]]] = weakref.WeakKeyDictionary()


@functools.cache
def _export_with_states() -> None:
    """Let every SavedModel contain the states of the generators that its functions use."""

    def states() -> Iterator[tf.Variable]:
        for generators in _used.values():
            yield from (generator.state for generator in generators)

    @contextmanager
    def exporting() -> Iterator[None]:
        begins = {generator: state for found in _used.values() for generator, state in found.items()}
        now = {generator: generator.state.numpy() for generator in begins}
        # A model that is loaded draws from the begin, as it does with kernels.
        for generator, state in begins.items():
            generator.state.assign(state)
        try:
            yield
        finally:
            for generator, state in now.items():
                generator.state.assign(state)

    export_with_variables(states, exporting)


def _is_same(one: Trace, other: Trace) -> bool:
    """Return whether two traces are of the same function with the same arguments."""
    function = one.function()
    return (
        function is not None
        and function is other.function()
        and (one.signature, one.objects) == (other.signature, other.objects)
    )


def _ids_of(trace: Trace) -> set[int]:
    function = trace.function()
    return {*trace.objects, *([] if function is None else [id(instance_of(function))])}


def _signature_of(graph: Any) -> str:
    """Return the arguments of a traced function as text, the same in another process."""
    arguments = tf.nest.flatten(graph.structured_input_signature)
    return ", ".join(repr(each) if _is_described(each) else "object" for each in arguments)


def _is_described(argument: Any) -> bool:
    return argument is None or isinstance(argument, tf.TypeSpec | bool | int | float | str | bytes)


def _is_object(argument: Any) -> bool:
    """Return whether TensorFlow traces a function for this very argument, and not for all like it."""
    is_tensor = tf.is_tensor(argument) or isinstance(argument, np.ndarray | np.generic | tf.Variable)
    return not is_tensor and not _is_described(argument) and not isinstance(argument, _COMPOSITE)


def _skip(generator: tf.random.Generator, shape: Any) -> dict[str, Any]:
    """Let a generator draw numbers for a shape, and return the arguments of the op that computes them."""
    # Few ops: a step may have many of these, and tracing each op takes time.
    known = tf.get_static_value(shape)
    count = tf.reduce_prod(tf.cast(shape, tf.int64)) if known is None else math.prod(known.tolist())
    counter, key = tf.split(tf.bitcast(generator.skip(count), tf.uint64), [2, 1])
    return {"shape": shape, "counter": counter, "key": key, "alg": _PHILOX}


def _normal(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessRandomNormalV2(**_skip(generator, shape), dtype=dtype, name=name)


def _truncated_normal(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessTruncatedNormalV2(**_skip(generator, shape), dtype=dtype, name=name)


def _uniform(generator: tf.random.Generator, shape: Any, dtype: Any, name: str | None) -> Any:
    return tf.raw_ops.StatelessRandomUniformV2(**_skip(generator, shape), dtype=dtype, name=name)


def _uniform_int(
    generator: tf.random.Generator, shape: Any, minval: Any, maxval: Any, name: str | None
) -> Any:
    return tf.raw_ops.StatelessRandomUniformIntV2(
        **_skip(generator, shape), minval=minval, maxval=maxval, name=name
    )


def _gamma(generator: tf.random.Generator, shape: Any, alpha: Any, name: str | None) -> Any:
    alpha = tf.convert_to_tensor(alpha)
    shape = tf.concat([shape, tf.shape(alpha, out_type=tf.as_dtype(shape.dtype))], 0)
    return tf.raw_ops.StatelessRandomGammaV3(**_skip(generator, shape), alpha=alpha, name=name)


#: What replaces an op, by the name of the function that adds it. The others have no form that begins at a counter.
_OPS: Mapping[str, Callable[..., Any]] = {
    "random_gamma": _gamma,
    "random_standard_normal": _normal,
    "random_uniform": _uniform,
    "random_uniform_int": _uniform_int,
    "truncated_normal": _truncated_normal,
}
