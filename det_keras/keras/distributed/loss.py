"""Losses of a share of a batch, scaled so that weighting gradients by rows gives those of the whole batch.

Weighting by rows is correct without scaling for a loss that is divided by the number of rows. A sum is not divided,
and a mean by sample weights is divided by the sum of weights. These losses are scaled here, inside `compute_loss`, so
that the gradients and the metric ``loss`` are correct. Regularisation is the same on all workers and is not scaled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from det_keras.keras.distributed.exchange import sum_over_workers
from det_keras.keras.distributed.gradients import SharedStep
from det_keras.keras.private_api import given_losses

__all__ = ["reduction_of", "scaled_loss"]

_BY_ROWS = ("sum_over_batch_size", "mean")
_BY_WEIGHTS = "mean_with_sample_weight"


def reduction_of(model: Any) -> str:
    """Return how the losses of `compile` are reduced: ``rows``, ``sum`` or ``weights``.

    Raises:
        ValueError: the losses have different reductions or none, or a mean by weights has several outputs.
    """
    given = given_losses(model)
    losses = [part for part in keras.tree.flatten(given) if isinstance(part, keras.losses.Loss)]
    kinds = {"rows" if loss.reduction in _BY_ROWS else str(loss.reduction) for loss in losses} or {"rows"}
    # Losses given by name are divided by rows.
    if len(losses) < len(keras.tree.flatten(given)):
        kinds.add("rows")
    if kinds == {"rows"} or kinds == {"sum"}:
        return kinds.pop()
    if kinds == {_BY_WEIGHTS} and len(losses) == 1:
        return "weights"
    raise ValueError(
        f"Losses reduced by {', '.join(sorted(kinds))} are not supported together on several workers: what they are "
        "divided by differs. Give all of them reduction='sum_over_batch_size', or all of them 'sum'."
    )


def scaled_loss(
    model: Any, original: Callable[..., Any], reduction: str, step: SharedStep
) -> Callable[..., Any]:
    """Return the replacement for the model's `compute_loss`.

    Args:
        model: the compiled model.
        original: its own `compute_loss`.
        reduction: the value of `reduction_of`, other than ``rows``.
        step: provides the numbers of rows.
    """

    def compute_loss(
        x: Any = None, y: Any = None, y_pred: Any = None, sample_weight: Any = None, **options: Any
    ) -> Any:
        total = original(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, **options)
        if step.rows is None or (reduction == "weights" and sample_weight is None):
            return total
        own = tf.cast(step.rows, total.dtype)
        penalties = [tf.cast(tf.reduce_sum(penalty), total.dtype) for penalty in model.losses]
        penalty = tf.add_n(penalties) if penalties else tf.zeros((), total.dtype)
        # A worker without rows runs one that is not counted.
        weight = tf.reduce_sum(tf.cast(sample_weight, total.dtype)) if reduction == "weights" else own
        weight = tf.where(own > 0, weight, tf.zeros_like(weight))
        all_rows, all_weight = sum_over_workers([own, weight], name="loss.shares")
        share = weight / all_weight if reduction == "weights" else tf.ones_like(own)
        return (total - penalty) * share * all_rows / tf.maximum(own, 1) + penalty

    return compute_loss
