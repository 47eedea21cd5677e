"""Class weights become sample weights as in Keras itself."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

from det_keras.keras.data.class_weight import class_weights, with_class_weights

WEIGHTS = {0: 1.0, 1: 2.5, 3: 0.5}
NUMBERS = np.array([0, 1, 3, 1, 0, 3])


@pytest.mark.parametrize(
    "y",
    [
        NUMBERS,
        NUMBERS[:, None],
        NUMBERS.astype("float32"),
        keras.utils.to_categorical(NUMBERS, 4),
    ],
    ids=["numbers", "column", "floats", "one-hot"],
)
def test_weights_are_those_of_keras(y):
    expected = class_weight_to_sample_weights(tf.convert_to_tensor(y), WEIGHTS)
    np.testing.assert_array_equal(class_weights(y, WEIGHTS), expected)


@pytest.mark.parametrize(
    "batch", [(NUMBERS,), (NUMBERS, (NUMBERS, NUMBERS))], ids=["no targets", "two outputs"]
)
def test_targets_of_one_output_are_needed(batch):
    with pytest.raises(ValueError, match="a single output with targets"):
        with_class_weights(WEIGHTS)(*batch)
