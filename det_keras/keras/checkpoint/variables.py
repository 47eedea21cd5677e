"""The variables that the next step depends on: finding, copying, comparing and restoring them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import tensorflow as tf

from det_keras.errors import ModelMismatchError
from det_keras.keras.private_api.steps import trace_train_step, variable_dtype, variable_handle
from det_keras.keras.random_ops.counters import random_counters

#: The group of variables that a training reaches, and that neither model, optimizer nor metrics list.
REACHED = "reached"

_LINE_BYTES = 64


@dataclass(frozen=True)
class TrackedVariable:
    """One variable of the training state.

    Attributes:
        group: ``model``, ``optimizer`` or ``metrics``; ``variables`` for one that a loop tracks by itself; `REACHED`.
        path: its path in Keras, such as ``sequential/dense/kernel``.
        variable: the Keras variable.
    """

    group: str
    path: str
    variable: Any

    def describe(self) -> dict[str, Any]:
        """Return the values that a later process compares: group, path, shape, dtype."""
        return {
            "group": self.group,
            "path": self.path,
            "shape": [int(size) for size in self.variable.shape],
            "dtype": str(self.variable.dtype),
        }


class LooseVariable:
    """A variable with the attributes of a Keras variable, of any kind and of any shape.

    Args:
        path: how it was found.
        variable: a variable of Keras or TensorFlow, or the handle of one.

    Attributes:
        path: as given.
        handle: the resource of TensorFlow that holds the value; None while there is none.
        number: identifies the variable in this process.
    """

    def __init__(self, path: str, variable: Any) -> None:
        self.path = path
        self.handle = variable if isinstance(variable, tf.Tensor) else variable_handle(variable)
        self._dtype = None if self.handle is None else variable_dtype(self.handle)
        self.number = id(self.handle)

    @property
    def is_numeric(self) -> bool:
        """Whether its value is numbers, which a checkpoint stores in one place with those of all variables."""
        return self._dtype is not None and self._dtype not in (tf.string, tf.variant, tf.resource)

    @property
    def value(self) -> tf.Tensor:
        """The value, which shares the memory of the variable until that is written."""
        return tf.raw_ops.ReadVariableOp(resource=self.handle, dtype=self._dtype)

    @property
    def shape(self) -> tf.TensorShape:
        """The shape of the value; that of the variable may be unknown."""
        return self.value.shape

    @property
    def dtype(self) -> str:
        """Name of the dtype."""
        assert self._dtype is not None
        name: str = self._dtype.name
        return name

    def assign(self, value: Any) -> None:
        """Assign the variable."""
        tf.raw_ops.AssignVariableOp(resource=self.handle, value=tf.convert_to_tensor(value, self._dtype))


class VariableSet:
    """All variables of models, their optimizers and their metrics, each once, in a fixed order.

    Args:
        groups: pairs of a group and variables of it; a variable belongs to the first group that has it.
    """

    def __init__(self, groups: Iterable[tuple[str, Iterable[Any]]]) -> None:
        self.tracked: list[TrackedVariable] = []
        seen: set[int] = set()
        for group, variables in groups:
            self._add(group, variables, seen)

    @classmethod
    def of_model(cls, model: Any, optimizers: Iterable[Any]) -> VariableSet:
        """Return the variables of one model.

        Args:
            model: the built model; see `build_everything`.
            optimizers: every optimizer that the training uses.
        """
        of_optimizers = (("optimizer", optimizer.variables) for optimizer in optimizers)
        return cls([("model", model.variables), *of_optimizers, ("metrics", model.metrics_variables)])

    @property
    def model_variables(self) -> list[Any]:
        """The variables of the group ``model``; they are the first ones of the set."""
        return [item.variable for item in self.tracked if item.group == "model"]

    @property
    def size_bytes(self) -> int:
        """Memory for the values in bytes, each rounded up to a cache line."""
        return sum(copy_bytes(item.variable.value) for item in self.tracked)

    def copy(self) -> list[tf.Tensor]:
        """Return a consistent copy of all values without copying memory in this call.

        The tensors share the variables' memory. TensorFlow copies a value at the next write to it, inside the step.
        """
        return [_read(item.variable) for item in self.tracked]

    def describe(self) -> Sequence[Mapping[str, Any]]:
        """Return the description of every variable, in order."""
        return self._descriptions

    @cached_property
    def _descriptions(self) -> Sequence[Mapping[str, Any]]:
        return [item.describe() for item in self.tracked]

    def check(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Compare the variables with the descriptions in a checkpoint.

        Args:
            saved: the descriptions that `describe` returned.

        Raises:
            ModelMismatchError: they differ; the message names the first difference with both values.
        """
        saved = [description for description in saved if description["group"] != REACHED]
        for index, item in enumerate(self.tracked):
            if index >= len(saved):
                raise ModelMismatchError(
                    f"The {item.group} has a variable that the checkpoint does not have: `{item.path}` of shape "
                    f"{_shape(item.describe())}. Restore with the code that wrote the checkpoint, or start from "
                    "the beginning."
                )
            expected, found = saved[index], item.describe()
            if _identity(expected) != _identity(found):
                raise ModelMismatchError(
                    f"The checkpoint does not fit: variable {index} is `{expected['path']}` "
                    f"({expected['group']}, shape {_shape(expected)}, {expected['dtype']}) in the checkpoint and "
                    f"`{found['path']}` ({found['group']}, shape {_shape(found)}, {found['dtype']}) in this script. "
                    "Restore with the code that wrote the checkpoint, or start from the beginning."
                )
        if len(saved) > len(self.tracked):
            missing = saved[len(self.tracked)]
            raise ModelMismatchError(
                f"The checkpoint has a variable that this script does not have: `{missing['path']}` of shape "
                f"{_shape(missing)}. Restore with the code that wrote the checkpoint, or start from the beginning."
            )

    def assign(self, values: Sequence[Any]) -> None:
        """Assign every variable its value, in order."""
        for item, value in zip(self.tracked, values, strict=True):
            item.variable.assign(value)

    def copy_metrics(self) -> list[tf.Tensor]:
        """Return a copy of the values of the metric variables only."""
        return [_read(item.variable) for item in self.tracked if item.group == "metrics"]

    def assign_metrics(self, values: Sequence[Any]) -> None:
        """Restore the values of the metric variables from a copy that `copy_metrics` returned."""
        metrics = [item.variable for item in self.tracked if item.group == "metrics"]
        for variable, value in zip(metrics, values, strict=True):
            variable.assign(value)

    def _add(self, group: str, variables: Iterable[Any], seen: set[int]) -> None:
        for variable in variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                self.tracked.append(TrackedVariable(group, variable.path, variable))


