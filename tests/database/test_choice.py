"""Which database a master uses, and what the user sees when it cannot be used."""

from __future__ import annotations

import json
import stat
import subprocess
import sys

import psutil
import pytest
from cli.conftest import Det

from database.server import PASSWORD, PostgresServer
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines import open_database
from det_keras.master.database.engines import postgresql as engine
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store

pytestmark = pytest.mark.process

SINGLE = "name: kept\nentrypoint: x\nsearcher: {name: single, metric: loss}\n"


@pytest.fixture
def det(own_home, tmp_path):
    det = Det(own_home / "root", tmp_path, {"DET_KERAS_SLOTS": "1"})
    yield det
    det("deploy", "local", "cluster-down", "--kill")


def count(postgresql: PostgresServer, url: str) -> int:
    return int(postgresql.sql("SELECT count(*) FROM experiments", postgresql.name_of(url))[0][0])


def create(det: Det) -> None:
    det.write("config.yaml", SINGLE)
    (det.directory / "code").mkdir(exist_ok=True)
    det.out("experiment", "create", "config.yaml", "code", "--paused")


@pytest.mark.parametrize("way", ["option", "variable"])
def test_database_is_remembered_even_after_the_master_was_taken_down(det, url, postgresql, way):
    if way == "option":
        det.out("deploy", "local", "cluster-up", "--db", url)
    else:
        det.with_variables(DET_KERAS_DB=url).out("experiment", "list")
    create(det)
    assert count(postgresql, url) == 1
    process.stop(Home(det.home))
    assert "kept" in det.out("experiment", "list")
    det.out("deploy", "local", "cluster-down")
    assert "kept" in det.out("experiment", "list")
    assert not Home(det.home).database.exists()


def test_sqlite_is_used_again_when_asked_for(det, url):
    det.out("deploy", "local", "cluster-up", "--db", url)
    refused = det("deploy", "local", "cluster-up", "--db", "sqlite")
    assert refused.returncode == 1
    assert "on another database" in refused.stderr
    det.out("deploy", "local", "cluster-down")
    printed = det.out("deploy", "local", "cluster-up", "--db", "sqlite")
    assert "used another database before" in printed
    det.out("deploy", "local", "cluster-down")
    det.out("experiment", "list")
    assert Home(det.home).database.exists()


def test_password_is_in_one_file_for_its_owner_and_nowhere_else(det, url, postgresql):
    secret = postgresql.tcp_url(postgresql.name_of(url))
    printed = [det.with_variables(DET_KERAS_DB=secret).out("deploy", "local", "cluster-up")]
    home = Home(det.home)
    det.write("config.yaml", "entrypoint: env\nsearcher: {name: single, metric: loss}\n")
    (det.directory / "code").mkdir()
    printed.append(det.out("experiment", "create", "config.yaml", "code", "--follow"))
    running = process.find(home)
    assert running is not None
    family = [psutil.Process(running.pid), *psutil.Process(running.pid).children(recursive=True)]
    printed += [" ".join(one.cmdline()) for one in family]
    printed += [det.out("master", "info"), det.out("trial", "logs", "1"), det.out("deploy", "local", "logs")]
    quoted = secret.partition("postgres:")[2].partition("@")[0]
    assert not [text for text in printed if PASSWORD in text or quoted in text or "DET_KERAS_DB" in text]
    files = [path for path in home.root.rglob("*") if path.is_file()]
    holding = [path for path in files if quoted.encode() in path.read_bytes()]
    assert holding == [process.options_file(home)]
    assert stat.S_IMODE(holding[0].stat().st_mode) == 0o600


def wrong_urls(postgresql: PostgresServer) -> dict[str, tuple[str, str]]:
    """Return wrong URLs, and what the message says."""
    old = postgresql.create()
    postgresql.sql(f"DROP DATABASE {old}")
    postgresql.sql("DROP DATABASE IF EXISTS latin")
    postgresql.sql(
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' LOCALE_PROVIDER libc"
    )
    return {
        "kind": ("mysql://me:secret@host/name", "must be `sqlite` or a URL"),
        "unquoted password": ("postgresql://me:se@c/ret@host/name", "cannot be read"),
        "option": ("postgresql://me:secret@host/name?nonsense=1", "cannot be read"),
        "down": ("postgresql://me:secret@127.0.0.1:1/name", "Connection refused"),
        "password": (postgresql.tcp_url("postgres", "secret"), "password authentication failed"),
        "missing": (postgresql.url(old), f'database "{old}" does not exist'),
        "encoding": (postgresql.url("latin"), "has the encoding LATIN1"),
    }


def test_each_wrong_database_is_one_line_without_a_password(det, postgresql):
    for name, (url, message) in wrong_urls(postgresql).items():
        done = det("deploy", "local", "cluster-up", "--db", url)
        assert done.returncode == 1, name
        assert done.stderr.count("\n") == 1, (name, done.stderr)
        assert message in done.stderr, name
        assert not any(part in done.stderr for part in ("secret", "ret@", "se@c", "Traceback")), (
            name,
            done.stderr,
        )
        assert not process.options_file(Home(det.home)).exists()
    assert not Home(det.home).database.exists()


def test_old_server_is_refused(url, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "_OLDEST", 1000)
    store = Store(open_database(url, tmp_path / "none"), Notifier())
    with pytest.raises(DetError, match="Version 1000 or newer is required"):
        store.migrate()
    store.close()


def test_missing_driver_is_one_line_with_the_command_that_installs_it(det, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "psycopg.py").write_text("raise ImportError('not here')")
    code = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from det_keras.master.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "hidden"), "--home", str(tmp_path / "home")],
        env={**det.environment(), "DET_KERAS_DB": "postgresql://host/name"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == process.REFUSED
    assert done.stderr == (
        "PostgreSQL requires the package `psycopg`: `pip install 'det_keras[postgresql]'`.\n"
    )


@pytest.mark.parametrize(
    "code", ["import det_keras", "import det_keras.cli.main", "import det_keras.master.embedded"]
)
def test_driver_is_not_imported_without_need(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('psycopg' in sys.modules)"], capture_output=True
    )
    assert done.stdout == b"False\n"


def test_broken_options_file_is_not_taken_for_another_database(det, url):
    det.out("deploy", "local", "cluster-up", "--db", url)
    process.stop(Home(det.home))
    options = json.loads(process.options_file(Home(det.home)).read_text())
    assert options["db"] == url
    process.options_file(Home(det.home)).write_text("{")
    done = det("experiment", "list")
    assert done.returncode == 1
    assert "options.json" in done.stderr
    assert not Home(det.home).database.exists()
