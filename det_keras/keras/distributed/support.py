"""What cannot be trained on several workers with the result of one, refused by name."""

from __future__ import annotations

from typing import Any

import keras

__all__ = ["check_support"]

_REDUCTIONS = ("sum_over_batch_size", "mean")


def check_support(model: Any) -> None:
    """Refuse layers and losses whose result over several workers is not that of one.

    Raises:
        ValueError: a layer or loss is named, with what to do.
    """
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(
                f"`{layer.name}` is a BatchNormalization(synchronized=True), which needs tf.distribute and would do "
                "nothing here. Leave `synchronized` out: each worker normalises its own rows, and the moving "
                "statistics are averaged."
            )
        if isinstance(layer, keras.layers.Masking) or getattr(layer, "mask_zero", False):
            raise ValueError(
                f"`{layer.name}` masks steps out of the loss, and how many differs between workers: their gradients "
                "could not be weighted. Train with one worker, or pass the mask as sample weights."
            )
    for loss in _losses(model):
        reduction = getattr(loss, "reduction", "sum_over_batch_size")
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"The loss `{getattr(loss, 'name', loss)}` is reduced by {reduction!r}, which is not supported on "
                "several workers: gradients are weighted by rows. Use reduction='sum_over_batch_size'."
            )


def _losses(model: Any) -> list[Any]:
    compiled = getattr(model, "_compile_loss", None)
    given = getattr(compiled, "_user_loss", None)
    return [one for one in keras.tree.flatten(given) if isinstance(one, keras.losses.Loss)]
