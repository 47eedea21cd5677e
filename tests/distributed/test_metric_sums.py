"""Every metric of Keras is the result of the summed states of its shards, uneven and empty ones included."""

from __future__ import annotations

import inspect
import itertools

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.keras.distributed.replica import check_metrics

ROWS, CLASSES = 37, 4
RNG = np.random.RandomState(3)
LABELS = RNG.randint(0, CLASSES, ROWS)
SCORES = RNG.dirichlet(np.ones(CLASSES), ROWS).astype("float32")
BINARY = (RNG.rand(ROWS, 1) > 0.5).astype("float32"), RNG.rand(ROWS, 1).astype("float32")
ONE_HOT = np.eye(CLASSES, dtype="float32")[LABELS], SCORES
SPARSE = LABELS.astype("int64"), SCORES
FLOATS = RNG.rand(ROWS, 3).astype("float32") + 0.1, RNG.rand(ROWS, 3).astype("float32") + 0.1
CLASS_NUMBERS = LABELS, RNG.permutation(LABELS)
WEIGHTS = np.linspace(0.2, 2.0, ROWS).astype("float32")

OPTIONS = {
    "IoU": {"num_classes": CLASSES, "target_class_ids": [0, 2]},
    "MeanIoU": {"num_classes": CLASSES},
    "BinaryIoU": {"threshold": 0.5},
    "OneHotIoU": {"num_classes": CLASSES, "target_class_ids": [1]},
    "OneHotMeanIoU": {"num_classes": CLASSES},
    "MeanRelativeError": {"normalizer": [1.0, 2.0, 3.0]},
    "MeanMetricWrapper": {"fn": keras.losses.mean_absolute_error},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}


def data_of(name):
    """Return targets and predictions that a metric makes sense of."""
    if name in ("IoU", "MeanIoU"):
        return CLASS_NUMBERS
    if name.startswith("Sparse"):
        return SPARSE
    if name.startswith(("Categorical", "TopK", "OneHot", "F1", "FBeta", "KL")):
        return ONE_HOT
    if name.startswith(
        ("Binary", "AUC", "Precision", "Recall", "Sens", "Spec", "True", "False", "Hinge", "Accuracy")
    ):
        return BINARY
    return FLOATS


NAMES = sorted(
    name
    for name, kind in vars(keras.metrics).items()
    if inspect.isclass(kind) and issubclass(kind, keras.metrics.Metric) and kind is not keras.metrics.Metric
)


def make(name):
    return getattr(keras.metrics, name)(**OPTIONS.get(name, {}))


def update(metric, name, rows, weighted):
    """Feed the rows of a shard, one batch."""
    if rows.start == rows.stop:
        return
    weights = WEIGHTS[rows] if weighted else None
    if name in ("Mean", "Sum"):
        metric.update_state(FLOATS[0][rows][:, 0], sample_weight=weights)
        return
    y_true, y_pred = (values[rows] for values in data_of(name))
    metric.update_state(y_true, y_pred, sample_weight=weights)


def states(metric):
    return [np.asarray(variable.value) for variable in metric.variables]


def test_there_are_metrics_to_look_at():
    assert len(NAMES) >= 40


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=4, deadline=None)
@given(cuts=st.lists(st.integers(0, ROWS), min_size=1, max_size=3), weighted=st.booleans())
def test_result_of_summed_states_is_that_of_one_worker(name, cuts, weighted):
    whole, team = make(name), make(name)
    update(whole, name, slice(0, ROWS), weighted)
    # As `fit` does: variables that a first update makes exist on every worker.
    update(team, name, slice(0, ROWS), weighted)
    edges = [0, *sorted(cuts), ROWS]
    gathered = []
    for start, stop in itertools.pairwise(edges):
        team.reset_state()
        update(team, name, slice(start, stop), weighted)
        gathered.append(states(team))
    for variable, parts in zip(team.variables, zip(*gathered, strict=True), strict=True):
        variable.assign(sum(parts))
    np.testing.assert_allclose(np.asarray(team.result()), np.asarray(whole.result()), rtol=2e-5, atol=1e-6)


def test_metrics_of_keras_are_accepted():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(
        loss="binary_crossentropy", metrics=["accuracy", keras.metrics.AUC(), keras.metrics.Recall()]
    )
    model.evaluate(np.zeros((4, 3)), np.zeros((4, 1)), verbose=0)
    check_metrics(model.metrics)
