"""All private names of Keras and TensorFlow that the package uses, one function for each use.

The exceptions are methods that a subclass overrides: `_inputs` of a dataset in `data/base.py`.

There is no public way to make the batches that plain Keras makes from arrays or generators, to write the weights file
of a model piece by piece, or to read the states that `set_random_seed` sets. The versions are those in which the names
were checked; a change there is fixed here.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import keras
import tensorflow as tf

# Keras 3.12 to 3.15.
from keras.src.backend.common import global_state
from keras.src.backend.common.variables import Variable as KerasVariable
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
from keras.src.losses import loss as keras_loss
from keras.src.random.seed_generator import global_seed_generator
from keras.src.saving import saving_lib
from keras.src.trainers.data_adapters import (
    array_slicing,
    data_adapter_utils,
    get_data_adapter,
    is_torch_dataloader,
)

# TensorFlow 2.17 to 2.21.
from tensorflow.core.framework.model_pb2 import ModelProto, NodeClass
from tensorflow.python import pywrap_tfe
from tensorflow.python.data.ops.structured_function import StructuredFunctionWrapper
from tensorflow.python.eager import context as tf_context
from tensorflow.python.eager import lift_to_graph
from tensorflow.python.eager.polymorphic_function.concrete_function import ConcreteFunction
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
from tensorflow.python.framework import config as tf_config
from tensorflow.python.framework.func_graph import FuncGraph
from tensorflow.python.ops import control_flow_util, gen_random_ops, summary_ops_v2
from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph
from tensorflow.python.ops.parallel_for import control_flow_ops as parallel_for
from tensorflow.python.ops.resource_variable_ops import ResourceVariable
from tensorflow.python.saved_model import save as saved_model
from tensorflow.python.saved_model.save import _AugmentedGraphView as AugmentedGraphView
from tensorflow.python.trackable.base import TrackableReference

#: Writes and reads the weights file of a model, group by group; `store.make(path)` returns the group of a layer.
WeightsStore: Any = saving_lib.H5IOStore
#: Writes the files that layers store besides their variables.
AssetStore: Any = saving_lib.DiskIOStore

#: Batches that Keras reads of a dataset first, to find the dimensions that vary.
BATCHES_FOR_SPEC: int = data_adapter_utils.NUM_BATCHES_FOR_TENSOR_SPEC

_SparseRows = array_slicing.TensorflowSparseWrapper
_FUNCTION_FILE = Function._initialize.__code__.co_filename


def convert_array(array: Any) -> Any:
    """Return an array as Keras's own adapter converts it: columns, dtypes, sparse and ragged forms."""
    return array_slicing.convert_to_sliceable(array, target_backend="tensorflow")


def map_arrays(function: Callable[[Any], Any], structure: Any) -> Any:
    """Return `structure` with `function` applied to each array; sparse ones are whole arrays, None stays."""

    def visit(part: Any) -> Any:
        if part is None:
            return keras.tree.MAP_TO_NONE
        if isinstance(part, _SparseRows) or not isinstance(part, list | tuple | dict):
            return function(part)
        return None

    return keras.tree.traverse(visit, structure)


def arrays_in(structure: Any) -> list[Any]:
    """Return the arrays of a structure in order, without None; a sparse one is one array."""
    found: list[Any] = []
    map_arrays(lambda array: found.append(array) or array, structure)  # type: ignore[func-returns-value]
    return found


def num_rows(array: Any) -> int:
    """Return the number of samples of an array that `convert_array` returned."""
    return int((array.sparse if isinstance(array, _SparseRows) else array).shape[0])


def take_rows(array: Any, rows: tf.Tensor) -> Any:
    """Return the rows of an array that `convert_array` returned, inside the graph.

    Args:
        array: dense, ragged or sparse.
        rows: int64, (batch,).
    """
    if isinstance(array, _SparseRows):
        return array_slicing.slice_tensorflow_sparse_wrapper(array, rows)
    return tf.gather(array, rows, axis=0)


def split_rows(data: Any, validation_split: float) -> tuple[Any, Any]:
    """Split off the last rows of arrays as `model.fit` does for ``validation_split``."""
    train, validation = array_slicing.train_validation_split(data, validation_split=validation_split)
    return train, validation


def tensor_spec(batches: list[Any]) -> Any:
    """Return the common structure of batches: a dimension in which they differ is None, the first always."""
    return data_adapter_utils.get_tensor_spec(batches)


def generator_dataset(source: Any) -> tuple[tf.data.Dataset, int | None]:
    """Return the dataset that Keras makes of a generator or a DataLoader, and its number of batches if it has one.

    Keras draws two batches of it to see what they look like. It reads a generator one batch ahead, and further if the
    machine is busy; here it is always one.
    """
    adapter = get_data_adapter(source)
    dataset = adapter.get_tf_dataset()
    if inspect.isgenerator(source):
        (unbuffered,) = input_datasets(dataset)
        dataset = unbuffered.prefetch(1)
    return dataset, adapter.num_batches


