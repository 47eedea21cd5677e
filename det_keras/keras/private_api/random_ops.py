"""Private names of Keras and TensorFlow for random numbers: their states, and the ops that draw them in functions."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import tensorflow as tf

# Keras 3.12 to 3.15.
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.random.seed_generator import global_seed_generator

# TensorFlow 2.17 to 2.21.
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper
from tensorflow.python.eager import context as tf_context
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util, gen_random_ops
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model import save as saved_model
from tensorflow.python.saved_model.save import _AugmentedGraphView as AugmentedGraphView
from tensorflow.python.trackable.base import TrackableReference

from det_keras.keras.private_api.steps import is_function

_FUNCTION_FILE = Function._initialize.__code__.co_filename


@contextmanager
def replaced_random_ops(
    replacements: Mapping[str, Callable[..., Any]],
) -> Iterator[None]:
    """Replace the Python functions that add stateful random ops to a graph, inside the block; `tf.random` calls them.

    Args:
        replacements: by the name of a function, such as ``random_uniform``: receives the original function and its
            arguments by name, and returns the tensor.
    """
    originals = {name: getattr(gen_random_ops, name) for name in replacements}

    def replaced(name: str) -> Callable[..., Any]:
        original = originals[name]
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            if tf.executing_eagerly():
                return original(*args, **options)
            bound = signature.bind(*args, **options)
            bound.apply_defaults()
            return replacements[name](original, **bound.arguments)

        return call

    for name in replacements:
        setattr(gen_random_ops, name, replaced(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(gen_random_ops, name, original)


def graphs_being_traced() -> list[Any] | None:
    """Return the graphs that are being traced, the innermost first; None if one of them is not a function's.

    It is None as well in eager mode, in a graph that XLA compiles, and under a strategy.
    """
    graph = tf.compat.v1.get_default_graph()
    if (
        tf.executing_eagerly()
        or control_flow_util.GraphOrParentsInXlaContext(graph)
        or tf.distribute.has_strategy()
    ):
        return None
    found = []
    while graph.building_function:
        # Keras computes the shapes of layers in graphs that are never run.
        if not isinstance(graph, FuncGraph) or graph.name.startswith("scratch_graph"):
            return None
        found.append(graph)
        graph = graph.outer_graph
    return found or None


def is_control_flow(graph: Any) -> bool:
    """Return whether a graph is a branch of a `tf.cond` or a part of a `tf.while_loop`."""
    return isinstance(graph, ControlFlowFuncGraph)


def function_being_traced(depth: int) -> tuple[Any, list[Any]]:
    """Return a `tf.function` that is being traced in this thread, and its arguments; None if there are fewer.

    Args:
        depth: 0 for the innermost one, 1 for the one that calls it, and so on.
    """
    found: list[Any] = []
    arguments: list[Any] = []
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self") if frame.f_code.co_filename == _FUNCTION_FILE else None
        if is_function(owner):
            if not found or found[-1] is not owner:
                found.append(owner)
            if len(found) > depth + 1:
                break
            # The last one is that of the call itself.
            names = ("args", "kwds", "kwargs")
            arguments = tf.nest.flatten([frame.f_locals[name] for name in names if name in frame.f_locals])
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return (found[depth], arguments) if depth < len(found) else (None, [])


def untracked_variable(value: Any, dtype: tf.DType) -> tf.Variable:
    """Return a new variable, also while a function is traced: `tf.function` refuses those of `tf.Variable` then."""
    with tf.init_scope():
        return ResourceVariable(value, dtype=dtype, trainable=False)


def instance_of(function: Any) -> Any:
    """Return the object of whose class a `tf.function` is a method; the function itself if it is none.

    TensorFlow makes the function of an object when it is first called.
    """
    # `__wrapped__` is the function that AutoGraph has made of it, while it is traced.
    method = getattr(function.python_function, "__original_wrapped__", None)
    target = getattr(getattr(method, "__self__", None), "target", None)
    return function if target is None else target


@contextmanager
def without_replacement(suspended: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Enter a context manager, inside the block, for each trace that is not one of a step.

    Those are functions of tf.data, bodies of `tf.vectorized_map`, which are traced as one iteration and run as all,
    and Keras's steps that a loop has several times, each with kernels of its own.

    Args:
        suspended: returns the context manager.
    """
    wrapper_init, pfor, make_function = (
        StructuredFunctionWrapper.__init__,
        parallel_for._pfor_impl,
        TensorFlowTrainer._make_function,
    )

    def inside(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **options: Any) -> Any:
            with suspended():
                return original(*args, **options)

        return call

    def make(self: Any, step_function: Any) -> Any:
        return make_function(
            self, inside(step_function) if self.unrolled_steps_per_execution > 1 else step_function
        )

    StructuredFunctionWrapper.__init__ = inside(wrapper_init)
    parallel_for._pfor_impl = inside(pfor)
    TensorFlowTrainer._make_function = make
    try:
        yield
    finally:
        StructuredFunctionWrapper.__init__ = wrapper_init
        parallel_for._pfor_impl = pfor
        TensorFlowTrainer._make_function = make_function


