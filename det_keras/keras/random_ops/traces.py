"""A trace of a function with random ops, and the states that wait for a function to be traced in another process."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.keras.private_api.random_ops import instance_of, untracked_variable

_COMPOSITE = tf.data.Iterator | tf.data.Dataset


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


@dataclass
class Waiting:
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
        # An earlier run in this process may have the same key: the newest is that of this run.
        newest = {trace.key: trace for trace in traces}
        found = [entry for entry in self.entries if entry["key"] in newest]
        for entry in found:
            newest[entry["key"]].assign(entry)
            self.entries.remove(entry)
        known = {entry["key"] for entry in found}
        for trace in traces:
            if trace.key not in known and (other := self.take(trace, traces)) is not None:
                trace.assign(other)

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


def is_same(one: Trace, other: Trace) -> bool:
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


def signature_of(graph: Any) -> str:
    """Return the arguments of a traced function as text, the same in another process."""
    arguments = tf.nest.flatten(graph.structured_input_signature)
    return ", ".join(repr(each) if _is_described(each) else "object" for each in arguments)


def _is_described(argument: Any) -> bool:
    return argument is None or isinstance(argument, tf.TypeSpec | bool | int | float | str | bytes)


def is_object(argument: Any) -> bool:
    """Return whether TensorFlow traces a function for this very argument, and not for all like it."""
    is_tensor = tf.is_tensor(argument) or isinstance(argument, np.ndarray | np.generic | tf.Variable)
    return not is_tensor and not _is_described(argument) and not isinstance(argument, _COMPOSITE)
