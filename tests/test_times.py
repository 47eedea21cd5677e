"""The shares of the whole suite that continuous integration takes in turn."""

from __future__ import annotations

import math

import times
from hypothesis import given
from hypothesis import strategies as st

FILES = st.dictionaries(st.text("abc", min_size=1), st.floats(0, 4000), min_size=1, max_size=30)


@given(FILES, st.integers(0, 10**6))
def test_shares_that_follow_each_other_are_the_whole_suite(seconds, first):
    total = sum(seconds.values())
    shares = [
        times.share_of(seconds, first + turn, seconds)
        for turn in range(max(1, math.ceil(total / times.SHARE_S)))
    ]
    assert sorted(file for share in shares for file in share) == sorted(seconds)
    taken = [sum(seconds[file] for file in share) for share in shares]
    # The times are rounded before they are compared.
    assert max(taken) - min(taken) <= max(seconds.values()) + len(seconds) * 0.1


def test_a_file_that_was_never_measured_belongs_to_one_share():
    seconds = {"long": 0.9 * times.SHARE_S, "longer": 0.95 * times.SHARE_S}
    files = [*seconds, "new", "newer"]
    shares = [times.share_of(files, number, seconds) for number in (0, 1)]
    assert {*shares[0]} | {*shares[1]} == set(files)
    assert not shares[0] & shares[1]
    assert times.share_of(files, 2, seconds) == shares[0]


@given(FILES, st.integers(0, 10**6), st.integers(1, 5))
def test_so_many_shares_as_one_wants_are_the_whole_suite(seconds, first, count):
    shares = [times.share_of(seconds, first + turn, seconds, count) for turn in range(count)]
    assert sorted(file for share in shares for file in share) == sorted(seconds)
