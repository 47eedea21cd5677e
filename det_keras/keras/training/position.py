"""The position of a training, its target, and the segments in between."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Position:
    """A batch boundary.

    Attributes:
        epoch: the epoch that the next batch belongs to, from 0.
        step: the number of that batch in its epoch, from 0.
        batches: batches trained so far in this `fit` call.
    """

    epoch: int = 0
    step: int = 0
    batches: int = 0

    def at_step(self, step: int) -> Position:
        """Return the boundary in the same epoch before batch `step`."""
        return replace(self, step=step, batches=self.batches + step - self.step)

    def next_epoch(self) -> Position:
        """Return the boundary between this epoch and the next."""
        return replace(self, epoch=self.epoch + 1, step=0)


@dataclass(frozen=True)
class Target:
    """The end of a training; exactly one of `epochs` and `batches` is set.

    Attributes:
        epochs: a number of epochs.
        batches: an exact batch of this `fit`.
        is_final: whether no search will move it.
    """

    epochs: int | None = None
    batches: int | None = None
    is_final: bool = True

    def is_reached(self, position: Position) -> bool:
        """Return whether `position` is at or after the end of training."""
        if self.batches is not None:
            return position.batches >= self.batches
        assert self.epochs is not None
        return position.epoch >= self.epochs

    def fraction(self, position: Position, steps_per_epoch: int | None) -> float:
        """Return the fraction of the training that is done, 0 to 1."""
        if self.batches is not None:
            return min(position.batches / max(self.batches, 1), 1.0)
        assert self.epochs is not None
        within = position.step / steps_per_epoch if steps_per_epoch else 0.0
        return min((position.epoch + within) / max(self.epochs, 1), 1.0)


@dataclass(frozen=True)
class Segment:
    """The part of a training that one `model.fit` call runs.

    Attributes:
        first_epoch: its first epoch.
        stop_epoch: the epoch after its last one.
        first_step: its first batch; it is 0 unless the segment is part of one epoch.
        stop_step: the batch before which each of its epochs ends; None if the length of an epoch is unknown.
    """

    first_epoch: int
    stop_epoch: int
    first_step: int = 0
    stop_step: int | None = None

    @property
    def num_batches(self) -> int | None:
        """Number of batches in each of its epochs; None if unknown."""
        return None if self.stop_step is None else self.stop_step - self.first_step


def next_segment(
    position: Position, target: Target, steps_per_epoch: int | None, *, are_equal: bool = True
) -> Segment | None:
    """Return the next part of the training that one `model.fit` can run, None when the target is reached.

    A segment contains several epochs only if all are whole. The rest of an interrupted epoch, a part of an epoch that
    ends at the target, and an epoch of unknown length are segments of their own: Keras learns the number of batches
    from the first epoch that it sees, and a short first epoch would shorten all later ones.

    Args:
        position: the current position.
        target: the end of training.
        steps_per_epoch: number of batches of the current epoch; None if it is unknown until the data ends.
        are_equal: all epochs have `steps_per_epoch` batches.
    """
    if target.is_reached(position):
        return None
    epoch, step = position.epoch, position.step
    left = None if target.batches is None else target.batches - position.batches
    if steps_per_epoch is None:
        return Segment(epoch, epoch + 1, step, None if left is None else step + left)
    if not are_equal:
        stop = steps_per_epoch if left is None else min(steps_per_epoch, step + left)
        return Segment(epoch, epoch + 1, step, stop)
    if left is None:
        assert target.epochs is not None
        stop_epoch = target.epochs
    else:
        stop_epoch = epoch + (step + left) // steps_per_epoch
    if step > 0 or stop_epoch == epoch:
        stop = steps_per_epoch if stop_epoch > epoch else step + (left or 0)
        return Segment(epoch, epoch + 1, step, stop)
    return Segment(epoch, stop_epoch, 0, steps_per_epoch)
