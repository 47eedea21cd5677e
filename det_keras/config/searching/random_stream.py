"""The stream of random numbers of an experiment's search.

It is the 32-bit Mersenne Twister, seeded by one integer like NumPy's legacy ``RandomState(seed)``, so that a search is
the same in every version of Python and NumPy. The standard library has the same generator with another seeding. Only
the seeding is implemented here, so that the search does not need NumPy.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping
from typing import Any

_WORDS = 624
_WORD_MASK = 0xFFFFFFFF
# The layout of the state tuple of `random.Random`, unchanged since Python 3.2.
_STATE_VERSION = 3


class RandomStream:
    """Random draws that are the same as with NumPy's legacy ``RandomState(seed)``.

    Args:
        seed: 0 to 2**32 - 1.

    Raises:
        ValueError: `seed` is outside that range.
    """

    def __init__(self, seed: int) -> None:
        if not 0 <= seed <= _WORD_MASK:
            raise ValueError(f"Seed {seed} does not fit. Use 0 to {_WORD_MASK}.")
        self._twister = random.Random()
        self._twister.setstate((_STATE_VERSION, (*_seeded_words(seed), _WORDS), None))

    def random_sample(self) -> float:
        """Return a float in [0, 1) with 53 random bits, from two words."""
        return self._twister.random()

    def randbelow(self, n: int) -> int:
        """Return an integer in 0..n-1 like ``randint(0, n, dtype=int64)``; for n = 1 without a draw.

        Raises:
            ValueError: `n` is below 1 or above 2**64.
        """
        if not 1 <= n <= 2**64:
            raise ValueError(f"Cannot draw below {n}. Use 1 to 2**64.")
        largest = n - 1
        if largest == 0:
            return 0
        mask = (1 << largest.bit_length()) - 1
        while True:
            value = (self._word() if largest <= _WORD_MASK else self._two_words()) & mask
            if value <= largest:
                return value

    def bytes16(self) -> bytes:
        """Return 16 random bytes: four words, each little-endian."""
        return b"".join(self._word().to_bytes(4, "little") for _ in range(4))

    def request_id(self) -> str:
        """Return the UUID (version 4) of a new trial."""
        return str(uuid.UUID(bytes=self.bytes16(), version=4))

    def trial_seed(self) -> int:
        """Return the seed of a new trial, 0 to 2**31 - 1."""
        return self.randbelow(2**31)

    def getstate(self) -> dict[str, Any]:
        """Return the state as plain values for JSON."""
        words: tuple[int, ...] = self._twister.getstate()[1]
        return {"words": list(words[:_WORDS]), "position": words[_WORDS]}

    def setstate(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `getstate` returned."""
        self._twister.setstate((_STATE_VERSION, (*state["words"], state["position"]), None))

    def _word(self) -> int:
        return self._twister.getrandbits(32)

    def _two_words(self) -> int:
        high = self._word()
        return high << 32 | self._word()


def _seeded_words(seed: int) -> list[int]:
    """Return the initial state for `seed`.

    Source: `init_genrand` in Matsumoto and Nishimura's mt19937ar.c, 2002.
    """
    words = [seed]
    for index in range(1, _WORDS):
        previous = words[-1]
        words.append((1812433253 * (previous ^ previous >> 30) + index) & _WORD_MASK)
    return words
