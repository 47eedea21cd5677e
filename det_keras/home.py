"""The data root: the directory of one user's master, runs and checkpoints.

Each root has its own master. All paths that processes share are defined here, so that the master, the command line
and a script without a master agree on them.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from det_keras.errors import DetError

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Home:
    """The paths under one data root.

    Attributes:
        root: the directory; it may not exist yet.
    """

    root: Path

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Home:
        """Return the root that ``DET_KERAS_HOME`` names, else the platform's user data folder.

        Raises:
            DetError: the user has no home directory.
        """
        environ = os.environ if environ is None else environ
        named = environ.get("DET_KERAS_HOME")
        # Imported here: `det --help` and `import det_keras` do not need it.
        import platformdirs

        try:
            root = Path(named or platformdirs.user_data_dir("det_keras", appauthor=False))
            return cls(root.expanduser().absolute())
        except RuntimeError as error:
            raise DetError(
                "There is no directory for the files of det_keras, because this user has no home directory. Set "
                "DET_KERAS_HOME to a directory that may be written."
            ) from error

    def create(self) -> Home:
        """Create the root, readable only by its owner, and return this object.

        Raises:
            DetError: it cannot be created, or other accounts can write into it.
        """
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise DetError(
                f"The directory for the files of det_keras cannot be created: {error.strerror}: {error.filename}. Set "
                "DET_KERAS_HOME to a directory that may be written."
            ) from error
        self.refuse_shared()
        return self

    def refuse_shared(self) -> None:
        """Refuse a root into which other accounts can write; one that does not exist is accepted.

        The files of a root name the master that this account trusts, and what it runs. Folders above the root are not
        checked: whoever replaces the root there can only do so with a folder that is not of this account.

        Raises:
            DetError: the root is of another account, or others may write into it.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            facts = self.root.stat()
            place = shlex.quote(str(self.root))
            if facts.st_uid != os.getuid():
                raise DetError(
                    f"The directory {self.root} for the files of det_keras belongs to another account (uid "
                    f"{facts.st_uid}, this is {os.getuid()}). Set DET_KERAS_HOME to a directory of this account, or "
                    f"take it over: chown -R {os.getuid()} {place}"
                )
            if facts.st_mode & _WRITABLE_BY_OTHERS:
                raise DetError(
                    f"Other accounts can write into the directory {self.root} for the files of det_keras (mode "
                    f"{stat.S_IMODE(facts.st_mode):04o}). Check that its files are yours, and run: chmod go-w {place}"
                )

    @property
    def database(self) -> Path:
        """The master's SQLite database."""
        return self.root / "master.db"

    @property
    def last_backup_file(self) -> Path:
        """The path of the last backup."""
        return self.root / "last-backup"

    @property
    def last_backup(self) -> Path | None:
        """The last backup of this root; None if there is none."""
        with contextlib.suppress(OSError, ValueError):
            return Path(self.last_backup_file.read_text(encoding="utf-8"))
        return None

    @property
    def master_file(self) -> Path:
        """JSON with `url` and `pid` of the running master; mode 0600."""
        return self.root / "master.json"

    @property
    def master_log(self) -> Path:
        """The output of the master."""
        return self.root / "master.log"

    @property
    def token_file(self) -> Path:
        """The user token of the command line; mode 0600."""
        return self.root / "token"

    @property
    def password_file(self) -> Path:
        """The initial password of the user `determined`; mode 0600."""
        return self.root / "password"

    @property
    def admin_password_file(self) -> Path:
        """The initial password of the user `admin`; mode 0600."""
        return self.root / "admin-password"

    @property
    def webhook_key_file(self) -> Path:
        """The key with which the master signs what it sends to webhooks; mode 0600."""
        return self.root / "webhook-key"

    @property
    def checkpoints(self) -> Path:
        """Default storage: one directory per checkpoint UUID."""
        return self.root / "checkpoints"

    @property
    def logs(self) -> Path:
        """Logs and exit codes from supervisors, one directory per allocation."""
        return self.root / "logs"

    @property
    def environments(self) -> Path:
        """Python environments of tasks, by the hash of what was asked for."""
        return self.root / "environments"

    @property
    def runs(self) -> Path:
        """Run directories of scripts that run without a master and set no `run_dir`."""
        return self.root / "runs"


def private_temporary_folder(*names: str) -> Path:
    """Return a folder of this account below the temporary folder of the machine; created if it does not exist.

    Args:
        names: its path below the account's own folder there.

    Raises:
        PermissionError: another account made one of the folders, or may write into it.
    """
    import tempfile

    folder = Path(tempfile.gettempdir())
    for name in (f"det_keras-{os.getuid()}", *names):
        folder /= name
        # One by one: the mode of parents that are made on the way would be that of the umask.
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        # Checked before anything is made below it: it could be a link of another account.
        facts = folder.lstat()
        is_ours = facts.st_uid == os.getuid() and not facts.st_mode & _WRITABLE_BY_OTHERS
        if not stat.S_ISDIR(facts.st_mode) or not is_ours:
            raise PermissionError(f"{folder} is not a folder of this account alone")
    return folder
