"""Logins by password: wrong ones wait, right ones do not, and few are checked at the same time."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from det_keras.master.accounts import attempts
from det_keras.master.accounts.attempts import MOST_QUEUED, THREADS, LoginAttempts
from det_keras.master.errors import InvalidArgumentError, TooManyRequestsError, UnauthenticatedError
from master.fakes import Clock

HOME, AWAY = "192.0.2.1", "198.51.100.7"


@pytest.fixture
def logins(clock):
    logins = LoginAttempts(clock)
    yield logins
    logins.close()


def wrong():
    raise UnauthenticatedError("invalid credentials")


def attempt(logins: LoginAttempts, user: str, address: str, check=lambda: "token") -> str | int | None:
    """Return the result of an attempt: a token, the seconds to wait, or None for a wrong password."""
    try:
        return asyncio.run(logins.run(user, address, check))
    except TooManyRequestsError as error:
        return error.wait_s
    except UnauthenticatedError:
        return None


def fail(logins: LoginAttempts, clock: Clock, times: int, user: str = "bob", address: str = HOME) -> None:
    """Send wrong passwords as fast as they are checked."""
    count = 0
    while count < times:
        wait_s = attempt(logins, user, address, wrong)
        clock.now_s += wait_s or 0
        count += wait_s is None


def test_waits_grow_with_wrong_passwords_up_to_a_minute(logins, clock):
    waits = []
    for _ in range(20):
        while (wait_s := attempt(logins, "bob", HOME, wrong)) is not None:
            waits.append(wait_s)
            clock.now_s += wait_s
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]


def test_early_attempt_is_not_checked_even_with_the_right_password(logins, clock):
    fail(logins, clock, 10)
    assert attempt(logins, "bob", HOME) == 1
    clock.now_s += 1
    assert attempt(logins, "bob", HOME) == "token"


def test_right_password_ends_the_waits(logins, clock):
    fail(logins, clock, 12)
    clock.now_s += 60
    assert attempt(logins, "bob", HOME) == "token"
    fail(logins, clock, 9)
    assert attempt(logins, "bob", HOME) == "token"


def test_user_is_not_locked_out_from_elsewhere(logins, clock):
    fail(logins, clock, 40)
    assert attempt(logins, "bob", AWAY) == "token"
    assert attempt(logins, "BOB", HOME) == 60


def test_address_that_tries_many_users_waits_for_all_of_them(logins, clock):
    for number in range(50):
        fail(logins, clock, 1, f"user {number}")
    assert attempt(logins, "somebody else", HOME) == 1
    assert attempt(logins, "user 1", AWAY) == "token"


def test_user_who_is_tried_from_everywhere_waits_shortly_and_not_where_he_logged_in_before(logins, clock):
    assert attempt(logins, "bob", HOME) == "token"
    for number in range(110):
        fail(logins, clock, 1, address=f"203.0.113.{number}")
    assert attempt(logins, "bob", AWAY) == 4
    assert attempt(logins, "bob", HOME) == "token"


def test_wrong_passwords_are_forgotten(logins, clock):
    fail(logins, clock, 10)
    clock.now_s += 15 * 60
    fail(logins, clock, 1)
    assert attempt(logins, "bob", HOME) == "token"


def test_refusal_for_another_reason_counts_as_no_wrong_password(logins):
    def refuse():
        raise InvalidArgumentError("A username is required.")

    for _ in range(30):
        with pytest.raises(InvalidArgumentError):
            attempt(logins, "", HOME, refuse)


def test_memory_of_names_is_bounded(logins, clock, monkeypatch):
    monkeypatch.setattr(attempts, "_MOST_KEYS", 20)
    for number in range(100):
        attempt(logins, f"user {number}", f"198.51.100.{number}", wrong)
        attempt(logins, f"user {number}", f"198.51.100.{number}")
    kept = [logins._of_both._records, logins._of_address._records, logins._of_user._records, logins._known]
    assert all(len(one) <= 20 for one in kept)


def test_as_many_passwords_as_fit_are_checked_and_others_are_refused_at_once(logins):
    async def main():
        may_end, running, most = threading.Event(), [], []

        def check():
            running.append(None)
            most.append(len(running))
            may_end.wait(10)
            running.pop()

        names = [f"user {number}" for number in range(THREADS + MOST_QUEUED + 5)]
        calls = [asyncio.ensure_future(logins.run(name, name, check)) for name in names]
        # The others are refused before any of those that were admitted has ended.
        while sum(call.done() for call in calls) < 5:
            await asyncio.sleep(0)
        may_end.set()
        return await asyncio.gather(*calls, return_exceptions=True), max(most)

    results, most = asyncio.run(main())
    refusals = [one for one in results if one is not None]
    assert len(refusals) == 5
    assert all(isinstance(one, TooManyRequestsError) and one.wait_s == 1 for one in refusals)
    assert most <= THREADS


def test_many_at_once_are_counted_before_they_are_known_to_be_wrong(logins):
    async def main():
        return await asyncio.gather(
            *(logins.run("bob", HOME, wrong) for _ in range(10)), return_exceptions=True
        )

    assert {type(one) for one in asyncio.run(main())} == {UnauthenticatedError}
    assert attempt(logins, "bob", HOME) == 1


def test_refused_logins_are_in_the_log_once_a_minute_with_name_and_address(logins, clock, caplog):
    caplog.set_level(logging.WARNING)
    for _ in range(9):
        attempt(logins, "bob\n2026-01-01 all is well", HOME, wrong)
    (line,) = (record.getMessage() for record in caplog.records)
    assert "'bob\\n2026-01-01 all is well' from 192.0.2.1" in line
    clock.now_s += 60
    attempt(logins, "bob", HOME, wrong)
    assert "8 more like this" in caplog.records[-1].getMessage()
