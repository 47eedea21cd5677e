"""The database: its schema is what the migrations make, and a commit is all or nothing."""

from __future__ import annotations

import contextlib

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from database import server
from sqlalchemy import text

from det_keras.errors import DetError
from det_keras.master import process
from det_keras.master.database import migrations
from det_keras.master.database.engines import open_database
from det_keras.master.database.models import Base, ExperimentRow, SearchRow, SettingRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.embedded import open_store


@pytest.fixture
def store(home):
    store = open_store(home, Notifier(), {})
    yield store
    store.close()


def test_migrations_make_what_the_models_say(store):
    with store.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []


def test_newest_revision_is_the_one_that_starts_compare_with(store):
    config = Config()
    config.set_main_option("script_location", next(iter(migrations.__path__)))
    assert ScriptDirectory.from_config(config).get_current_head() == migrations.HEAD


def test_commits_survive_a_power_cut(store):
    with store.engine.connect() as connection:
        if server.is_chosen():
            # The server's own default; the tests' server has no disk to lose.
            assert connection.execute(text("SHOW synchronous_commit")).scalar() == "on"
        else:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
            assert connection.execute(text("PRAGMA synchronous")).scalar() == 2


def test_database_of_a_newer_release_is_refused(store):
    with store.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DetError, match="newer release"):
        store.migrate()


def test_failed_transaction_leaves_nothing_and_has_no_consequences(store):
    happened = []

    def fail() -> None:
        with store.writing() as tx:
            tx.add(SettingRow(name="a", value="1"))
            tx.after_commit(lambda: happened.append("consequence"))
            tx.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.reading() as session:
        assert session.get(SettingRow, "a") is None
    assert happened == []
    with store.writing() as tx:
        tx.after_commit(lambda: happened.append("consequence"))
    assert happened == ["consequence"]


def test_consequence_that_fails_does_not_undo_or_stop_others(store):
    happened = []
    with store.writing() as tx:
        tx.add(SettingRow(name="a", value="1"))
        tx.after_commit(lambda: 1 / 0)
        tx.after_commit(lambda: happened.append("second"))
    assert happened == ["second"]
    with store.reading() as session:
        assert session.get(SettingRow, "a").value == "1"


def test_reader_sees_one_state_while_a_writer_commits(store):
    with store.reading() as session:
        assert session.get(SettingRow, "a") is None
        with store.writing() as tx:
            tx.add(SettingRow(name="a", value="1"))
        assert session.scalar(text("SELECT count(*) FROM settings")) == 0


def test_value_that_a_transaction_leaves_is_lost_by_one_that_fails(store):
    with store.writing() as tx:
        assert tx.take("a") is None
        tx.kept["a"] = [1]
    with store.writing() as tx:
        assert tx.take("a") is tx.take("a")
        tx.take("a").append(2)
    with contextlib.suppress(ZeroDivisionError), store.writing() as tx:
        assert tx.take("a") == [1, 2]
        raise ZeroDivisionError
    with store.writing() as tx:
        assert tx.take("a") is None


def test_experiments_of_an_earlier_release_are_kept(home):
    store = Store(open_database(process.database_url(home, {}), home.database), Notifier())
    config = Config()
    config.set_main_option("script_location", next(iter(migrations.__path__)))
    with store.engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")
        connection.execute(
            text(
                "INSERT INTO users (id, username, display_name, admin, active, modified_at)"
                " VALUES (1, 'one', '', false, true, '2026-01-01')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO experiments (id, state, archived, owner_id, job_id, name, description, labels, notes,"
                " config, original_config, context_size, searcher, progress, is_pruning_due, start_time)"
                " VALUES (7, 'COMPLETED', false, 1, 'j', 'kept', '', '[]', '', '{}', '', 0, '{\"a\": 1}', 1, false,"
                " '2026-01-01')"
            )
        )
    store.migrate()
    with store.reading() as session:
        row = session.get(ExperimentRow, 7)
        assert (row.name, row.is_unmanaged, row.external_id) == ("kept", False, None)
        assert session.get(SearchRow, 7).state == '{"a": 1}'
    store.close()
