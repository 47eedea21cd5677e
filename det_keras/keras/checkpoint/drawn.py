"""How many items trainings that have ended took from each generator of the script, for trainings that share one.

A `fit` that is skipped is given its generator, and reads it again. A loop that is skipped is not, because its body does
not run. So the generators that a script holds are brought to where the loop left them, like anything else that it
reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

_drawn: WeakKeyDictionary[Iterator[Any], int] = WeakKeyDictionary()


def number_drawn(generator: Iterator[Any]) -> int:
    """Return how many items loops that have ended took from a generator."""
    return _drawn.get(generator, 0)


def note_drawn(generator: Iterator[Any], number: int) -> None:
    """Record that a loop that ends took a number of items."""
    _drawn[generator] = number_drawn(generator) + number


def draw_up_to(generator: Iterator[Any], number: int) -> None:
    """Draw and drop items until a number of them is taken, or there are no more."""
    for _ in range(number_drawn(generator), number):
        next(generator, None)
    _drawn[generator] = max(number, number_drawn(generator))
