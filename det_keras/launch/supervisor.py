"""The parent process of one trial or job: starts its process group, writes its log and stores its exit code.

The master has it forked from a process that has imported this module (`fork_server.py`); as a program it is ``python -m
det_keras.launch.supervisor <directory>/spec.json``. It communicates only through files, so the master may be killed and
started again at any time and finds everything in the directory:

    spec.json         what to run; unlinked once read, since it holds the task's secrets. `python_environment` in it is
                      what the config asks for (`EnvironmentRequest.to_dict`), `environments` the directory of the
                      cache; without it, the cache is in the user's cache directory
    supervisor.lock   locked (flock) for as long as this process lives; holds its pid
    log.jsonl         one log entry a line: {"t": time, "s": stream, "m": text, "r": rank, "l": printed level,
                      "v": level derived from the text}
    exit.json         {"exit_code": n, "reason": text, "time": t}, or {"launch_error": reason}; written last

On a full disk the result waits for space. A task whose files find no space gets no result, and so counts as lost.

The lock prevents two runs. A master that finds an allocation without a supervisor takes the lock itself, unlinks
``spec.json`` and only then launches another supervisor. A supervisor that was only slow to start then finds no spec
under the lock and exits.

Signals: TERM, INT and HUP are forwarded to the task's group, USR1 kills it. The first process of the group may be a
shell, which dies of such a signal at once while the training that it started still saves a checkpoint: the rest of the
group then gets some time. Before there is a group, while the task's environment is built, each of them ends the build
and the task.

The environment (`environments/`) is built here, and not by the master: it belongs to the machine that runs the task.

With ``dies_with_stdin`` in the spec, this process is killed when its standard input ends: with the actor of Ray that
holds the other end, which must not leave a task behind.

If this process is killed, its reaper, a fork, kills the task's group. The reaper inherits the locked file, so the
lock is free only when the group has been killed too.

This module imports little, and no third-party package: a process per trial should cost little memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import selectors
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import IO, Any

from det_keras.compat import with_determined
from det_keras.files import write_file
from det_keras.launch.environments.cache import EnvironmentCache, default_cache_folder
from det_keras.launch.exit_reason import ExitReason
from det_keras.launch.log_lines import LogFile
from det_keras.launch.process_group import (
    GroupReaper,
    child_signals,
    ending_signal,
    has_exited,
    has_members,
    signal_group,
    start_group,
)
from det_keras.protocol.log_lines import LineSplitter

_READ_BYTES = 1 << 16
# A process that the task left running may keep its output open. The wait for it is limited.
_DRAIN_S = 2.0
# After a signal that asks the task to end, its processes may save for so long when their first one has ended; and the
# pause between two looks at them. A machine that shuts down kills all of them earlier.
_SAVING_S = 300.0
_SAVING_PAUSE_S = 0.05
# How long the result of a task waits for space on a full disk, in seconds, and the pause between two attempts.
_FULL_DISK_S = 600.0
_FULL_DISK_PAUSE_S = 0.2
_HOOK = "startup-hook.sh"
# A shell command of one program: no lists, pipes, redirections, or substitutions of commands.
_SIMPLE_COMMAND = re.compile(r"\s*(?P<program>[\w./+-]+)(\s[^;&|<>()`\n]*)?")
# Programs of these names are not what the shell runs.
_SHELL_WORDS = frozenset(
    """. alias bg break builtin case cd command continue declare echo eval exec exit export false fc fg for
    function getopts hash if jobs kill let local printf pwd read readonly return select set shift source test time
    times trap true type typeset ulimit umask unalias unset until wait while""".split()  # noqa: SIM905 - shorter
)
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class LaunchError(Exception):
    """The task could not be started; another try would fail too."""


class _NoSpaceError(Exception):
    """The disk is full; the task may be started again later."""


class _EndedError(Exception):
    """The task ended before it was started; `code` is its exit code."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"ended with exit code {code}")
        self.code = code
        self.reason = reason


def main(arguments: list[str]) -> int:
    """Run the task of the ``spec.json`` at `arguments[0]` to its end."""
    supervise(Path(arguments[0]))
    return 0


