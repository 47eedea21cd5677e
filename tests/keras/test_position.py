"""Segments cover a training exactly once, wherever it was interrupted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from det_keras.keras.position import Position, Segment, Target, next_segment


def walk(position, target, steps):
    """Return the (epoch, step) of every batch that the segments from `position` train."""
    batches = []
    while (segment := next_segment(position, target, steps)) is not None:
        for epoch in range(segment.first_epoch, segment.stop_epoch):
            first = segment.first_step if epoch == segment.first_epoch else 0
            batches += [(epoch, step) for step in range(first, segment.stop_step)]
            position = position.after_batches(segment.stop_step)
            if segment.stop_step == steps:
                position = position.next_epoch()
    return batches


@given(steps=st.integers(1, 7), epochs=st.integers(0, 5))
def test_epochs_are_trained_whole(steps, epochs):
    assert walk(Position(), Target(epochs=epochs), steps) == [
        (e, s) for e in range(epochs) for s in range(steps)
    ]


@given(steps=st.integers(1, 7), batches=st.integers(0, 30), stop=st.integers(0, 30))
def test_interrupted_training_goes_on_at_the_very_batch(steps, batches, stop):
    whole = walk(Position(), Target(batches=batches), steps)
    assert len(whole) == batches
    done = min(stop, batches)
    epoch, step = divmod(done, steps)
    assert whole[:done] + walk(Position(epoch, step, done), Target(batches=batches), steps) == whole


def test_whole_epochs_go_together():
    assert next_segment(Position(), Target(epochs=10), 5) == Segment(0, 10, 0, 5)


def test_rest_of_an_epoch_stands_alone():
    assert next_segment(Position(1, 2, 7), Target(epochs=10), 5) == Segment(1, 2, 2, 5)


def test_epoch_of_unknown_length_stands_alone():
    assert next_segment(Position(1, 0, 7), Target(epochs=10), None) == Segment(1, 2, 0, None)
    assert next_segment(Position(1, 2, 7), Target(batches=10), None) == Segment(1, 2, 2, 5)
