"""Checks for layers and losses whose result on several workers would differ from the result on one worker."""

from __future__ import annotations

from typing import Any

import keras

from det_keras.keras.private_api import all_layers, given_losses


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
    for loss in keras.tree.flatten(given_losses(model)):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            raise ValueError(
                f"The loss `{loss.name}` has reduction={loss.reduction!r}: its values cannot be weighted over several "
                "workers. Use reduction='sum' or reduction='sum_over_batch_size'."
            )