def copy_bytes(tensor: Any) -> int:
    """Return the memory for a copy of a tensor in bytes, rounded up so that the next copy begins at a cache line."""
    size: int = tensor.dtype.size * tensor.shape.num_elements()
    return -(-size // _LINE_BYTES) * _LINE_BYTES


def build_everything(model: Any, element_spec: Any) -> None:
    """Create every variable that the first training step would create, without running a step.

    The train step is traced in the same way as in training: a model may have no ``call``, and only its step defines
    which optimizers and metrics it uses.

    Args:
        model: the compiled model.
        element_spec: structure, shapes and dtypes of a batch.
    """
    if model.run_eagerly:
        _build_eagerly(model, element_spec)
        return
    if not trace_train_step(model, element_spec):
        _trace_once(model.train_step, element_spec)


def build_for_evaluation(model: Any, element_spec: Any) -> None:
    """Create every variable that an evaluation would create; arguments as in `build_everything`."""
    _trace_once(model.test_step, element_spec)


def _trace_once(step: Any, element_spec: Any) -> None:
    """Trace a step for the variables that it creates; the trace is never run."""
    # It has no random state: a saved one is that of another trace.
    with random_counters.suspended():
        tf.function(step).get_concrete_function(element_spec)


def _build_eagerly(model: Any, element_spec: Any) -> None:
    """Run a step and undo its changes to the variables: the Python code of an eager step may not be traceable."""
    existing = VariableSet.of_model(model, [model.optimizer] if model.optimizer is not None else [])
    values = existing.copy()
    model.train_step(tf.nest.map_structure(_empty_batch, element_spec))
    existing.assign(values)


def _identity(description: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values that identify a variable.

    For optimizer and metric variables the first parts of the path are omitted: they name the scope in which the
    variable was built, which differs between a first step and a resume.
    """
    path = description["path"] if description["group"] == "model" else description["path"].rsplit("/", 1)[-1]
    return description["group"], path, description["shape"], description["dtype"]


def _empty_batch(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


def _read(variable: Any) -> tf.Tensor:
    # `read_value` would add an operation that returns the same value.
    return tf.convert_to_tensor(variable.value)


def _shape(description: Mapping[str, Any]) -> str:
    return str(tuple(description["shape"]))
