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
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from det_keras.errors import DetError
from det_keras.home import Home

__all__ = [
    "MasterOptions",
    "RunningMaster",
    "find",
    "forget",
    "hold",
    "lock_file",
    "remembered",
    "start",
    "stop",
]

_PROBE_S = 0.02
_ANSWER_S = 5.0
_LINES_OF_LOG = 15
# `_is_held` takes the lock for an instant. A master that starts at that moment retries for this long.
_LOCK_PATIENCE_S = 1.0


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
    """

    host: str | None = None
    port: int | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    trusted: str | None = None
    info_mounts: bool = False

    def absolute(self) -> MasterOptions:
        """Return the same with absolute paths."""
        files = {name: getattr(self, name) for name in ("tls_cert", "tls_key", "trusted")}
        found: dict[str, Any] = {
            name: str(Path(file).absolute()) for name, file in files.items() if file is not None
        }
        return replace(self, **found)


def find(home: Home) -> RunningMaster | None:
    """Return the master that serves a data root; None if there is none, or it is still starting."""
    if not _is_held(home):
        return None
    try:
        running = _announced(home)
    except (OSError, ValueError, KeyError):
        return None
    return running if _answers(running) else None


def start(
    home: Home,
    port: int | None = None,
    slots: int | None = None,
    timeout_s: float = 60.0,
    *,
    options: MasterOptions | None = None,
) -> RunningMaster:
    """Start a master for a data root, or return the running master. Returns when it is ready.

    Args:
        home: the data root; created if it does not exist.
        port: the port on loopback; None for 8080 or, if that is taken, a free one.
        slots: number of slots for tasks; None for all of the machine.
        timeout_s: limit for the start, in seconds.
        options: how to start it, instead of `port`. A certificate with its address, and `info_mounts`, are remembered
            until `forget`: a later start without options, as after a crash, uses them again.

    Raises:
        DetError: the master did not start; the message has the end of its log.
    """
    running = find(home)
    if running is not None:
        return running
    home.create()
    begins_at = home.master_log.stat().st_size if home.master_log.exists() else 0
    asked = options
    if options is None:
        options = MasterOptions(port=port) if port is not None else remembered(home)
    child = _spawn(home, options.absolute(), slots)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        has_ended = child.poll() is not None
        running = find(home)
        # Another process may have started a master at the same time. Only one of the two gets the lock; the
        # other ends. Return the one that holds it.
        if running is not None:
            if asked is not None:
                _remember(home, asked.absolute())
            return running
        if has_ended and not _is_held(home):
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
        from det_keras.master.resources.local import kill_everything

        kill_everything(home)
    return running


def forget(home: Home) -> None:
    """Let the next start without options use the defaults again."""
    _options_file(home).unlink(missing_ok=True)


def remembered(home: Home) -> MasterOptions:
    """Return the options that a start without options uses."""
    try:
        return MasterOptions(**json.loads(_options_file(home).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return MasterOptions()


def lock_file(home: Home) -> Path:
    """Return the file that a master keeps locked while it runs."""
    return home.root / "master.lock"


def hold(home: Home) -> IO[str] | None:
    """Lock a data root for this process; return the open lock file, None if another master holds it.

    The lock ends with the process, however it ends: a kill leaves no stale lock.
    """
    file = lock_file(home).open("a", encoding="utf-8")
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
            return file


def _owner(home: Home) -> RunningMaster | None:
    """Return the process that holds a data root, even if it does not answer."""
    deadline = time.monotonic() + _ANSWER_S
    while _is_held(home) and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError):
            return _announced(home)
        # The master takes the lock before it writes its file: it is still starting.
        time.sleep(_PROBE_S)
    return None


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
    return RunningMaster(content["url"], int(content["pid"]), content.get("cert_file"))


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


def _options_file(home: Home) -> Path:
    return home.root / "options.json"


def _remember(home: Home, options: MasterOptions) -> None:
    # On loopback the port is chosen anew: that of the last time may be taken.
    kept = options if options.tls_cert is not None else MasterOptions(info_mounts=options.info_mounts)
    if kept == MasterOptions():
        forget(home)
    else:
        _options_file(home).write_text(json.dumps(asdict(kept)), encoding="utf-8")


def _spawn(home: Home, options: MasterOptions, slots: int | None) -> subprocess.Popen[bytes]:
    values = [
        ("--host", options.host),
        ("--port", options.port),
        ("--tls-cert", options.tls_cert),
        ("--tls-key", options.tls_key),
        ("--slots", slots),
    ]
    arguments = [text for name, value in values if value is not None for text in (name, str(value))]
    if options.info_mounts:
        arguments.append("--info-mounts")
    environment = dict(os.environ)
    if options.trusted is not None:
        environment["DET_MASTER_CERT_FILE"] = options.trusted
    root = str(Path(__file__).resolve().parents[2])
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    environment["PYTHONPATH"] = os.pathsep.join(paths if root in paths else [*paths, root])
    with home.master_log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "det_keras.master", "--home", str(home.root), *arguments],
            cwd=home.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _last_output(log: Path, begins_at: int) -> str:
    """Return the end of a master's output since it was started."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(begins_at)
        lines = list(_tail(file))
        if lines:
            return "Its last output:\n" + "\n".join(lines)
    return f"It printed nothing; see {log}."


def _tail(file: IO[bytes]) -> Iterator[str]:
    yield from file.read().decode(errors="replace").splitlines()[-_LINES_OF_LOG:]