@contextmanager
def lifted_with(original_of: Callable[[Any], Any]) -> Iterator[None]:
    """Use other ops for the first values of variables, inside the block.

    TensorFlow copies the ops that compute the first value of a variable out of the function in which it was made.

    Args:
        original_of: receives an op and returns the tensor of the one in its place, which it adds to the same graph;
            None for none.
    """
    original = lift_to_graph.lift_to_graph

    @functools.wraps(original)
    def lift(tensors: Any, *args: Any, **options: Any) -> Any:
        replaced = {}
        seen: set[str] = set()
        waiting = [
            tensor.op for tensor in tensors if tf.is_tensor(tensor) and not isinstance(tensor, tf.Variable)
        ]
        while waiting:
            op = waiting.pop()
            if op.name in seen:
                continue
            seen.add(op.name)
            if (tensor := original_of(op)) is None:
                waiting.extend(each.op for each in op.inputs)
                continue
            (output,) = op.outputs
            replaced[output.ref()] = tensor
            # TensorFlow will trace the function again: this trace is never run.
            for consumer in output.consumers():
                for index, given in enumerate(consumer.inputs):
                    if given is output:
                        consumer._update_input(index, tensor)
        ways = [(each, replaced.get(each.ref(), each) if tf.is_tensor(each) else each) for each in tensors]
        lifted = original([tensor for _, tensor in ways], *args, **options)
        for asked, tensor in ways:
            lifted[asked] = lifted[tensor]
        return lifted

    lift_to_graph.lift_to_graph = lift
    try:
        yield
    finally:
        lift_to_graph.lift_to_graph = original


@contextmanager
def noticed_kernel_resets(notice: Callable[[], None]) -> Iterator[None]:
    """Call `notice` inside the block when TensorFlow has discarded all kernels, and their counters with them.

    `tf.random.set_seed` and `keras.utils.clear_session` do so.
    """
    original = pywrap_tfe.TFE_ContextClearCaches

    def clear(*args: Any) -> None:
        original(*args)
        notice()

    pywrap_tfe.TFE_ContextClearCaches = clear
    try:
        yield
    finally:
        pywrap_tfe.TFE_ContextClearCaches = original


def export_with_variables(
    variables: Callable[[], Iterable[tf.Variable]],
    exporting: Callable[[], AbstractContextManager[None]],
) -> None:
    """Let every SavedModel contain variables that only its functions use, from now on; TensorFlow refuses those.

    Args:
        variables: returns the variables of which a SavedModel contains those that it uses.
        exporting: returns a context manager, in which a model is saved.
    """
    list_children, save = AugmentedGraphView.list_children, saved_model.save_and_return_nodes

    def children(self: Any, item: Any) -> Iterator[Any]:
        yield from list_children(self, item)
        if item is not self.root:
            return
        # A loaded model restores what its root has; a loaded function has no variables of its own.
        by_handle = {id(variable.handle): variable for variable in variables()}
        known = self._children_cache[item]
        for function in _functions_below(item, lambda item: list_children(self, item)):
            for captured, _ in function.graph.captures:
                variable = by_handle.pop(id(captured), None)
                if variable is not None and not any(variable is child for child in known.values()):
                    name = f"function_variable_{len(known)}"
                    known[name] = variable
                    yield TrackableReference(name, variable)

    @functools.wraps(save)
    def save_inside(*args: Any, **options: Any) -> Any:
        with exporting():
            return save(*args, **options)

    AugmentedGraphView.list_children = children
    saved_model.save_and_return_nodes = save_inside


def _functions_below(root: Any, children: Callable[[Any], Iterator[Any]]) -> list[Any]:
    """Return the traced functions that a root has, directly or in its children."""
    found, seen, waiting = [], {id(root)}, [root]
    while waiting:
        for reference in children(waiting.pop()):
            if id(reference.ref) not in seen:
                seen.add(id(reference.ref))
                waiting.append(reference.ref)
                if isinstance(reference.ref, ConcreteFunction):
                    found.append(reference.ref)
    return found


def existing_keras_seed_generator() -> Any:
    """Return Keras's global seed generator, None if there is none yet: creating it would draw from Python's stream."""
    return global_state.get_global_attribute("global_seed_generator")


def keras_seed_generator() -> Any:
    """Return Keras's global seed generator, which is made by the first call."""
    return global_seed_generator()


def eager_random_stream() -> Any:
    """Return the Python generator from which eager TensorFlow draws the seeds of its ops, None if there is none."""
    return getattr(tf_context.context(), "_rng", None)
