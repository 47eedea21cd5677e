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
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from det_keras.keras.private_api.random_ops import (
    export_with_variables,
    function_being_traced,
    graphs_being_traced,
    is_control_flow,
    lifted_with,
    noticed_kernel_resets,
    replaced_random_ops,
    without_replacement,
)
from det_keras.keras.private_api.steps import step_functions
from det_keras.keras.random_ops.kernels import STATELESS_OPS
from det_keras.keras.random_ops.traces import Trace, Waiting, is_object, is_same, signature_of

#: The function that Keras calls, once, inside of its other one.
_KERAS_STEP, _KERAS_STEPS = "one_step_on_data", "multi_step_on_iterator"


@dataclass(frozen=True)
class _Named:
    """A tensor of a graph; the tensor itself would keep its graph."""

    name: str


class RandomCounters:
    """The generators of this process's traced functions."""

    def __init__(self) -> None:
        self._traces: weakref.WeakKeyDictionary[Any, Trace] = weakref.WeakKeyDictionary()
        self._of_function: weakref.WeakKeyDictionary[Any, Waiting] = weakref.WeakKeyDictionary()
        self._others = Waiting([])
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
            stack.enter_context(replaced_random_ops({name: self._replacing(name) for name in STATELESS_OPS}))
            self._installed = stack.pop_all()

    def remove(self) -> None:
        """Replace nothing any more; functions that were traced keep their generators."""
        if self._installed is not None:
            self._installed.close()
            self._installed = None
        self._of_function.clear()
        self._others = Waiting([])

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
                self._of_function[function] = waiting = Waiting(found)
                waiting.assign([trace for trace in self._newest() if trace.function() is function])
        self._others = Waiting(entries)
        self._others.assign([trace for trace in self._newest() if id(trace.function()) not in own])
        if entries:
            self._others.known = frozenset(map(id, gc.get_objects()))

    def _replacing(self, name: str) -> Callable[..., Any]:
        kind = STATELESS_OPS[name]

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
            signature_of(graph),
            tuple(id(argument) for argument in arguments if is_object(argument)),
        )
        # A function is traced a second time for its first call if it has made variables, and when it is exported.
        twin = next((each for each in others if is_same(each, trace)), None)
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
            same = next((each for each in found if is_same(each, trace)), None)
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
        self._others = Waiting([])
        for trace in self._in_order():
            trace.reset()


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
