"""`det master copy-database`: the copy is the same database, and an interrupted one leaves nothing."""

from __future__ import annotations

import re
import signal
import sqlite3
import subprocess
import sys
import time
from datetime import datetime, timezone

import forked_masters
import pytest
from cli.conftest import Det
from master.conftest import RealMaster
from master.fakes import Client, eventually
from sqlalchemy import text

from database.server import assign, rows_of
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import copying, process
from det_keras.master.copying import copy_database
from det_keras.master.database.models import Base, LogRow, MetricRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import open_store

TABLES = [table.name for table in Base.metadata.sorted_tables]


@pytest.fixture
def home(own_home, tmp_path) -> Home:
    """A data root on SQLite whose master has run, with values that databases treat differently."""
    home = Home(own_home)
    master = RealMaster(home)
    client: Client = master.client
    for number in range(3):
        experiment_id = client.create(
            f"name: n{number}\nentrypoint: x\nsearcher: {{name: single, metric: loss}}\n", activate=False
        )
    client.post(f"/api/v1/experiments/{client.create(activate=False)}/kill")
    trial = client.trials(experiment_id)[0]
    for step in range(30):
        metrics = {"loss": 1 / (step + 3), "big": 10**30, "not": "NaN"}
        client.report(trial["id"], "training", step, metrics, run_id=0)
    # The highest number is given to no other experiment, though it is deleted.
    client.call("DELETE", f"/api/v1/experiments/{experiment_id + 1}")
    eventually(lambda: len(client.get("/api/v1/experiments")["experiments"]) == 3)
    master.close()
    store = open_store(home, Notifier(), {})
    odd = ["\0 in \0 the middle", "\ufdd0 and \ufdd00", "é ß 漢 🎉", "", "line\r\n\tend "]
    with store.writing() as tx:
        for line in odd:
            tx.add(
                LogRow(
                    task_id=trial["taskId"], time=datetime(2026, 1, 1, 2, 3, 4, 5, timezone.utc), text=line
                )
            )
        tx.add(
            MetricRow(
                trial_id=trial["id"], run_id=2**40, group="g", partition="generic", total_batches=2**62,
                metrics={"\0": 1}, searcher_metric=5e-324,
                end_time=datetime(1999, 12, 31, 23, 59, 59, 999999, timezone.utc),
            )
        )  # fmt: skip
    store.close()
    return home


def dump(file) -> list[str]:
    """Return the content of a SQLite database as its own program writes it, in an order of its own."""
    with sqlite3.connect(file) as connection:
        return sorted(connection.iterdump())


def test_copy_to_postgresql_and_back_is_the_same_database(home, url, postgresql):
    before = dump(home.database)
    copied = copy_database(home, "sqlite", url)
    assert dump(home.database) == before
    assert {table.name for table in copied} == set(TABLES)
    for table in copied:
        assert [[str(table.rows)]] == postgresql.sql(
            f"SELECT count(*) FROM {table.name}", postgresql.name_of(url)
        )
    original = home.root / "original"
    home.database.rename(original)
    back = copy_database(home, url, "sqlite")
    assert back == copied
    assert dump(home.database) == before


def test_master_goes_on_with_the_copy_and_numbers_no_experiment_twice(home, url):
    with rows_of(home) as connection:
        highest = connection.scalar(text("SELECT seq FROM sqlite_sequence WHERE name = 'experiments'"))
        known = connection.execute(text("SELECT id, name FROM experiments ORDER BY id")).all()
    copy_database(home, "sqlite", url)
    home.database.unlink()
    assign(home, url)
    master = RealMaster(home)
    try:
        found = master.client.get("/api/v1/experiments", params={"sortBy": "SORT_BY_ID"})["experiments"]
        assert [(one["id"], one["name"]) for one in found] == [tuple(row) for row in known]
        assert master.client.create(activate=False) == highest + 1
    finally:
        master.close()
    assert not home.database.exists()


def test_interrupted_copy_leaves_nothing_and_can_be_repeated(home, url, postgresql, monkeypatch):
    real = copying._copy

    def fail(table, *connections):
        if table.name == "metrics":
            raise KeyboardInterrupt
        return real(table, *connections)

    monkeypatch.setattr(copying, "_copy", fail)
    with pytest.raises(KeyboardInterrupt):
        copy_database(home, "sqlite", url)
    name = postgresql.name_of(url)
    assert all(postgresql.sql(f"SELECT count(*) FROM {table}", name) == [["0"]] for table in TABLES)
    monkeypatch.undo()
    copy_database(home, "sqlite", url)
    with pytest.raises(DetError, match="not empty"):
        copy_database(home, "sqlite", url)


def test_copy_that_was_killed_leaves_nothing_and_can_be_repeated(home, url, postgresql):
    code = (
        "import sys, time; from det_keras.master import copying; from det_keras.home import Home\n"
        "def wait(*a):\n print('copied', flush=True); time.sleep(60)\n"
        "copying._compare = wait; copying.copy_database(Home.from_environment(), 'sqlite', sys.argv[1])"
    )
    child = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "copied\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    began = time.monotonic()
    copy_database(home, "sqlite", url)
    assert time.monotonic() - began < 20
    assert postgresql.sql("SELECT count(*) FROM experiments", postgresql.name_of(url)) == [["3"]]


def test_difference_is_found_and_nothing_is_committed(home, url, postgresql):
    # A rule of the destination that changes what is stored.
    copy_database(home, "sqlite", url)
    name = postgresql.name_of(url)
    postgresql.sql(f"TRUNCATE {', '.join(TABLES)}", name)
    postgresql.sql(
        "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN IF NEW.text = '''' THEN NEW.text := ''x''; END IF; RETURN NEW; END'", name
    )  # fmt: skip
    postgresql.sql(
        "CREATE TRIGGER spoil BEFORE INSERT ON task_logs FOR EACH ROW EXECUTE FUNCTION spoil()", name
    )
    with pytest.raises(DetError, match="task_logs differs"):
        copy_database(home, "sqlite", url)
    assert postgresql.sql("SELECT count(*) FROM experiments", name) == [["0"]]


def test_running_masters_are_not_copied_from_or_to(home, url, tmp_path):
    master = RealMaster(home)
    with pytest.raises(DetError, match="cluster-down"):
        copy_database(home, "sqlite", url)
    master.close()
    other = Home(tmp_path / "other")
    assign(other, url)
    forked_masters.start(other, slots=1)
    try:
        with pytest.raises(DetError, match="another master"):
            copy_database(home, "sqlite", url)
    finally:
        process.stop(other)


def test_command_prints_the_tables_and_what_to_do_next_but_no_password(home, url, postgresql, tmp_path):
    det = Det(home.root, tmp_path)
    secret = postgresql.tcp_url(postgresql.name_of(url))
    printed = det.out("master", "copy-database", "--to", secret)
    assert re.search(r"^metrics +31 rows  sha256 [0-9a-f]{64}$", printed, re.MULTILINE)
    assert "det deploy local cluster-up --db URL" in printed
    assert "p%40ss" not in printed
    again = det("master", "copy-database", "--to", secret)
    assert again.returncode == 1
    assert again.stderr.count("\n") == 1
    assert "not empty" in again.stderr
