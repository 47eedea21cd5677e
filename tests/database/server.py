"""A PostgreSQL server of the tests' own, and a database in it for each data root."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from sqlalchemy import Connection, Engine

from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.engines import Database, open_database

__all__ = [
    "MISSING",
    "PASSWORD",
    "Given",
    "PostgresServer",
    "assign",
    "changing",
    "give",
    "is_chosen",
    "rows_of",
    "running",
]

MISSING = "PostgreSQL is not installed: run tests/database/install.sh"
#: The password of the user `postgres` over TCP, with characters that a URL must quote.
PASSWORD = "p@ss/w%rd"

# The tests kill masters, not the machine.
_UNSAFE_BUT_FAST = ("fsync=off", "full_page_writes=off", "autovacuum=off")


def is_chosen() -> bool:
    """Return whether all masters of this run of the tests use PostgreSQL."""
    return os.environ.get("DET_KERAS_TEST_DATABASE") == "postgresql"


def _find_programs() -> Path | None:
    """Return the folder of the newest server that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[4]))
    named = shutil.which("postgres")
    return found[-1].parent if found else Path(named).resolve().parent if named else None


class PostgresServer:
    """A server.

    Args:
        programs: the folder of its programs.
        folder: its files, and the socket on which it asks for no password.
        is_durable: whether a commit waits for the disk.

    Attributes:
        port: on 127.0.0.1, where it asks for `PASSWORD`.
    """

    def __init__(self, programs: Path, folder: Path, *, is_durable: bool = False) -> None:
        self.folder = folder
        self._settings = () if is_durable else _UNSAFE_BUT_FAST
        self._programs = programs
        self._numbers = itertools.count(1)
        # The server refuses to run as root.
        self._prefix: list[str] = []
        if os.geteuid() == 0:
            self._prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(folder, "postgres", "postgres")
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            self.port = listener.getsockname()[1]
        secret = folder / "secret"
        secret.write_text(PASSWORD)
        if self._prefix:
            # Under the umask 077 only root could read it.
            shutil.chown(secret, "postgres", "postgres")
        options = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={secret}", "--no-sync"]
        # An order of texts that is not that of their bytes, which is SQLite's.
        order = ["--encoding=UTF8", "--locale=C.UTF-8", "--locale-provider=icu", "--icu-locale=en"]
        self._run("initdb", "-D", str(folder / "data"), "-U", "postgres", *options, *order)
        self.start()

    def start(self) -> None:
        """Start the server; returns when it accepts connections."""
        options = [f"--{option}" for option in self._settings]
        options += ["-k", str(self.folder), "-h", "127.0.0.1", "-p", str(self.port), "-N", "300"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, str(self._programs / "postgres"), "-D", str(self.folder / "data"), *options],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 30
        while self._run("pg_isready", "-q", "-h", str(self.folder), "-p", str(self.port), check=False):
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT closes all sessions, SIGQUIT is a crash."""
        self._process.send_signal(how)
        self._process.wait(30)

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server and start it again."""
        self.stop(how)
        self.start()

    def url(self, name: str) -> str:
        """Return the URL of a database, through the socket."""
        return f"postgresql://postgres@/{name}?host={self.folder}&port={self.port}"

    def tcp_url(self, name: str, password: str = PASSWORD, port: int | None = None) -> str:
        """Return the URL of a database, through TCP and with a password."""
        return f"postgresql://postgres:{quote(password, safe='')}@127.0.0.1:{port or self.port}/{name}"

    def sql(self, statement: str, database: str = "postgres") -> list[list[str]]:
        """Run a statement with the server's own client; return the rows as texts."""
        options = ["-X", "-q", "-A", "-t", "-F", "\t", "-v", "ON_ERROR_STOP=1", "-d", self.url(database)]
        done = subprocess.run(
            [self._programs / "psql", *options, "-c", statement],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return [line.split("\t") for line in done.stdout.splitlines()]

    def create(self, template: str = "template0") -> str:
        """Create a database and return its name."""
        name = f"{'shared' if template == 'template0' else 'copy'}_{os.getpid()}_{next(self._numbers)}"
        self.sql(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop(self, name: str) -> None:
        """Delete a database, even if it is in use."""
        self.sql(f"DROP DATABASE {name} WITH (FORCE)")

    def end_sessions(self, url: str) -> None:
        """End all sessions of the database at `url`, as a restart of the server does; return when they have ended."""
        self.sql(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity"
            f" WHERE datname = '{self.name_of(url)}'"
        )

    @staticmethod
    def name_of(url: str) -> str:
        """Return the name of the database at `url`."""
        return urlsplit(url).path.strip("/")

    def run_as_user(self, program: str, *arguments: str) -> None:
        """Run one of the server's programs as a user would."""
        subprocess.run([self._programs / program, *arguments], check=True)

    def _run(self, program: str, *arguments: str, check: bool = True) -> int:
        command = [*self._prefix, str(self._programs / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.returncode


@contextlib.contextmanager
def running(*, is_durable: bool = False) -> Iterator[PostgresServer | None]:
    """Yield a server; None if none is installed.

    Args:
        is_durable: whether it has its default settings, with which a commit waits for the disk.
    """
    programs = _find_programs()
    if programs is None:
        yield None
        return
    # Not below pytest's folders or TMPDIR: the user `postgres` has to enter it, a socket's path has at most 107
    # characters, and it is in URLs as it is.
    folder = Path(tempfile.mkdtemp(prefix="det_keras-pg-", dir="/tmp"))
    try:
        server = PostgresServer(programs, folder, is_durable=is_durable)
        try:
            yield server
        finally:
            server.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Given:
    """What a data root was given: a database of a server, or nothing, which leaves it SQLite."""

    server: PostgresServer | None
    name: str = ""

    def drop(self) -> None:
        """Delete the database, even if it is in use."""
        if self.server is not None:
            self.server.drop(self.name)


def give(server: PostgresServer | None, home: Home, template: Given | None = None) -> Given:
    """Give a data root a database of a server, empty or a copy of another data root's."""
    if server is None:
        return Given(None)
    name = server.create("template0" if template is None else template.name)
    assign(home, server.url(name))
    return Given(server, name)


@contextlib.contextmanager
def rows_of(home: Home) -> Iterator[Connection]:
    """Yield a connection to the database of a data root, beside a master that may run."""
    with _connected(home, lambda database: database.readers) as connection:
        yield connection


@contextlib.contextmanager
def changing(home: Home) -> Iterator[Connection]:
    """Yield a connection that changes the database of a data root while no master runs."""
    with _connected(home, lambda database: database.writers) as connection:
        yield connection


@contextlib.contextmanager
def _connected(home: Home, engine_of: Callable[[Database], Engine]) -> Iterator[Connection]:
    database = open_database(process.database_url(home, {}), home.database)
    try:
        with engine_of(database).begin() as connection:
            yield connection
    finally:
        database.close()


def assign(home: Home, url: str) -> None:
    """Let the masters of a data root use a database, as if an earlier one had used it."""
    process.remember(home.create(), process.MasterOptions(db=url))
