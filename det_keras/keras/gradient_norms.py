"""Records how large the gradients of an optimizer are, inside of the traced step.

The optimizer's `apply` is replaced on the instance, below the exchange between workers, so that the norms are those of
the averaged gradients. They are read between batches only.

Nothing depends on the recorded numbers, and still they could change the training: TensorFlow reorders a chain of
products (and of sums) whose parts have no other use (``MinimizeBroadcasts`` of its arithmetic optimizer). A gradient
that is a product, and that SGD multiplies by its rate, is such a part. It is therefore not used here: its norm is
computed from its factors, with an op that is in no chain.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from det_keras.keras.private_api.steps import leave_unsaved, variables_trained_by

_MARK = "_det_norms"
# Half a sum of squares before the first step; NaN would be one of a gradient.
_NONE = -1.0
_SUMS = frozenset({"Add", "AddV2"})
_SAME_NORM = frozenset({"Identity", "Neg", "Reshape", "Squeeze", "StopGradient", "Transpose"})


class GradientNorms:
    """The squared norms of the gradients that an optimizer applied last.

    Args:
        adds: the optimizer adds up gradients of several batches. A gradient that is a sum is left out then: it is part
            of a chain of sums, and there is no other op for it.
    """

    def __init__(self, *, adds: bool = False) -> None:
        self._adds = adds
        # By the ids of the variables: a step may be traced again, and a script may train several sets of variables.
        self._recorded: dict[tuple[int, ...], tuple[list[Any], tf.Variable]] = {}

    def record(self, gradients: Sequence[Any], variables: Sequence[Any]) -> None:
        """Record the gradients of variables; those without a gradient are left out."""
        pairs = [
            (gradient, variable)
            for gradient, variable in zip(gradients, variables, strict=False)
            if gradient is not None and not (self._adds and _op_of(gradient) in _SUMS)
        ]
        if not pairs:
            return
        kept = [variable for _, variable in pairs]
        key = tuple(map(id, kept))
        if key not in self._recorded:
            # The step may be traced at this moment, and the variable has to outlive the trace.
            with tf.init_scope():
                halves = tf.Variable(tf.fill([len(kept)], _NONE), trainable=False, name="gradient_norms")
            leave_unsaved(halves)
            self._recorded[key] = kept, halves
        self._recorded[key][1].assign(tf.stack([_half_of_squares(gradient) for gradient, _ in pairs]))

    def read(self) -> Iterator[tuple[Any, float]]:
        """Yield the variables of the last step, each with the squared norm of its gradient."""
        for variables, halves in self._recorded.values():
            for variable, half in zip(variables, halves.numpy().tolist(), strict=True):
                if half != _NONE:
                    yield variable, 2.0 * half


def record_norms(optimizer: Any) -> None:
    """Make `optimizer` record the norms of its gradients; a second call does nothing.

    Args:
        optimizer: of Keras; of one that scales the loss, the inner one records gradients that are not scaled.
    """
    target = _target(optimizer)
    if _norms_of(target) is not None:
        return
    norms = GradientNorms(adds=bool(getattr(target, "gradient_accumulation_steps", None)))
    apply = target.apply

    def record_and_apply(grads: Sequence[Any], trainable_variables: Any = None, **options: Any) -> Any:
        # Lists: a caller may give an iterator, which can be read once.
        gradients = list(grads)
        variables = None if trainable_variables is None else list(trainable_variables)
        norms.record(gradients, variables_trained_by(target) if variables is None else variables)
        return apply(gradients, variables, **options)

    record_and_apply.__dict__[_MARK] = norms
    target.apply = record_and_apply


def recorded_norms(optimizers: Iterable[Any]) -> Iterator[tuple[Any, float]]:
    """Yield what optimizers recorded last; see `GradientNorms.read`."""
    for optimizer in optimizers:
        norms = _norms_of(_target(optimizer))
        if norms is not None:
            yield from norms.read()


def _target(optimizer: Any) -> Any:
    return getattr(optimizer, "inner_optimizer", optimizer)


def _norms_of(optimizer: Any) -> GradientNorms | None:
    """Return the norms that an optimizer records; None if it records none."""
    waiting = [optimizer.apply]
    while waiting:
        function = waiting.pop()
        marks = getattr(function, "__dict__", {})
        if _MARK in marks:
            norms: GradientNorms = marks[_MARK]
            return norms
        waiting += [cell for name, cell in marks.items() if callable(cell)]
    return None


def _half_of_squares(gradient: Any) -> tf.Tensor:
    """Return half the sum of squares, which is one op; the step has no second one for the factor."""
    if isinstance(gradient, tf.IndexedSlices):
        # Rows of the same index are added, as the optimizer does.
        indices, places = tf.unique(gradient.indices)
        gradient = tf.math.unsorted_segment_sum(gradient.values, places, tf.size(indices))
    product = functools.reduce(tf.math.multiply_no_nan, _factors(gradient))
    return tf.nn.l2_loss(tf.cast(product, tf.float32))


def _factors(gradient: tf.Tensor) -> list[tf.Tensor]:
    """Return what has the norm of a gradient: the factors of a product, otherwise the gradient itself."""
    kind = _op_of(gradient)
    if kind in _SAME_NORM:
        return _factors(gradient.op.inputs[0])
    if kind == "Mul":
        return [factor for each in gradient.op.inputs for factor in _in_product(each)]
    return [gradient]


def _in_product(factor: tf.Tensor) -> list[tf.Tensor]:
    """Return the factors of a factor, whose shape matters for the others."""
    if _op_of(factor) == "Identity":
        return _in_product(factor.op.inputs[0])
    if _op_of(factor) == "Mul":
        return [each for part in factor.op.inputs for each in _in_product(part)]
    return [factor]


def _op_of(tensor: Any) -> str:
    """Return the type of the op that makes a tensor of a trace; "" for other tensors."""
    is_traced = isinstance(tensor, tf.Tensor) and not hasattr(tensor, "numpy")
    return str(tensor.op.type) if is_traced else ""
