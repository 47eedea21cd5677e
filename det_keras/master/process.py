"""The master as a process: how other processes find, start and stop it.

Importing this module is cheap: the command line and scripts import it first.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from det_keras.errors import DetError
from det_keras.files import write_file
from det_keras.home import Home
from det_keras.launch.importable import importable

#: The exit code of a master that cannot start for a reason that the user can change; EX_CONFIG of sysexits.h.
REFUSED = 78

# Names the database; see `database_url`.
_DATABASE = "DET_KERAS_DB"
_PROBE_S = 0.02
_ANSWER_S = 5.0
_LINES_OF_LOG = 15
# `_is_held` takes the lock for an instant. A master that starts at that moment retries for this long.
_LOCK_PATIENCE_S = 1.0
# What a file that is not that of a running master raises when it is read.
_DAMAGED = (ValueError, KeyError, TypeError, AttributeError)


class Child(Protocol):
    """A master's process that is starting, as `subprocess.Popen` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""


#: Starts the process of a master, given its data root, arguments and environment.
Spawn = Callable[[Home, Sequence[str], Mapping[str, str]], Child]


@dataclass(frozen=True)
class RunningMaster:
    """A running master.

    Attributes:
        url: its address, with scheme and port.
        pid: its process id.
        cert_file: PEM file with which its certificate is checked; None without TLS.
    """

    url: str
    pid: int
    cert_file: str | None = None


@dataclass(frozen=True)
class MasterOptions:
    """How a master is started; None leaves the choice to the master.

    Attributes:
        host: address; loopback by default, others need TLS.
        port: 8080 by default or, if that is taken, a free one.
        tls_cert: PEM file with the certificate.
        tls_key: PEM file with the certificate's key.
        trusted: PEM file with which clients check the certificate; None for ``DET_MASTER_CERT_FILE``.
        info_mounts: run each task in a mount namespace with the info files of Determined's own package.
        db: ``sqlite`` or a URL of PostgreSQL, which may contain a password; None for that of the last start.
        ray: address of the Ray cluster on which tasks run; None for this machine.
        advertise: the URL under which tasks reach the master; None for that of `host` and `port`.
        scheduler: ``priority`` or ``fair_share``; None for ``priority``.
        preemption: with ``priority``, whether a waiting task may preempt running trials of lower priority.
        shared_links: whether links to reports are served without a login.
        log_retention_days: days that logs are kept whose configs do not say; None for ever.
    """

    host: str | None = None
    port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted: str | None = None
    info_mounts: bool = False
    db: str | None = None
    ray: str | None = None
    advertise: str | None = None
    scheduler: str | None = None
    preemption: bool = False
    shared_links: bool = False
    log_retention_days: int | None = None

    def absolute(self) -> MasterOptions:
        """Return the same with absolute paths."""
        files = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "trusted")}
        found: dict[str, Any] = {
            name: str(Path(file).absolute()) for name, file in files.items() if file is not None
        }
        return replace(self, **found)


def find(home: Home) -> RunningMaster | None:
    """Return the master that serves a data root; None if there is none, or it is still starting.

    Raises:
        DetError: other accounts can write into the root, and could name a master of their own there; or the file that
            names the running master is damaged.
    """
    home.refuse_shared()
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while _is_held(home):
        try:
            running = _announced(home)
        except OSError:
            return None
        except _DAMAGED as error:
            # A master that has just taken the lock deletes what an earlier one left.
            if time.monotonic() > deadline:
                raise DetError(
                    f"The file {home.master_file} with the address of the running master is damaged. Restart the "
                    "master: `det deploy local cluster-down`, then `det deploy local cluster-up`."
                ) from error
            time.sleep(_PROBE_S)
        else:
            return running if _answers(running) else None
    return None


