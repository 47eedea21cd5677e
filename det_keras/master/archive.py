"""Backs up a data root to one file while its master runs, and restores it.

The file has everything that a master needs except checkpoints: those are large, are complete files in a storage at any
time, and may be in an object store. Neither has it the log lines of a task that the master has not read yet.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from det_keras.errors import DetError
from det_keras.files import write_file
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.database.damage import first_damage
from det_keras.master.database.engines import SQLITE

_CODE = re.compile(r"contexts/[0-9a-f]{64}\.tar\.gz")


@dataclass(frozen=True)
class Backup:
    """What a backup contains.

    Attributes:
        size_bytes: of the file.
        code_archives: how many archives of the code of experiments and jobs it has.
        has_database: False if the database is on a server, which has its own backups.
    """

    size_bytes: int
    code_archives: int
    has_database: bool


def back_up(home: Home, database_url: str, file: Path) -> Backup:
    """Write a backup, which only its owner can read: it has password files.

    Args:
        home: the data root; its master may run.
        database_url: its database.
        file: must not exist.

    Raises:
        DetError: there is no data root, `file` exists, or the database is damaged.
    """
    has_database = database_url == SQLITE
    if has_database and not home.database.exists():
        raise DetError(f"There is no database in {home.root} to back up.")
    if file.exists():
        raise DetError(f"{file} exists. Name a new file.")
    with tempfile.TemporaryDirectory(dir=file.absolute().parent, prefix=f".{file.name}.") as folder:
        draft, snapshot = Path(folder) / "draft", Path(folder) / "database"
        needed: set[str] = set()
        if has_database:
            needed = _snapshot(home.database, snapshot)
        # After the database: code that an experiment of the snapshot uses is stored by then.
        code = {path.name: path for path in sorted((home.root / "contexts").glob("*.tar.gz"))}
        with tarfile.open(draft, "w:gz", compresslevel=1) as archive:
            if has_database:
                archive.add(snapshot, home.database.name)
            for path in _small_files(home):
                if path.exists():
                    archive.add(path, path.name)
            for name, path in code.items():
                # An experiment that was deleted in the meantime has taken its code along.
                with contextlib.suppress(FileNotFoundError):
                    archive.add(path, f"contexts/{name}")
                    needed.discard(name)
        if needed:
            raise DetError("An experiment was deleted during the backup. Run it again.")
        draft.chmod(0o600)
        draft.replace(file)
    # A start that finds the database damaged names it.
    write_file(home.last_backup_file, str(file.absolute()), mode=0o600)
    return Backup(file.stat().st_size, len(code), has_database)


def restore(home: Home, file: Path) -> bool:
    """Restore a backup.

    Args:
        home: an empty data root; created if it does not exist.
        file: the backup.

    Returns:
        Whether the backup contains the database.

    Raises:
        DetError: the data root is not empty, or `file` is not a backup; nothing is written.
    """
    if home.root.exists() and any(home.root.iterdir()):
        raise DetError(f"{home.root} is not empty. Set DET_KERAS_HOME to a new directory.")
    try:
        with tarfile.open(file, "r:gz") as archive:
            members = archive.getmembers()
            for member in members:
                _check(member, home, file)
            home.create()
            for member in members:
                content = archive.extractfile(member)
                assert content is not None
                _write(home.root / member.name, content)
    except (tarfile.TarError, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DetError(f"{file} is not a complete backup: {error}.") from error
    return home.database.exists()


def _small_files(home: Home) -> list[Path]:
    return [home.token_file, home.password_file, home.admin_password_file, process.options_file(home)]


def _snapshot(database: Path, snapshot: Path) -> set[str]:
    """Copy a database in one state, and return the file names of the code that it refers to."""
    with (
        contextlib.closing(sqlite3.connect(database)) as source,
        contextlib.closing(sqlite3.connect(snapshot)) as copy,
    ):
        # In one step: in several it would begin again after each commit of the master.
        source.backup(copy)
        # One file without a journal beside it; the master switches back.
        copy.execute("PRAGMA journal_mode=DELETE")
        # The copy has the pages of the source as they are, also damaged ones.
        damage = first_damage(copy, "integrity_check(1)")
        if damage is not None:
            raise DetError(f"The database {database} is damaged, and was not backed up ({damage}).")
        rows = copy.execute(
            "SELECT context FROM experiments WHERE context IS NOT NULL"
            " UNION SELECT context FROM tasks WHERE context IS NOT NULL"
        )
        return {f"{digest}.tar.gz" for (digest,) in rows}


def _check(member: tarfile.TarInfo, home: Home, file: Path) -> None:
    names = {home.database.name, *(path.name for path in _small_files(home))}
    if not member.isfile() or not (member.name in names or _CODE.fullmatch(member.name)):
        raise DetError(f"{file} is not a backup: it contains {member.name!r}.")


def _write(path: Path, content: IO[bytes]) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        shutil.copyfileobj(content, output)
        output.flush()
        os.fsync(output.fileno())