def supervise(spec_path: Path, when_locked: Callable[[], object] = lambda: None) -> None:
    """Run the task of a ``spec.json`` to its end.

    Args:
        spec_path: the file.
        when_locked: called once this process holds the lock and its pid is in the file.
    """
    directory = spec_path.parent
    # Open, and so locked, until this process and its reaper have ended. The spec is read only under the lock: a
    # master that held the lock before may have unlinked it.
    lock = (directory / "supervisor.lock").open("a+", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    when_locked()
    spec = _take_spec(spec_path)
    if spec is None or (directory / "exit.json").exists():
        return
    log = LogFile(directory / "log.jsonl")
    # Forked while this process has a single thread.
    reaper = GroupReaper(kept=[lock.fileno()])
    if spec.get("dies_with_stdin", False):
        # A thread, because files may be unpacked and an environment built for minutes before there is a task.
        threading.Thread(target=_die_with_stdin, daemon=True).start()
    try:
        code, reason = _run(spec, log, reaper)
        result: dict[str, Any] = {"exit_code": code, "reason": reason}
    except LaunchError as error:
        log.note(f"{error}\n", "ERROR")
        result = {"launch_error": str(error)}
    except _NoSpaceError as error:
        # Without a result the task counts as lost, which is not a failure of a trial.
        log.note(f"{error}\n", "ERROR")
        shutil.rmtree(spec["directory"], ignore_errors=True)
        return
    except _EndedError as error:
        result = {"exit_code": error.code, "reason": error.reason}
    # The order matters: when the master sees exit.json, the log is complete and on the disk.
    log.close()
    _keep_writing_result(spec, directory, {**result, "time": time.time()})
    shutil.rmtree(spec["directory"], ignore_errors=True)
    # The master has the result already, so this delays nothing.
    with contextlib.suppress(OSError):
        _cache(spec).remove_unused()


def _take_spec(path: Path) -> dict[str, Any] | None:
    try:
        spec = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    path.unlink()
    assert isinstance(spec, dict)
    return spec


def _run(spec: dict[str, Any], log: LogFile, reaper: GroupReaper) -> tuple[int, str]:
    # Every failure must go to the task's log: it is reported nowhere else.
    try:
        _unpack(spec)
    except (OSError, ValueError, OverflowError, EOFError, tarfile.TarError, zlib.error) as error:
        if _is_full(error):
            raise _NoSpaceError(f"Could not unpack the files: {error}.") from error
        raise LaunchError(f"Could not unpack the files: {error}.") from error
    with _stoppable():
        variables, use = _prepare(spec, log, reaper)
    try:
        return _run_task({**spec, "environment": variables}, log, reaper)
    finally:
        if use is not None:
            _cache(spec).release(use)


def _run_task(spec: dict[str, Any], log: LogFile, reaper: GroupReaper) -> tuple[int, str]:
    """Run the task to its end; return its exit code and the reason of a failure."""
    try:
        task = _start(spec)
    except (OSError, ValueError) as error:
        raise LaunchError(f"Could not start {_shown(spec['argv'])}: {error}.") from error
    reaper.watch(task.pid)
    received = _forward_signals(task.pid)
    reason = ExitReason()
    _copy_output(task, log, reason, received)
    # Before `wait` reaps the leader: afterwards the number may be reused, and the reaper would kill the wrong group.
    reaper.forget(task.pid)
    reaper.dismiss()
    code = task.wait()
    code = code if code >= 0 else 128 - code
    return code, reason.text(code)


def _unpack(spec: dict[str, Any]) -> None:
    directory = Path(spec["directory"])
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if spec["context"] is None:
        return
    with tarfile.open(spec["context"], "r:gz") as archive:
        # The master rejected entries that lead out of the context when it stored the archive. The filter, where
        # this Python has it, checks again.
        if hasattr(tarfile, "tar_filter"):
            archive.extractall(directory, filter="tar")
        else:
            archive.extractall(directory)


def _prepare(
    spec: dict[str, Any], log: LogFile, reaper: GroupReaper
) -> tuple[dict[str, str], IO[str] | None]:
    """Return the task's variables, with an environment of its own if it asks for one or has a startup hook.

    The file that is returned with them holds the environment.
    """
    asked = spec.get("python_environment") or {}
    directory = Path(spec["directory"])
    if not any(asked.values()) and not (directory / _HOOK).is_file():
        return spec["environment"], None
    # Imported here: most tasks need none of it, and it takes as much memory as half of this process.
    from det_keras.launch.environments.preparing import Preparation
    from det_keras.launch.environments.request import BuildError, EnvironmentRequest

    preparation = Preparation(
        request=EnvironmentRequest.from_dict(asked),
        directory=directory,
        variables=spec["environment"],
        cache=_cache(spec),
        note=lambda text, level: log.note(f"{text}\n", level),
        reaper=reaper,
    )
    try:
        prepared = preparation.run()
    except BuildError as error:
        if not error.is_transient:
            raise LaunchError(str(error)) from error
        # The end of a trial that may be tried again: the master counts it as a restart.
        text = f"{error} This may be a failure of the network."
        log.note(f"{text}\n", "ERROR")
        raise _EndedError(1, text) from error
    return prepared.variables, prepared.use


def _cache(spec: dict[str, Any]) -> EnvironmentCache:
    folder = spec.get("environments")
    return EnvironmentCache(default_cache_folder(spec["environment"]) if folder is None else Path(folder))


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Raise an exception in this thread when a signal asks for the end of the task."""

    def stop(number: int, _: FrameType | None) -> None:
        # Death by signal N is 128 + N. The task would have been killed by USR1.
        raise _EndedError(128 + (signal.SIGKILL if number == signal.SIGUSR1 else number))

    before = {number: signal.signal(number, stop) for number in (*_FORWARDED, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(spec: dict[str, Any]) -> subprocess.Popen[bytes]:
    argv, environment = _without_shell(spec["argv"]), with_determined(spec["environment"])
    if (Path(spec["directory"]) / _HOOK).is_file():
        shell = shutil.which("bash", path=environment.get("PATH")) or "sh"
        # Sourced, so that the variables it exports reach the task.
        argv = [shell, "-c", f'set -e; . ./{_HOOK}; set +e; exec "$@"', shell, *argv]
    return start_group(argv, environment, spec["directory"])


def _without_shell(argv: Sequence[str]) -> list[str]:
    """Return `argv` changed so that the program of a simple shell command replaces the shell.

    A shell that waits for its program dies of a signal that both receive, while the program still saves its state. Its
    exit code would hide that of the program.
    """
    if list(argv[:2]) == ["sh", "-c"] and len(argv) == 3:
        found = _SIMPLE_COMMAND.fullmatch(argv[2])
        if found is not None and found["program"] not in _SHELL_WORDS:
            return ["sh", "-c", f"exec {argv[2]}"]
    return list(argv)


def _forward_signals(group: int) -> list[int]:
    """Forward signals from now on; return the list to which each of them is added."""
    received: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        received.append(number)
        signal_group(group, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.signal(signal.SIGUSR1, lambda *_: signal_group(group, signal.SIGKILL))
    return received


def _copy_output(
    task: subprocess.Popen[bytes], log: LogFile, reason: ExitReason, received: list[int]
) -> None:
    """Copy the task's output into the log until the task has ended and its output is read.

    Args:
        task: the first process of the task's group.
        log: receives the output.
        reason: receives it too.
        received: the signals that were forwarded to the group so far.
    """
    assert task.stdout is not None
    assert task.stderr is not None
    splitters = {task.stdout.fileno(): LineSplitter("stdout"), task.stderr.fileno(): LineSplitter("stderr")}
    with selectors.DefaultSelector() as selector, child_signals() as wake_up:
        for descriptor in (*splitters, wake_up):
            selector.register(descriptor, selectors.EVENT_READ)
        while not has_exited(task):
            _read_ready(selector, splitters, log, reason, timeout_s=None)
        number = ending_signal(task)
        if number in _FORWARDED and not received:
            # Sent to the first process alone: the others must know of it too.
            signal_group(task.pid, number)
        deadline = time.monotonic() + (_SAVING_S if received or number in _FORWARDED else 0.0)
        while time.monotonic() < deadline and has_members(task.pid):
            _read_ready(selector, splitters, log, reason, timeout_s=_SAVING_PAUSE_S)
        # The leader is not yet reaped, so its number names only its own group.
        signal_group(task.pid, signal.SIGKILL)
        selector.unregister(wake_up)
        deadline = time.monotonic() + _DRAIN_S
        while selector.get_map() and time.monotonic() < deadline:
            _read_ready(selector, splitters, log, reason, timeout_s=deadline - time.monotonic())
    for splitter in splitters.values():
        entries = splitter.finish()
        log.write(entries)
        reason.add(entries)


def _read_ready(
    selector: selectors.BaseSelector,
    splitters: dict[int, LineSplitter],
    log: LogFile,
    reason: ExitReason,
    timeout_s: float | None,
) -> None:
    for key, _ in selector.select(timeout_s):
        data = os.read(key.fd, _READ_BYTES)
        splitter = splitters.get(key.fd)
        if splitter is None:
            continue
        entries = splitter.feed(data)
        log.write(entries)
        reason.add(entries)
        if not data:
            selector.unregister(key.fd)


def _die_with_stdin() -> None:
    """End without an exit code when the standard input does, so that the task counts as lost.

    The reaper kills the task's group.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGKILL)


def _is_full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def _keep_writing_result(spec: dict[str, Any], directory: Path, result: dict[str, Any]) -> None:
    """Write the result; on a full disk, try again for some time: without it the task would count as lost."""
    deadline = time.monotonic() + _FULL_DISK_S
    while True:
        try:
            _write_result(directory, result)
            return
        except OSError as error:
            if not _is_full(error) or time.monotonic() > deadline:
                raise
        # It is deleted in any case, and may be what fills the disk.
        shutil.rmtree(spec["directory"], ignore_errors=True)
        time.sleep(_FULL_DISK_PAUSE_S)


def _write_result(directory: Path, result: dict[str, Any]) -> None:
    write_file(directory / "exit.json", json.dumps(result), is_durable=True)


def _shown(argv: list[str]) -> str:
    return "`" + " ".join(argv) + "`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
