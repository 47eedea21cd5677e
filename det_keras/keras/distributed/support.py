"""What cannot be trained on several workers with the result of one, refused by name."""

from __future__ import annotations

from typing import Any

import keras

from det_keras.keras.distributed.loss import reduction_of

__all__ = ["check_support"]


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
    reduction_of(model)
