"""Every way of feeding and calling `fit` gives what plain Keras gives.

Plain Keras runs in the same process and is the expected value; nothing is written down by hand.
"""

from __future__ import annotations

import keras
import pytest
from ways import WAYS, PlainKeras, outcome

import det_keras as det


def plain(name):
    keras.backend.clear_session()
    keras.utils.set_random_seed(11)
    return outcome(WAYS[name](PlainKeras()))


def managed(name, run_dir):
    keras.backend.clear_session()
    with det.keras.init(run_dir=run_dir, seed=11) as context:
        return outcome(WAYS[name](context))


@pytest.mark.parametrize("name", WAYS)
def test_managed_training_is_that_of_plain_keras(name, tmp_path):
    assert managed(name, tmp_path / "run") == plain(name)
