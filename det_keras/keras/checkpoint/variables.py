"""The variables that decide the next step: found, copied, compared and put back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from det_keras.errors import ModelMismatchError
from det_keras.keras.private_api import trace_train_step

__all__ = [
    "TrackedVariable",
    "VariableSet",
    "build_everything",
    "build_for_evaluation",
    "copy_bytes",
]

_LINE_BYTES = 64


@dataclass(frozen=True)
class TrackedVariable:
    """One variable of the training state.

    Attributes:
        group: ``model``, ``optimizer`` or ``metrics``.
        path: Keras's name for it, such as ``sequential/dense/kernel``.
        variable: the Keras variable.
    """

    group: str
    path: str
    variable: Any

    def describe(self) -> dict[str, Any]:
        """Return what a later process compares: group, path, shape, dtype."""
        return {
            "group": self.group,
            "path": self.path,
            "shape": [int(size) for size in self.variable.shape],
            "dtype": str(self.variable.dtype),
        }


class VariableSet:
    """All variables of a model, its optimizers and its metrics, each once, in a fixed order.

    Args:
        model: built; see `build_everything`.
        optimizers: every optimizer that the training uses.
    """

    def __init__(self, model: Any, optimizers: Iterable[Any]) -> None:
        self.tracked: list[TrackedVariable] = []
        seen: set[int] = set()
        self._add("model", model.variables, seen)
        for optimizer in optimizers:
            self._add("optimizer", optimizer.variables, seen)
        self._add("metrics", model.metrics_variables, seen)

    @property
    def model_variables(self) -> list[Any]:
        """The variables of the group ``model``; they stand first in the set."""
        return [one.variable for one in self.tracked if one.group == "model"]

    @property
    def size_bytes(self) -> int:
        """Memory that the values take, each rounded up to a cache line."""
        return sum(copy_bytes(one.variable.value) for one in self.tracked)

    def copy(self) -> list[tf.Tensor]:
        """Return a consistent copy of all values that costs the caller next to nothing.

        The tensors share the variables' memory; TensorFlow copies on the next write, inside the step.
        """
        return [_read(one.variable) for one in self.tracked]

    def describe(self) -> list[dict[str, Any]]:
        """Return the description of every variable, in order."""
        return [one.describe() for one in self.tracked]

    def check(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Compare with the `describe` of a checkpoint.

        Raises:
            ModelMismatchError: they differ; the first difference is named with what was expected and found.
        """
        for index, one in enumerate(self.tracked):
            if index >= len(saved):
                raise ModelMismatchError(
                    f"The {one.group} has a variable that the checkpoint does not have: `{one.path}` of shape "
                    f"{_shape(one.describe())}. Restore with the code that wrote the checkpoint, or start afresh."
                )
            expected, found = saved[index], one.describe()
            if _identity(expected) != _identity(found):
                raise ModelMismatchError(
                    f"The checkpoint does not fit: variable {index} is `{expected['path']}` "
                    f"({expected['group']}, shape {_shape(expected)}, {expected['dtype']}) in the checkpoint and "
                    f"`{found['path']}` ({found['group']}, shape {_shape(found)}, {found['dtype']}) in this script. "
                    "Restore with the code that wrote the checkpoint, or start afresh."
                )
        if len(saved) > len(self.tracked):
            missing = saved[len(self.tracked)]
            raise ModelMismatchError(
                f"The checkpoint has a variable that this script does not have: `{missing['path']}` of shape "
                f"{_shape(missing)}. Restore with the code that wrote the checkpoint, or start afresh."
            )

    def assign(self, values: Sequence[Any]) -> None:
        """Give every variable its value, in order."""
        for one, value in zip(self.tracked, values, strict=True):
            one.variable.assign(value)

    def copy_metrics(self) -> list[tf.Tensor]:
        """Return a copy of the values of the metric variables alone."""
        return [_read(one.variable) for one in self.tracked if one.group == "metrics"]

    def assign_metrics(self, values: Sequence[Any]) -> None:
        """Give the metric variables their values back."""
        metrics = [one.variable for one in self.tracked if one.group == "metrics"]
        for variable, value in zip(metrics, values, strict=True):
            variable.assign(value)

    def _add(self, group: str, variables: Iterable[Any], seen: set[int]) -> None:
        for variable in variables:
            if id(variable) not in seen:
                seen.add(id(variable))
                self.tracked.append(TrackedVariable(group, variable.path, variable))


def copy_bytes(tensor: Any) -> int:
    """Return the memory that a copy of a tensor takes, in bytes: whole cache lines, so that each begins at one."""
    size: int = tensor.dtype.size * tensor.shape.num_elements()
    return -(-size // _LINE_BYTES) * _LINE_BYTES


def build_everything(model: Any, element_spec: Any) -> None:
    """Make every variable that the first training step would make, without taking a step.

    The train step itself is traced, as training traces it: a model may have no ``call``, and only its step knows which
    optimizers and metrics it uses.

    Args:
        model: compiled.
        element_spec: structure, shapes and dtypes of a batch.
    """
    if model.run_eagerly:
        _build_eagerly(model, element_spec)
        return
    trace_train_step(model, element_spec)


def build_for_evaluation(model: Any, element_spec: Any) -> None:
    """Make every variable that an evaluation would make; arguments as in `build_everything`."""
    tf.function(model.test_step).get_concrete_function(element_spec)


def _build_eagerly(model: Any, element_spec: Any) -> None:
    """Take a step that leaves no trace in the variables: Python code of an eager step may not be traceable."""
    existing = VariableSet(model, [model.optimizer] if model.optimizer is not None else [])
    values = existing.copy()
    model.train_step(tf.nest.map_structure(_empty_batch, element_spec))
    existing.assign(values)


def _identity(description: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what must be equal for two variables to be the same one.

    The first parts of the paths of optimizer and metric variables tell in which scope they were built, which
    differs between a first step and a resume.
    """
    path = description["path"] if description["group"] == "model" else description["path"].rsplit("/", 1)[-1]
    return description["group"], path, description["shape"], description["dtype"]


def _empty_batch(spec: tf.TensorSpec) -> tf.Tensor:
    return tf.zeros([size or 1 for size in spec.shape.as_list()], spec.dtype)


def _read(variable: Any) -> tf.Tensor:
    return variable.value.read_value()


def _shape(description: Mapping[str, Any]) -> str:
    return str(tuple(description["shape"]))