def start(
    home: Home,
    port: int | None = None,
    slots: int | None = None,
    timeout_s: float = 60.0,
    *,
    options: MasterOptions | None = None,
    spawn: Spawn | None = None,
) -> RunningMaster:
    """Start a master for a data root, or return the running master. Returns when it is ready.

    Args:
        home: the data root; created if it does not exist.
        port: the port on loopback; None for 8080 or, if that is taken, a free one.
        slots: number of slots for tasks; None for all of the machine.
        timeout_s: limit for the start, in seconds.
        options: how to start it, instead of `port`. They are remembered until `forget`: a later start without options,
            as after a crash, uses them again, except for an address on loopback. The database is remembered beyond
            that, because it has the experiments of this data root.
        spawn: starts its process, with the arguments and the environment of ``python -m det_keras.master``; None for a
            new interpreter.

    Raises:
        DetError: the master did not start; the message has the end of its log.
    """
    running = find(home)
    if running is not None:
        return running
    home.create()
    begins_at = home.master_log.stat().st_size if home.master_log.exists() else 0
    known = remembered(home)
    kept = options or known
    if options is None:
        options = MasterOptions(port=port) if port is not None else known
    options = replace(options, db=options.db or database_url(home, os.environ))
    arguments, environment = _command_line(home, options.absolute(), slots)
    home.master_log.touch(mode=0o600)
    child = (spawn or _spawn)(home, arguments, environment)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        has_ended = child.poll() is not None
        running = find(home)
        # Another process may have started a master at the same time. Only one of the two gets the lock; the
        # other ends. Return the one that holds it.
        if running is not None:
            db = options.db if running.pid == child.pid else remembered(home).db
            remember(home, replace(kept.absolute(), db=db))
            return running
        if has_ended and not _is_held(home):
            if child.returncode == REFUSED:
                # Its last line says why, for the user.
                raise DetError(_tail(home.master_log, begins_at)[-1])
            raise DetError(f"The master did not start. {_last_output(home.master_log, begins_at)}")
        time.sleep(_PROBE_S)
    raise DetError(
        f"The master was not ready after {timeout_s:g} s. {_last_output(home.master_log, begins_at)}"
    )


