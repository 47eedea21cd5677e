"""Checks for layers and losses whose result on several workers would differ from the result on one worker."""

from __future__ import annotations

from typing import Any

import keras

from det_keras.keras.distributed.loss import reduction_of
from det_keras.keras.private_api import all_layers

__all__ = ["check_support"]


def check_support(model: Any) -> None:
    """Check that all layers and losses give the same result on several workers as on one.

    Raises:
        ValueError: a layer or loss does not; the message names it and the solution.
    """
    for layer in all_layers(model):
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
