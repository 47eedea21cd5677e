"""Logins that end, end for good: calls of several threads, in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from amount import AMOUNT
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from det_keras.master.accounts import auth
from det_keras.master.accounts.auth import Accounts
from det_keras.master.accounts.users import UserChanges, Users
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import open_store
from det_keras.master.errors import ApiError

NAMES = ("one", "two")
PASSWORDS = ("the first password", "the second password")

# What is done, to which user, and to which of its logins.
Step = tuple[str, int, int]
STEPS = st.tuples(
    st.sampled_from(("log in", "log in by code", "log out", "password", "deactivate", "activate", "rename")),
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 7),
)


class Sessions(RuleBasedStateMachine):
    """The logins of two users, of which some are known to have ended."""

    home: Any
    alive: list[tuple[int, str]]

    @initialize()
    def begin(self) -> None:
        self.store = open_store(self.home, Notifier(), {})
        self.open()
        admin = self.accounts.login("admin", self.home.admin_password_file.read_text(), is_hashed=False)[0]
        self.admin = self.accounts.caller(admin)
        self.ids, self.passwords = [], {}
        for name in NAMES:
            name = f"{name}-{threading.get_ident()}-{id(self)}"
            changes = UserChanges(username=name, password=PASSWORDS[0])
            self.ids.append(self.users.create(self.admin, changes))
            self.passwords[len(self.ids) - 1] = [name, PASSWORDS[0]]
        self.alive, self.dead = [], []
        self.lock = threading.Lock()

    def open(self) -> None:
        self.accounts = Accounts(self.store, self.home)
        self.accounts.open()
        self.users = Users(self.store, self.accounts, self.home)

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = open_store(self.home, Notifier(), {})
        self.open()

    @rule(steps=st.lists(STEPS, min_size=1, max_size=4))
    def do_together(self, steps: list[Step]) -> None:
        before = list(self.alive)
        ended: list[tuple[int, str]] = []
        ready = threading.Barrier(len(steps))

        def work(step: Step) -> None:
            ready.wait()
            try:
                gone = getattr(self, f"_{step[0].replace(' ', '_')}")(step[1], step[2], before)
            except ApiError:
                return
            with self.lock:
                ended.extend(gone)

        threads = [threading.Thread(target=work, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.dead += ended
        # Of logins during this step it is only known from now on whether they are valid.
        self.alive = [
            one for one in self.alive if one not in ended and (one in before or self._is_valid(one[1]))
        ]

    def _log_in(self, user: int, _: int, before: Any) -> list[Any]:
        name, password = self.passwords[user]
        token, _row = self.accounts.login(name, password, is_hashed=False)
        return self._add(user, token)

    def _log_in_by_code(self, user: int, _: int, before: list[Any]) -> list[Any]:
        for owner, token in before:
            if owner == user:
                return self._add(
                    user, self.accounts.redeem(self.accounts.web_code(self.accounts.caller(token)))
                )
        return []

    def _add(self, user: int, token: str) -> list[Any]:
        with self.lock:
            self.alive.append((user, token))
        return []

    def _log_out(self, user: int, which: int, before: list[Any]) -> list[Any]:
        own = [one for one in before if one[0] == user]
        if not own:
            return []
        chosen = own[which % len(own)]
        self.accounts.logout(self.accounts.caller(chosen[1]))
        assert not self._is_valid(chosen[1]), "a token works after its logout was answered"
        return [chosen]

    def _password(self, user: int, which: int, before: list[Any]) -> list[Any]:
        self.users.change(self.admin, self.ids[user], UserChanges(password=PASSWORDS[which % 2]))
        with self.lock:
            self.passwords[user][1] = PASSWORDS[which % 2]
        return [one for one in before if one[0] == user]

    def _deactivate(self, user: int, _: int, before: list[Any]) -> list[Any]:
        self.users.change(self.admin, self.ids[user], UserChanges(active=False))
        return [one for one in before if one[0] == user]

    def _activate(self, user: int, _: int, before: list[Any]) -> list[Any]:
        self.users.change(self.admin, self.ids[user], UserChanges(active=True))
        return []

    def _rename(self, user: int, which: int, before: list[Any]) -> list[Any]:
        self.users.change(self.admin, self.ids[user], UserChanges(display_name=f"name {which}"))
        return []

    def _is_valid(self, token: str) -> bool:
        try:
            self.accounts.caller(token)
        except ApiError:
            return False
        return True

    @invariant()
    def tokens_are_as_known(self) -> None:
        assert not [one for one in getattr(self, "dead", []) if self._is_valid(one[1])]
        assert all(self._is_valid(token) for _, token in getattr(self, "alive", []))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


@pytest.fixture
def quick_hashes(monkeypatch):
    """Replace the slow hash of passwords."""

    def is_right(stored: str | None, password: str) -> bool:
        return stored == f"hash of {password}"

    make: Callable[[str], str] = "hash of {}".format
    for module in ("auth", "users"):
        monkeypatch.setattr(f"det_keras.master.accounts.{module}.password_hash", make)
    monkeypatch.setattr(auth, "_is_right", is_right)


def test_ended_logins_stay_ended(used_home, quick_hashes):
    store = open_store(used_home, Notifier(), {})
    with store.writing() as tx:
        for user in tx.query(auth.UserRow):
            user.password_hash = None
    store.close()
    machine = type("OfThisRoot", (Sessions,), {"home": used_home})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=200 if AMOUNT == "all" else 25,
            stateful_step_count=15,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_oldest_login_ends_when_there_are_too_many(world, monkeypatch):
    monkeypatch.setattr(auth, "MOST_SESSIONS", 3)
    accounts = world.master.accounts
    password = world.home.password_file.read_text()
    tokens = [accounts.login("determined", password, is_hashed=False)[0] for _ in range(5)]
    for token in tokens[:2]:
        with pytest.raises(ApiError):
            accounts.caller(token)
    for token in tokens[2:]:
        assert accounts.caller(token).username == "determined"
    # The token of the command line is no login.
    assert world.client.get("/api/v1/me")


def test_password_that_changes_while_it_is_checked_gives_no_login(world, monkeypatch):
    accounts, users = world.master.accounts, world.master.users
    old = world.home.password_file.read_text()
    is_right = auth._is_right

    def change_meanwhile(stored: str | None, password: str) -> bool:
        found = is_right(stored, password)
        caller = accounts.caller(world.client.token)
        users.change(caller, caller.user_id, UserChanges(password="another password"))
        return found

    monkeypatch.setattr(auth, "_is_right", change_meanwhile)
    with pytest.raises(ApiError, match="invalid credentials"):
        accounts.login("determined", old, is_hashed=False)
