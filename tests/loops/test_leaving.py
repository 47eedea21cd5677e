"""The exception with which code leaves a loop, seen from the generator that it iterates over."""

from __future__ import annotations

import contextlib
import sys

import pytest

from det_keras.keras.loops.leaving import LeavingError


class Loop:
    """Gives numbers, and finds with what the calling code leaves them."""

    def numbers(self):
        return self._iterate(sys._getframe(1))

    def _iterate(self, frame):
        try:
            yield from range(3)
        except GeneratorExit:
            self.leaving = LeavingError(frame)
            raise


def raised_here(loop):
    with contextlib.suppress(KeyError):
        {}[1]
    try:
        for _ in loop.numbers():
            int("x")
    except ValueError as error:
        return error


def raised_through(loop):
    def inner():
        for _ in loop.numbers():
            raise ValueError

    try:
        inner()
    except ValueError as error:
        return error


def suppressed(loop):
    found = ValueError()
    with contextlib.suppress(ValueError):
        for _ in loop.numbers():
            raise found
    return found


def with_break(loop):
    try:
        raise KeyError
    except KeyError:
        for _ in loop.numbers():
            break
        return


def with_return(loop):
    def first():
        for number in loop.numbers():
            return number
        return None

    number = first()
    return None if number == 0 else number


@pytest.mark.parametrize("leave", [raised_here, raised_through, suppressed, with_break, with_return])
def test_exception_that_leaves_a_loop_is_found(leave):
    loop, before = Loop(), sys.gettrace()
    expected = leave(loop)
    loop.leaving.stop()
    assert loop.leaving.error is expected
    assert sys.gettrace() is before
