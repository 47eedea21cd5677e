"""The environments that are kept on a machine, by the hash of what was asked for.

For each there are a directory and two files beside it:

    <key>/         the environment; `complete.json` in it is written last, and without it there is no environment
    <key>.build    locked (flock) while the directory is built or removed
    <key>.use      locked, shared, while a task uses the environment; its time of change is that of the last use

Environments cannot be moved, since programs in them name their path. They are therefore built in place, and the file
`complete.json` publishes them. The build's lock is passed to the processes of the build, so that it is free only when
the last of them has ended, also after the supervisor was killed.

Locks are always taken in this order: `.build`, then `.use`.

Each supervisor imports this module, so it imports little.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from det_keras.files import write_file

#: How long an environment is kept without use.
KEPT_S = 30 * 24 * 3600.0

_COMPLETE = "complete.json"
_BUILD = ".build"
_USE = ".use"
# A lock that is free again within this time was only looked at.
_SHORT_WAIT_S = 0.3


class EnvironmentCache:
    """The environments below one directory.

    Args:
        folder: the directory; it may not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(
        self, key: str, build: Callable[[Path, IO[str]], dict[str, Any]], wait: Callable[[], None]
    ) -> tuple[Path, dict[str, Any], IO[str]]:
        """Return an environment, built if it does not exist, and hold it until the returned file is closed.

        Args:
            key: the hash of the request.
            build: builds the environment in a directory that does not exist yet, and returns what to record about it.
                It also gets the build's lock, to be passed to the processes that it starts.
            wait: called if another process builds the same environment, before waiting for it.

        Returns:
            The directory, what `build` recorded, and the file whose lock keeps the environment from being removed.

        Raises:
            OSError: the directory cannot be written.
            Exception: what `build` raises; nothing is left of its work then.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = self.folder / key
        with self._locked(f"{key}{_BUILD}", wait) as lock:
            record = _read_record(environment)
            if record is None:
                # The remains of a build that was killed.
                shutil.rmtree(environment, ignore_errors=True)
                try:
                    record = build(environment, lock)
                    _publish(environment, record)
                except BaseException:
                    shutil.rmtree(environment, ignore_errors=True)
                    raise
            # Under the build's lock, which a removal needs as well.
            use = self._open(f"{key}{_USE}")
            fcntl.flock(use, fcntl.LOCK_SH)
            os.utime(use.name)
        return environment, record, use

    def release(self, use: IO[str]) -> None:
        """End the use of an environment, and record its time."""
        with contextlib.suppress(OSError):
            os.utime(use.name)
        use.close()

    def remove_unused(self, now: float | None = None, *, kept_s: float = KEPT_S) -> list[str]:
        """Remove environments that were not used for a while and the remains of killed builds; return their keys.

        Environments that are being built, or that a task uses, are kept.

        Args:
            now: the time; None for the present.
            kept_s: how long an environment is kept without use.
        """
        latest = (time.time() if now is None else now) - kept_s
        return [key for key in self._keys() if self._is_due(key, latest) and self._remove(key, latest)]

    def unused(self) -> list[str]:
        """Return the keys of the environments that no task uses, and that are not being built."""
        found = []
        for key in self._keys():
            with self._open(f"{key}{_BUILD}") as build, self._open(f"{key}{_USE}") as use:
                if _try_lock(build) and _try_lock(use):
                    found.append(key)
        return found

    def _keys(self) -> list[str]:
        return sorted(path.name.removesuffix(_BUILD) for path in self.folder.glob(f"*{_BUILD}"))

    def _is_due(self, key: str, latest: float) -> bool:
        if _read_record(self.folder / key) is None:
            return True
        try:
            return (self.folder / f"{key}{_USE}").stat().st_mtime <= latest
        except FileNotFoundError:
            return True

    def _remove(self, key: str, latest: float) -> bool:
        with contextlib.ExitStack() as stack:
            for suffix in (_BUILD, _USE):
                lock = stack.enter_context(self._open(f"{key}{suffix}"))
                if not _try_lock(lock) or not _is_current(lock):
                    return False
                if suffix == _BUILD and not self._is_due(key, latest):
                    return False
            with contextlib.suppress(FileNotFoundError):
                (self.folder / key / _COMPLETE).unlink()
            shutil.rmtree(self.folder / key, ignore_errors=True)
            for suffix in (_USE, _BUILD):
                (self.folder / f"{key}{suffix}").unlink(missing_ok=True)
        return True

    def _open(self, name: str) -> IO[str]:
        # For appending: opening must not change the time of the last use. For reading as well: a shared lock on NFS
        # requires it.
        return (self.folder / name).open("a+", encoding="utf-8")

    @contextlib.contextmanager
    def _locked(self, name: str, wait: Callable[[], None]) -> Iterator[IO[str]]:
        while True:
            with self._open(name) as lock:
                if not _lock_soon(lock):
                    wait()
                    fcntl.flock(lock, fcntl.LOCK_EX)
                # The file may have been removed, with its environment, while this process waited for it.
                if _is_current(lock):
                    yield lock
                    return


def default_cache_folder(variables: Mapping[str, str]) -> Path:
    """Return the directory for environments on a machine without a data root.

    Args:
        variables: the environment variables of the task.
    """
    named = variables.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        cache = Path(named)
    elif "HOME" in variables:
        cache = Path(variables["HOME"]) / ".cache"
    else:
        # As in a container that was started for a user without an account.
        from det_keras.home import private_temporary_folder

        cache = private_temporary_folder("cache")
    return cache / "det_keras" / "environments"


def _publish(environment: Path, record: dict[str, Any]) -> None:
    write_file(environment / _COMPLETE, json.dumps(record), is_durable=True)


def _read_record(environment: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((environment / _COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def _lock_soon(lock: IO[str]) -> bool:
    deadline = time.monotonic() + _SHORT_WAIT_S
    while not _try_lock(lock):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _try_lock(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_current(lock: IO[str]) -> bool:
    """Return whether an open lock file still has its name."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), Path(lock.name).stat())
    except FileNotFoundError:
        return False
