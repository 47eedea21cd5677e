"""Segments cover a training exactly once, wherever it was interrupted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from det_keras.keras.data.order import EpochLengths
from det_keras.keras.training.position import Position, Segment, Target, next_segment


def walk(position, target, steps):
    """Return the (epoch, step) of every batch that the segments from `position` train."""
    batches = []
    while (segment := next_segment(position, target, steps)) is not None:
        for epoch in range(segment.first_epoch, segment.stop_epoch):
            first = segment.first_step if epoch == segment.first_epoch else 0
            batches += [(epoch, step) for step in range(first, segment.stop_step)]
            position = position.at_step(segment.stop_step)
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


@given(steps=st.integers(1, 7), per_pass=st.integers(1, 20), epochs=st.integers(0, 9))
def test_epochs_end_with_the_data_and_cover_it_in_order(steps, per_pass, epochs):
    lengths = EpochLengths(min(steps, per_pass), per_pass)
    assert lengths.start_of(0) == 0
    assert all(1 <= lengths.steps_in(epoch) <= steps for epoch in range(epochs))
    # An epoch is shorter only where a pass ends with it.
    short = [epoch for epoch in range(epochs) if lengths.steps_in(epoch) < min(steps, per_pass)]
    assert all(lengths.start_of(epoch + 1) % per_pass == 0 for epoch in short)
    assert lengths.are_equal == (
        not any(lengths.steps_in(epoch) != lengths.steps_in(0) for epoch in range(per_pass))
    )


@given(
    steps=st.integers(1, 7),
    per_pass=st.integers(1, 20),
    target=st.one_of(
        st.builds(Target, epochs=st.integers(0, 6)), st.builds(Target, batches=st.integers(0, 30))
    ),
    stop=st.integers(0, 40),
)
def test_training_over_epochs_of_different_length_goes_on_at_the_very_batch(steps, per_pass, target, stop):
    lengths = EpochLengths(min(steps, per_pass), per_pass)
    whole = walk_lengths(Position(), target, lengths)
    expected = [(epoch, step) for epoch in range(60) for step in range(lengths.steps_in(epoch))]
    count = target.batches if target.batches is not None else lengths.start_of(target.epochs or 0)
    assert whole == expected[:count]
    done = min(stop, count)
    epoch = next(one for one in range(60) if lengths.start_of(one + 1) > done)
    position = Position(epoch, done - lengths.start_of(epoch), done)
    assert whole[:done] + walk_lengths(position, target, lengths) == whole


def walk_lengths(position, target, lengths):
    """Return the (epoch, step) of every batch that the segments from `position` train."""
    batches = []
    while True:
        steps = lengths.steps_in(position.epoch)
        segment = next_segment(position, target, steps, are_equal=lengths.are_equal)
        if segment is None:
            return batches
        for epoch in range(segment.first_epoch, segment.stop_epoch):
            first = segment.first_step if epoch == segment.first_epoch else 0
            batches += [(epoch, step) for step in range(first, segment.stop_step)]
            position = position.at_step(segment.stop_step)
            if segment.stop_step == lengths.steps_in(epoch):
                position = position.next_epoch()