def stop(home: Home, *, kill_tasks: bool = False, timeout_s: float = 30.0) -> RunningMaster | None:
    """Stop the master of a data root and return it; None if none ran.

    Trials and jobs continue under their supervisors. The next master finds them again.

    Args:
        home: the data root.
        kill_tasks: kill trials and jobs as well; the next master runs trials again from their checkpoints.
        timeout_s: limit for stopping, in seconds.

    Raises:
        DetError: the master does not stop in time.
    """
    running = _owner(home)
    if running is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(running.pid, signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        while _is_held(home):
            if time.monotonic() > deadline:
                raise DetError(f"The master (process {running.pid}) did not stop within {timeout_s:g} s.")
            time.sleep(_PROBE_S)
    if kill_tasks:
        from det_keras.master.resources import local, ray

        local.kill_everything(home)
        ray.kill_everything(home)
    return running


def forget(home: Home) -> None:
    """Let the next start without options use the defaults again, but with the same database."""
    remember(home, MasterOptions(db=remembered(home).db))


def database_url(home: Home, environment: Mapping[str, str]) -> str:
    """Return the database of a data root: ``sqlite``, or a URL of PostgreSQL, which may contain a password.

    Args:
        home: the data root; the database of its last master is the default.
        environment: ``DET_KERAS_DB`` takes precedence.
    """
    return environment.get(_DATABASE) or remembered(home).db or "sqlite"


def remembered(home: Home) -> MasterOptions:
    """Return the options that a start without options uses.

    Raises:
        DetError: their file is damaged. Defaults in its place could mean another, empty database.
    """
    file = options_file(home)
    try:
        return MasterOptions(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return MasterOptions()
    except (ValueError, TypeError) as error:
        raise DetError(
            f"The master's options in {file} cannot be read ({error}). "
            "Delete the file, and name the database again with `det deploy local cluster-up --db`."
        ) from error


def remember(home: Home, options: MasterOptions) -> None:
    """Let a start without options use these, as far as they are kept; see `start`."""
    # On loopback the port is chosen anew: that of the last time may be taken.
    kept = options
    if options.tls_cert is None:
        kept = replace(options, host=None, port=None, trusted=None)
    kept = replace(kept, db=None if options.db == "sqlite" else options.db)
    file = options_file(home)
    if kept == MasterOptions():
        file.unlink(missing_ok=True)
    elif kept != remembered(home):
        # The URL of the database may contain a password.
        write_file(file, json.dumps(asdict(kept)), mode=0o600)


def options_file(home: Home) -> Path:
    """Return the file with what a start without options uses; mode 0600."""
    return home.root / "options.json"


def lock_file(home: Home) -> Path:
    """Return the file that a master keeps locked while it runs, with its process id.

    Its mode is 0600: whoever can read it could lock it.
    """
    return home.root / "master.lock"


def hold(home: Home) -> IO[str] | None:
    """Lock a data root for this process; return the open lock file, None if another master holds it.

    The lock ends with the process, however it ends: a kill leaves no stale lock.
    """
    file = open(lock_file(home), "a", encoding="utf-8", opener=_open_private)  # noqa: SIM115 - open for as long as the caller wants
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                file.close()
                return None
            time.sleep(_PROBE_S)
        else:
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            return file


def _open_private(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, 0o600)
    # An earlier release made it readable for others.
    os.fchmod(descriptor, 0o600)
    return descriptor


def _owner(home: Home) -> RunningMaster | None:
    """Return the process that holds a data root, even if it does not answer."""
    deadline = time.monotonic() + _ANSWER_S
    while _is_held(home) and time.monotonic() < deadline:
        with contextlib.suppress(OSError, *_DAMAGED):
            return _announced(home)
        # The master takes the lock before it writes its file: it is still starting, or the file is damaged.
        time.sleep(_PROBE_S)
    pid = _holder(home) if _is_held(home) else None
    return None if pid is None else RunningMaster("an unknown address", pid)


def _holder(home: Home) -> int | None:
    """Return the process that took the lock last; None if an earlier release did, which left it empty."""
    text = lock_file(home).read_text(encoding="utf-8")
    return int(text) if text.isdecimal() else None


def _is_held(home: Home) -> bool:
    try:
        file = lock_file(home).open("r", encoding="utf-8")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def _announced(home: Home) -> RunningMaster:
    content = json.loads(home.master_file.read_text(encoding="utf-8"))
    running = RunningMaster(str(content["url"]), int(content["pid"]), content.get("cert_file"))
    holder = _holder(home)
    if holder not in (None, running.pid):
        raise ValueError(f"process {running.pid} is not the one with the lock, {holder}")
    return running


def _answers(running: RunningMaster) -> bool:
    with contextlib.closing(_connection(running)) as connection:
        try:
            connection.request("GET", "/info")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False


def _connection(running: RunningMaster) -> http.client.HTTPConnection:
    address = urlsplit(running.url)
    host = address.hostname or ""
    if address.scheme != "https":
        return http.client.HTTPConnection(host, address.port, timeout=_ANSWER_S)
    # Imported here: it takes longer than the rest of this module, and most masters are on loopback.
    import ssl

    trust = ssl.create_default_context(cafile=running.cert_file)
    return http.client.HTTPSConnection(host, address.port, timeout=_ANSWER_S, context=trust)


def _command_line(home: Home, options: MasterOptions, slots: int | None) -> tuple[list[str], dict[str, str]]:
    """Return the arguments of ``python -m det_keras.master``, and its environment."""
    values = [
        ("--home", home.root),
        ("--host", options.host),
        ("--port", options.port),
        ("--tls-cert", options.tls_cert),
        ("--tls-key", options.tls_key),
        ("--slots", slots),
        ("--ray", options.ray),
        ("--advertise", options.advertise),
        ("--scheduler", options.scheduler),
        ("--log-retention-days", options.log_retention_days),
    ]
    arguments = [text for name, value in values if value is not None for text in (name, str(value))]
    if options.info_mounts:
        arguments.append("--info-mounts")
    if options.preemption:
        arguments.append("--preemption")
    if options.shared_links:
        arguments.append("--shared-links")
    environment = importable(os.environ)
    # Not an argument: all accounts of the machine can read those.
    environment[_DATABASE] = options.db or "sqlite"
    if options.trusted is not None:
        environment["DET_MASTER_CERT_FILE"] = options.trusted
    return arguments, environment


def _spawn(home: Home, arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with home.master_log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "det_keras.master", *arguments],
            cwd=home.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _last_output(log: Path, begins_at: int) -> str:
    """Return the end of a master's output since it was started."""
    with contextlib.suppress(OSError):
        lines = _tail(log, begins_at)
        if lines:
            return "Its last output:\n" + "\n".join(lines)
    return f"It printed nothing; see {log}."


def _tail(log: Path, begins_at: int) -> list[str]:
    with log.open("rb") as file:
        # The log may have been rotated in the meantime.
        file.seek(begins_at if begins_at <= log.stat().st_size else 0)
        return file.read().decode(errors="replace").splitlines()[-_LINES_OF_LOG:]
