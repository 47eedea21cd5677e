"""One master per database: who holds it, and what happens when its connection is lost."""

from __future__ import annotations

import os
import signal
import time

import forked_masters
import pytest
from master.conftest import RealMaster
from master.fakes import eventually

from database.server import PostgresServer, assign
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines import open_database
from det_keras.master.database.models import SettingRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.errors import UnavailableError


@pytest.fixture
def make_store(url, tmp_path):
    """Return a function that opens the database as another master would."""
    opened = []

    def make() -> tuple[Store, list[str]]:
        lost: list[str] = []
        store = Store(open_database(url, tmp_path / "none"), Notifier(), lambda: lost.append("lost"))
        opened.append(store)
        store.migrate()
        store.claim(url="http://here", home="/home/of/it")
        return store, lost

    yield make
    for store in opened:
        store.close()


def write(store: Store, name: str) -> None:
    with store.writing() as tx:
        tx.add(SettingRow(name=name, value="written"))


def names(postgresql: PostgresServer, url: str) -> set[str]:
    rows = postgresql.sql("SELECT name FROM settings WHERE value = 'written'", postgresql.name_of(url))
    return {row[0] for row in rows}


def test_second_master_is_refused_and_told_who_has_the_database(make_store):
    make_store()
    with pytest.raises(DetError) as error:
        make_store()
    for fact in (f"process {os.getpid()}", "url http://here", "home /home/of/it"):
        assert fact in str(error.value)


def test_lost_connection_is_replaced_before_the_next_write(make_store, postgresql, url):
    store, lost = make_store()
    postgresql.end_sessions(url)
    write(store, "after")
    assert names(postgresql, url) == {"after"}
    assert lost == []
    with pytest.raises(DetError, match="another master"):
        make_store()


def test_master_that_lost_the_database_to_another_writes_no_more_and_ends(make_store, postgresql, url):
    store, lost = make_store()
    # From here the first one's connection is lost; another master is faster.
    postgresql.end_sessions(url)
    other, _ = make_store()
    for attempt in range(2):
        with pytest.raises(UnavailableError, match="Another master"):
            write(store, f"first {attempt}")
    write(other, "second")
    assert names(postgresql, url) == {"second"}
    assert lost == ["lost"]


def test_master_that_was_replaced_for_a_while_does_not_write_on_what_it_remembers(
    make_store, postgresql, url
):
    store, lost = make_store()
    postgresql.end_sessions(url)
    other, _ = make_store()
    write(other, "second")
    other.close()
    with pytest.raises(UnavailableError, match="Another master"):
        write(store, "first")
    assert names(postgresql, url) == {"second"}
    assert lost == ["lost"]


def test_transaction_of_a_lost_connection_is_not_committed_by_the_next(make_store, postgresql, url):
    store, _ = make_store()

    def interrupted() -> None:
        with store.writing() as tx:
            tx.add(SettingRow(name="first half", value="written"))
            tx.flush()
            postgresql.end_sessions(url)
            tx.add(SettingRow(name="second half", value="written"))

    with pytest.raises(UnavailableError):
        interrupted()
    assert names(postgresql, url) == set()
    write(store, "whole")
    assert names(postgresql, url) == {"whole"}


def test_master_that_was_killed_frees_the_database_at_once(postgresql, url, tmp_path):
    first, second = (Home(tmp_path / name) for name in ("first", "second"))
    for home in (first, second):
        assign(home, url)
    killed = forked_masters.start(first, slots=1)
    os.kill(killed.pid, signal.SIGKILL)
    began = time.monotonic()
    try:
        forked_masters.start(second, slots=1)
        assert time.monotonic() - began < 10
    finally:
        process.stop(second)


@pytest.mark.process
def test_idle_master_whose_database_was_taken_ends_itself(postgresql, url, tmp_path, monkeypatch):
    first, second = (Home(tmp_path / name) for name in ("first", "second"))
    for home in (first, second):
        assign(home, url)
    loser = RealMaster(first)
    # Stopped, so that the other one is certainly faster.
    os.kill(loser.running.pid, signal.SIGSTOP)
    postgresql.end_sessions(url)
    try:
        winner = forked_masters.start(second, slots=1)
        os.kill(loser.running.pid, signal.SIGCONT)
        eventually(lambda: process.find(first) is None and not first.master_file.exists(), 20)
        assert "This master ends now: only one may write." in first.master_log.read_text()
        assert winner.url in first.master_log.read_text()
        assert process.find(second) == winner
    finally:
        process.stop(second)
        loser.close()
