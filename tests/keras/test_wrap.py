"""What `wrap_data` takes and refuses, alone and as one of several workers."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from kinds import Batches

from det_keras.cluster_info import WorkerInfo
from det_keras.core import DistributedContext
from det_keras.keras.data import DataContext, check_data

X, Y = np.arange(40.0).reshape(10, 4), np.arange(10.0)
SECOND_OF_TWO = DataContext(DistributedContext.of(WorkerInfo(1, 2, 1, 2, 0, 1)))
ALONE = DataContext(DistributedContext())
ROWS = tf.data.Dataset.range(8)


def generate():
    yield X, Y


@pytest.mark.parametrize("context", [ALONE, SECOND_OF_TWO], ids=["alone", "second of two"])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([1, 2, 3],), r"np\.asarray\(\.\.\.\)`\. Received: 1 \(a int\)"),
        ((5,), r"must be arrays.*Received: 5 \(a int\)"),
        (("abc",), r"Received: 'abc' \(a str\)"),
        ((lambda: generate(),), r"\(a function\)"),
        ((X, [1.0] * 10), r"Received: 1\.0 \(a float\)"),
        ((np.float32(3),), "A scalar is not an array of samples"),
        ((X, np.float32(3)), "A scalar is not an array of samples"),
        ((X, generate()), "generator"),
        ((X, Batches()), "A Batches cannot go with arrays"),
        ((X, ROWS), "cannot go with arrays"),
        ((None,), "needs data"),
        ((None, Y), "needs data"),
        (([],), "a list without any array"),
    ],
    ids=["list of numbers", "number", "text", "lambda", "targets", "scalar", "scalar targets", "generator as targets",
         "PyDataset as targets", "tf.data as targets", "nothing", "no inputs", "empty list"],
)  # fmt: skip
def test_what_is_no_data_is_refused_with_what_is(context, data, message):
    with pytest.raises((TypeError, ValueError), match=message):
        context.wrap(*data)


def test_array_like_things_are_taken():
    inputs = {"a": X, "b": [tf.constant(X), tf.ragged.constant([[1]] * 10)]}
    assert ALONE.wrap(inputs, keras.ops.ones(10), None)[0] is inputs


def test_wrapping_again_shares_the_whole_and_not_the_share():
    x, y = SECOND_OF_TWO.wrap(X, Y)
    again, targets = SECOND_OF_TWO.wrap(x, Y)
    np.testing.assert_array_equal(again, X[5:])
    np.testing.assert_array_equal(again.whole, X)
    np.testing.assert_array_equal(targets, y)
    assert len(SECOND_OF_TWO.wrap({"x": SECOND_OF_TWO.wrap(x)})["x"].whole) == 10


@pytest.mark.parametrize("change", [lambda share: share * 2, lambda share: share[:4]], ids=["values", "rows"])
def test_wrapping_what_was_made_from_a_share_is_refused(change):
    with pytest.raises(ValueError, match="has to come before that"):
        SECOND_OF_TWO.wrap(change(SECOND_OF_TWO.wrap(X)))


def test_dataset_is_dealt_out_once(caplog):
    dealt = SECOND_OF_TWO.wrap(ROWS)
    assert SECOND_OF_TWO.wrap(dealt) is dealt
    mine = SECOND_OF_TWO.wrap(ROWS.take(4), shard=False)
    joined = tf.data.Dataset.zip((dealt, ROWS.take(4)))
    for derived in (dealt.batch(1).prefetch(1), tf.data.Dataset.zip((dealt, mine)), joined):
        # What is of each worker by its place is told of, unless it is said to be meant.
        assert caplog.text == ""
        assert SECOND_OF_TWO.wrap(derived) is derived
        assert derived is joined or SECOND_OF_TWO.wrap(derived, shard=False) is derived
    assert "Join them first" in caplog.text
    assert [int(row) for row in dealt] == [1, 3, 5, 7]


def test_dataset_that_was_left_whole_is_dealt_out_when_asked_for():
    left = SECOND_OF_TWO.wrap(ROWS.take(8), shard=False)
    assert len(list(left)) == 8
    assert [int(row) for row in SECOND_OF_TWO.wrap(left)] == [1, 3, 5, 7]


def test_generator_is_refused_on_several_workers_with_what_to_use_instead():
    with pytest.raises(TypeError, match=r"cannot be shared by several workers.*PyDataset"):
        check_data((iter_of_batches(),), workers=2)
    check_data((iter_of_batches(),), workers=1)


def iter_of_batches():
    yield np.ones((2, 3)), np.ones(2)
