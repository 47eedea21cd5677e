"""Private names of Keras and TensorFlow for the steps of a model: their functions, variables, losses and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

# Keras 3.12 to 3.15.
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.losses import loss as keras_loss

# TensorFlow 2.17 to 2.21.
from tensorflow.python.eager import context as tf_context
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import config as tf_config

# On the handle of a variable, which traces refer to.
_UNSAVED = "_det_unsaved"


def traced_names() -> frozenset[str]:
    """Return the names of all functions that TensorFlow has traced in this process so far."""
    return frozenset(tf_context.context().list_function_names())


def ops_of(name: str) -> set[str]:
    """Return the types of the ops of a traced function, without those of the functions that it calls."""
    return {node.op for node in tf_context.context().get_function_def(name).node_def}


def variables_trained_by(optimizer: Any) -> list[Any]:
    """Return the variables for which a built optimizer keeps its state, in the order in which it was given them."""
    return list(optimizer._trainable_variables)


def learning_rate(optimizer: Any) -> Any:
    """Return the present learning rate of an optimizer; None if a function of the script computes it.

    Such a function is called in the step only: it may have effects.
    """
    rate = optimizer._learning_rate
    is_schedule = isinstance(rate, keras.optimizers.schedules.LearningRateSchedule)
    return optimizer.learning_rate if is_schedule or isinstance(rate, KerasVariable) else None


def is_function(value: Any) -> bool:
    """Return whether a value is what `tf.function` returns."""
    return type(value) is Function


def step_functions(model: Any) -> dict[str, Any]:
    """Return the `tf.function`s that Keras has made for the steps of a model, by ``train``, ``test``, ``predict``."""
    found = {}
    for name in ("train", "test", "predict"):
        function = next(_functions_in(getattr(model, f"{name}_function", None)), None)
        if function is not None:
            found[name] = function
    return found


def is_op_determinism_enabled() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(tf_config.is_op_determinism_enabled())


def trace_train_step(model: Any, element_spec: Any) -> bool:
    """Trace the train step of a model for batches of `element_spec`, as its first batch would; nothing is run.

    `model.fit` then finds the trace and makes no other.

    Returns:
        False, without a trace, if the model has a train function of its own.
    """
    model.make_train_function()
    for function in _functions_in(model.train_function):
        if getattr(function.python_function, "__name__", "") == "multi_step_on_iterator":
            function.get_concrete_function(tf.data.IteratorSpec(element_spec))
            return True
    return False


def traced_functions(model: Any) -> Iterator[Any]:
    """Yield the traced graphs of a model's train function; nothing while it is not traced.

    Keras 3 keeps its `tf.function` in the closure of `train_function`.
    """
    yield from _traced(model.train_function)


def _traced(step: Any) -> Iterator[Any]:
    for function in _functions_in(step):
        # Its graphs have those of the functions that it calls. One without arguments would be traced by asking.
        if function.experimental_get_tracing_count():
            yield from function._list_all_concrete_functions()


def _functions_in(step: Any) -> Iterator[Any]:
    """Yield the `tf.function`s that a step is or calls, in the order in which closures hold them.

    Keras's step holds the one for an iterator before the one for a batch, and a script may have wrapped the step.
    """
    seen: set[int] = set()
    waiting = deque([step])
    while waiting:
        function = waiting.popleft()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if is_function(function):
            yield function
        else:
            waiting.extend(_closure_of(function))


def captured_variables(model: Any) -> dict[str, tf.Tensor]:
    """Return the handles of all variables that the traced train and test functions of a model use, by name.

    The order of captures is that of the code, so the names are the same in another process.
    """
    return used_variables("step", model.train_function, model.test_function)


def used_variables(path: str, *functions: Any) -> dict[str, tf.Tensor]:
    """Return the handles of all variables that the traces of functions use, by name.

    Args:
        path: of the function, with which the names begin.
        functions: each a `tf.function`, or one that has some in its closure.
    """
    traces = [trace for function in functions for trace in _traced(function)]
    handles = {id(each): each for trace in traces for each in trace.captured_inputs}
    found: dict[str, tf.Tensor] = {}
    for handle in handles.values():
        is_variable = handle.dtype == tf.resource and variable_dtype(handle) is not None
        if is_variable and not hasattr(handle, _UNSAVED):
            found[f"{path}.variables[{len(found)}]"] = handle
    return found


def leave_unsaved(variable: tf.Variable) -> None:
    """Leave a variable of this package out of `used_variables`, and the names there as they are without it."""
    setattr(variable.handle, _UNSAVED, True)


def variable_handle(variable: Any) -> tf.Tensor:
    """Return the handle of a variable of Keras or TensorFlow; None while it has no value."""
    inner = variable._value if isinstance(variable, keras.Variable) else variable
    return None if inner is None else inner.handle


def layer_losses(layer: Any) -> list[Any]:
    """Return the list to which a layer adds its own losses while it is called; it may be changed in place."""
    losses: list[Any] = layer._losses
    return losses


def given_losses(model: Any) -> Any:
    """Return what `compile` got as ``loss``; None before it."""
    return getattr(getattr(model, "_compile_loss", None), "_user_loss", None)


@contextmanager
def replaced_reduction(replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Replace how every loss reduces its values, inside the block.

    Args:
        replace: receives Keras's function, with the arguments ``values, sample_weight, mask, reduction, dtype``, and
            returns the one in its place.
    """
    original = keras_loss.reduce_weighted_values
    keras_loss.reduce_weighted_values = replace(original)
    try:
        yield
    finally:
        keras_loss.reduce_weighted_values = original


@contextmanager
def noticed_assignments(notice: Callable[[Any], None]) -> Iterator[None]:
    """Call `notice` inside the block with each variable of Keras that is about to be assigned."""
    original = KerasVariable.assign

    def assign(self: Any, value: Any) -> Any:
        notice(self)
        return original(self, value)

    KerasVariable.assign = assign
    try:
        yield
    finally:
        KerasVariable.assign = original


def mask_weights(sample_weight: Any, mask: Any) -> Any:
    """Return sample weights with 0 where `mask` is False, as a loss uses them; None without both."""
    return keras_loss.apply_mask(sample_weight, mask, dtype="float32", reduction="sum")


#: The method by which `fit` and `evaluate` choose between the metrics' results and what a step logged.
RESULTS_OR_LOGS = "_get_metrics_result_or_logs"


def metric_results(model: Any, logs: dict[str, Any]) -> dict[str, Any]:
    """Return the logs of an epoch as `fit` makes them: the metrics' results, or the logs of an own `train_step`."""
    return dict(getattr(model, RESULTS_OR_LOGS)(logs))


def forget_initial_epoch(model: Any) -> None:
    """Let the next `model.fit` begin at its own `initial_epoch`, not where `BackupAndRestore` left the last one."""
    model._initial_epoch = None


def variable_dtype(handle: Any) -> tf.DType | None:
    """Return the dtype of the variable behind a resource handle; None if it is a lookup table or an iterator."""
    data = getattr(handle, "_handle_data", None)
    # Lookup tables and iterators are resources as well, but without shape and type.
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return tf.as_dtype(data.shape_and_type[0].dtype)


def _closure_of(function: Any) -> Iterator[Any]:
    """Yield the callables to which names in a function's closure are bound."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:
            # A name that is not bound yet.
            continue
        if callable(content):
            yield content