def is_torch_loader(value: Any) -> bool:
    """Return whether `value` is a PyTorch DataLoader; recognised by name, so that torch is not imported."""
    return bool(is_torch_dataloader(value))


def input_datasets(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return the datasets that a dataset reads from directly."""
    return list(dataset._inputs())


def creation_mark() -> int:
    """Return a number that is between those of the datasets made before and after this call; see `creation_number`."""
    return int(tf.constant(0)._id)


def creation_number(dataset: tf.data.Dataset) -> int:
    """Return a number that grows with each dataset, or other tensor, that this process makes."""
    return int(variant_of(dataset)._id)


def traced_names() -> frozenset[str]:
    """Return the names of all functions that TensorFlow has traced in this process so far."""
    return frozenset(tf_context.context().list_function_names())


def ops_of(name: str) -> set[str]:
    """Return the types of the ops of a traced function, without those of the functions that it calls."""
    return {node.op for node in tf_context.context().get_function_def(name).node_def}


def variables_trained_by(optimizer: Any) -> list[Any]:
    """Return the variables for which a built optimizer keeps its state, in the order in which it was given them."""
    return list(optimizer._trainable_variables)


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


def is_function(value: Any) -> bool:
    """Return whether a value is what `tf.function` returns."""
    return type(value) is Function


def step_functions(model: Any) -> dict[str, Any]:
    """Return the `tf.function`s that Keras has made for the steps of a model, by ``train``, ``test``, ``predict``."""
    found = {}
    for name in ("train", "test", "predict"):
        made = getattr(model, f"{name}_function", None)
        candidates = [made, *_closure_of(made)]
        function = next((each for each in candidates if is_function(each)), None)
        if function is not None:
            found[name] = function
    return found


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


def is_op_determinism_enabled() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism` was called."""
    return bool(tf_config.is_op_determinism_enabled())


def map_functions(dataset: tf.data.Dataset) -> list[Any]:
    """Return the traced functions of one dataset, those of `map`, `filter` and their like."""
    wrappers: list[Any] = getattr(dataset, "_functions", list)()
    return [wrapper.function for wrapper in wrappers if hasattr(wrapper, "function")]


def trace_train_step(model: Any, element_spec: Any) -> bool:
    """Trace the train step of a model for batches of `element_spec`, as its first batch would; nothing is run.

    `model.fit` then finds the trace and makes no other.

    Returns:
        False, without a trace, if the model has a train function of its own.
    """
    model.make_train_function()
    for function in _closure_of(model.train_function):
        if getattr(getattr(function, "python_function", None), "__name__", "") == "multi_step_on_iterator":
            function.get_concrete_function(tf.data.IteratorSpec(element_spec))
            return True
    return False


def traced_functions(model: Any) -> Iterator[Any]:
    """Yield the traced graphs of a model's train function; nothing while it is not traced.

    Keras 3 keeps its `tf.function` in the closure of `train_function`.
    """
    yield from _traced(model.train_function)


def _traced(step: Any) -> Iterator[Any]:
    seen: set[int] = set()
    waiting = [step]
    while waiting:
        function = waiting.pop()
        if function is None or id(function) in seen:
            continue
        seen.add(id(function))
        if hasattr(function, "_list_all_concrete_functions"):
            # Its graphs have those of the functions that it calls. One without arguments would be traced by this.
            if function.experimental_get_tracing_count():
                yield from function._list_all_concrete_functions()
        else:
            waiting.extend(_closure_of(function))


def all_layers(model: Any) -> list[Any]:
    """Return the model and all layers in it, at any depth, in a fixed order."""
    return list(model._flatten_layers())


def own_layers(layer: Any) -> list[Any]:
    """Return the layers that a layer holds directly, in a fixed order."""
    return list(layer._flatten_layers(include_self=False, recursive=False))


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
        if handle.dtype == tf.resource and variable_dtype(handle) is not None:
            found[f"{path}.variables[{len(found)}]"] = handle
    return found


def variable_handle(variable: Any) -> tf.Tensor:
    """Return the handle of a variable of Keras or TensorFlow; None while it has no value."""
    inner = variable._value if isinstance(variable, keras.Variable) else variable
    return None if inner is None else inner.handle


def own_trainable_variables(layer: Any) -> list[Any]:
    """Return the weights that belong to a layer itself, also while it is frozen."""
    return list(getattr(layer, "_trainable_variables", ()))


def seed_generators(layer: Any) -> list[Any]:
    """Return the `keras.random.SeedGenerator`s of a layer itself."""
    return list(getattr(layer, "_seed_generators", ()))


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


@contextmanager
def noticed_saves(notice: Callable[[Any], None]) -> Iterator[None]:
    """Call `notice` inside the block with each path to which a model or its weights are saved."""
    originals = {name: getattr(keras.Model, name) for name in ("save", "save_weights")}

    def noticing(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def save(self: Any, filepath: Any, *arguments: Any, **options: Any) -> Any:
            notice(filepath)
            return original(self, filepath, *arguments, **options)

        return save

    for name, original in originals.items():
        setattr(keras.Model, name, noticing(original))
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(keras.Model, name, original)


def calling_frame() -> types.FrameType:
    """Return the frame of the function that called the caller of this one."""
    return sys._getframe(2)


def calling_frames() -> Iterator[types.FrameType]:
    """Yield the frames of the functions that led to the caller of this one, the innermost first."""
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back  # type: ignore[assignment]


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


def existing_keras_seed_generator() -> Any:
    """Return Keras's global seed generator, None if there is none yet: creating it would draw from Python's stream."""
    return global_state.get_global_attribute("global_seed_generator")


def keras_seed_generator() -> Any:
    """Return Keras's global seed generator, which is made by the first call."""
    return global_seed_generator()


def eager_random_stream() -> Any:
    """Return the Python generator from which eager TensorFlow draws the seeds of its ops, None if there is none."""
    return getattr(tf_context.context(), "_rng", None)


def save_state(model: Any, weights: Any, assets: Any) -> None:
    """Visit the layers of a model as Keras does when it saves one.

    Args:
        model: its layers' `save_own_variables` and `save_assets` are called.
        weights: a `WeightsStore` or an object with its methods.
        assets: an `AssetStore`; None for no assets.
    """
    saving_lib._save_state(
        model, weights_store=weights, assets_store=assets, inner_path="", visited_saveables=set()
    )


def current_group(store: Any) -> Any:
    """Return the HDF5 group of the layer that a `WeightsStore` writes at present; it is created if it is new."""
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    return store._h5_entry_group


def model_documents(model: Any) -> tuple[str, str]:
    """Return ``config.json`` and ``metadata.json`` of a model's `.keras` file.

    Raises:
        NotImplementedError, TypeError, ValueError: the model cannot be described.
    """
    config, metadata = saving_lib._serialize_model_as_json(model)
    return config, metadata


def separate_stacks(graph: Any) -> None:
    """Give each thread that builds `graph` name scopes, devices and control dependencies of its own."""
    graph.switch_to_thread_local()


def copied_thread_state() -> Any:
    """Return a context manager for another thread, in which Keras and summaries have the settings of this thread."""
    kept = [
        (state, dict(vars(state)))
        for state in (global_state.GLOBAL_STATE_TRACKER, summary_ops_v2._summary_state)
    ]

    @contextmanager
    def entered() -> Iterator[None]:
        for state, values in kept:
            vars(state).update(values)
        yield

    return entered()


def cache_filename(dataset: tf.data.Dataset) -> Any:
    """Return the tensor with the file of a `cache`, empty for one in memory; None for another dataset."""
    return getattr(dataset, "_filename", None) if is_cache(dataset) else None


def is_shuffle(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset is a `shuffle` of its input."""
    return type(dataset).__name__ == "_ShuffleDataset"


def is_cache(dataset: tf.data.Dataset) -> bool:
    """Return whether a dataset is a `cache` of its input."""
    return type(dataset).__name__ == "CacheDataset"


def variant_of(dataset: tf.data.Dataset) -> tf.Tensor:
    """Return the tensor that stands for a dataset in the graph, for a dataset that wraps it."""
    return dataset._variant_tensor


def progress_bar_of(callbacks: keras.callbacks.CallbackList) -> Any:
    """Return the progress bar that Keras added to a list of callbacks, None without one."""
    return callbacks._progbar


def wait_for_threads(callbacks: keras.callbacks.CallbackList) -> None:
    """Wait for callbacks that Keras runs in threads."""
    callbacks._flush_futures()


def stop_threads(callbacks: keras.callbacks.CallbackList) -> None:
    """End the threads in which Keras runs callbacks; Keras itself does so at the end of a training only."""
    if callbacks._executor is not None:
        callbacks._executor.shutdown()
        callbacks._executor = None


def repeat_count(dataset: tf.data.Dataset) -> int | None:
    """Return how often a `repeat` gives its elements, -1 for endlessly; None for another dataset."""
    count = getattr(dataset, "_count", None)
    return int(count) if type(dataset).__name__ == "_RepeatDataset" and count is not None else None


def has_buffered_batch(iterator: Any) -> bool | None:
    """Return whether the last stage of a dataset's pipeline holds an element; None if it has no buffer.

    Args:
        iterator: of the dataset. TensorFlow keeps statistics of each stage unless autotuning is off.
    """
    resource = getattr(iterator, "_iterator_resource", None)
    if resource is None:
        # Of several devices, each has an iterator of its own.
        return None
    try:
        content = tf.raw_ops.IteratorGetModelProto(iterator=resource).numpy()
    except tf.errors.OpError:
        return None
    nodes = ModelProto.FromString(content).nodes
    # The first is the iterator itself. TensorFlow adds a prefetch where the last stage does not run ahead.
    last = next(
        (nodes[number] for root in nodes.values() if root.name == "Root" for number in root.inputs), None
    )
    if last is None or not NodeClass.Name(last.node_class).startswith("ASYNC"):
        return None
    return bool(last.buffered_elements > 0)


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
