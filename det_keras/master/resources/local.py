"""Tasks as processes of this machine, each under its own supervisor.

A supervisor holds a lock on a file of its allocation's directory while it runs, and writes an exit code at its end
(`det_keras.launch.supervisor`). The directory therefore shows the state of an allocation. A lock means that it is
running, an exit code that it has ended. Neither means that the supervisor was killed or never started.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from det_keras.home import Home
from det_keras.launch.environments.preparing import refusal
from det_keras.launch.environments.request import EnvironmentRequest
from det_keras.launch.fork_server import NOTHING_CHANGED, ForkServer, Inheritance
from det_keras.launch.importable import importable
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources import mount_view
from det_keras.master.resources.base import (
    LOOPBACK,
    Launch,
    LogEntry,
    Node,
    ResourcePool,
    Slot,
    State,
    TaskState,
)
from det_keras.master.resources.node_variables import node_variables
from det_keras.master.resources.slots import core_count
from det_keras.master.resources.sweep import sweep

_READ_BYTES = 1 << 20
# With less free space no task is started: it could not store its exit code.
_LEAST_FREE_BYTES = 4 << 20
# The value 0 in a task's `environment_variables` disables the info files.
_INFO_FILES = "DET_KERAS_INFO_FILES"


class LocalPool(ResourcePool):
    """The slots of this machine.

    Args:
        home: contains a directory per allocation for logs, and one for working directories.
        slots: the slots that tasks may use.
        environment: the master's environment, which tasks inherit.
        info_mounts: run each task in a mount namespace with the info files of Determined's own package.
        name: the name of this machine in the pool; None for its host name.
        share_index: which share of a task's slots is on this machine.
        dies_with_master: kill the tasks when this process ends, however it ends.
        environments: the folder with Python environments of tasks; None for the one of the data root.
        when_changed: called from a thread soon after the end of a task that this pool started.
        inheritance: what tasks have of the account; all that this process has by default.
    """

    def __init__(
        self,
        home: Home,
        slots: Sequence[Slot],
        environment: Mapping[str, str],
        *,
        info_mounts: bool = False,
        name: str | None = None,
        share_index: int = 0,
        dies_with_master: bool = False,
        environments: Path | None = None,
        when_changed: Callable[[], object] = lambda: None,
        inheritance: Inheritance = NOTHING_CHANGED,
    ) -> None:
        self._home = home.root
        self._logs = home.logs
        self._work = home.root / "work"
        self._environments = environments or home.environments
        self._node = Node(name or socket.gethostname(), LOOPBACK, tuple(slots))
        self._environment = dict(environment)
        self._info_mounts = info_mounts
        self._share_index = share_index
        self._dies_with_master = dies_with_master
        self._supervisors = ForkServer(importable(self._environment), when_changed, inheritance)
        # The other ends of standard inputs with which supervisors die.
        self._lifelines: dict[str, int] = {}

    @property
    def description(self) -> str:
        return "This machine"

    @property
    def nodes(self) -> Sequence[Node]:
        return (self._node,)

    @property
    def slotless_node(self) -> str | None:
        return self._node.id

    @property
    def starts_at_once(self) -> bool:
        return True

    @property
    def threads_per_slot(self) -> int:
        """Number of computing threads that the process on one slot should start."""
        return max(1, core_count() // max(1, len(self._node.slots)))

    def working_directory(self, allocation_id: str) -> Path:
        """Return the working directory of a task's process."""
        return self._work / allocation_id

    def knows(self, allocation_id: str) -> bool:
        """Return whether a task was started here, and its log is still there."""
        return self._directory(allocation_id).exists()

    def refusal(self, request: EnvironmentRequest) -> str | None:
        return refusal(request, self._inherited()["PATH"])

    def obstacle(self) -> str | None:
        for place in (self._home, self._logs, self._work):
            with contextlib.suppress(FileNotFoundError):
                if shutil.disk_usage(place).free < _LEAST_FREE_BYTES:
                    return f"The disk of {place} is full. Free some space there."
        return None

    def launch(self, launch: Launch) -> None:
        directory = self._directory(launch.allocation_id)
        directory.mkdir(mode=0o700, parents=True)
        environment = self._task_environment(launch)
        spec = {
            "argv": _viewing(launch.argv, environment) if self._info_mounts else list(launch.argv),
            "environment": environment,
            "directory": str(self.working_directory(launch.allocation_id)),
            "context": None if launch.context is None else str(launch.context),
            "dies_with_stdin": self._dies_with_master,
            "python_environment": launch.python_environment.to_dict(),
            "environments": str(self._environments),
        }
        _write_private(directory / "spec.json", json.dumps(spec))
        stdin = self._input_of(launch.allocation_id)
        try:
            with (directory / "supervisor.log").open("wb") as output:
                self._supervisors.start_supervisor(
                    directory / "spec.json", stdin=stdin, output=output.fileno()
                )
        finally:
            os.close(stdin)
        if self._dies_with_master:
            # The actor of a node runs one task.
            self._supervisors.close()

    def look(self, allocation_id: str) -> TaskState:
        directory = self._directory(allocation_id)
        if not (directory / "exit.json").exists() and _is_locked(directory):
            return TaskState(State.RUNNING)
        exit_ = _read_exit(directory) or self._give_up(allocation_id)
        if exit_ is None:
            return TaskState(State.RUNNING)
        # Processes that left the task's process group, such as workers of a launcher, are found by their environment.
        self._sweep(allocation_id)
        return TaskState(State.ENDED, exit_)

    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        path = self._directory(allocation_id) / "log.jsonl"
        try:
            if path.stat().st_size <= offset:
                return [], offset
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return [], offset
        # The supervisor may be writing the last line: without its line break it is left for the next call.
        whole = data[: data.rfind(b"\n") + 1]
        return list(_entries(whole)), offset + len(whole)

    def kill(self, allocation_id: str, *, force: bool) -> None:
        pid = _supervisor_pid(self._directory(allocation_id))
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if force else signal.SIGUSR1)
                # A supervisor that somebody has stopped would not see the first.
                os.kill(pid, signal.SIGCONT)
        if force:
            self._sweep(allocation_id)

    def kept(self) -> Iterable[str]:
        return [folder.name for folder in self._logs.iterdir()] if self._logs.is_dir() else []

    def remove(self, allocation_id: str) -> None:
        # Not before: a supervisor with an exit code may still be deleting its task's files.
        lifeline = self._lifelines.pop(allocation_id, None)
        if lifeline is not None:
            os.close(lifeline)
        shutil.rmtree(self._directory(allocation_id), ignore_errors=True)
        shutil.rmtree(self.working_directory(allocation_id), ignore_errors=True)

    def stop(self) -> None:
        self._supervisors.close()

    def _input_of(self, allocation_id: str) -> int:
        """Return a descriptor for the standard input of a supervisor."""
        if not self._dies_with_master:
            return os.open(os.devnull, os.O_RDONLY)
        # The other end closes with this process, however it ends.
        read, self._lifelines[allocation_id] = os.pipe()
        return read

    def _sweep(self, allocation_id: str) -> None:
        # Only for Ray: the name of this machine may change while a task runs.
        sweep({allocation_id}, self._node.id if self._dies_with_master else None)

    def _give_up(self, allocation_id: str) -> Exit | None:
        """Make sure that an allocation without a supervisor never gets one; return None if it has one after all."""
        directory = self._directory(allocation_id)
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(directory) as is_ours:
            if not is_ours:
                return None
            # A supervisor that starts late takes the lock after this, finds no spec and ends. A supervisor that took
            # the lock first may have written an exit code in between: read it again.
            (directory / "spec.json").unlink(missing_ok=True)
            exit_ = _read_exit(directory)
        shutil.rmtree(self.working_directory(allocation_id), ignore_errors=True)
        return exit_ or Exit(Ending.LOST, detail="its supervisor ended without leaving an exit code")

    def _task_environment(self, launch: Launch) -> dict[str, str]:
        own = node_variables(
            shares=launch.shares,
            index=self._share_index,
            node=self._node.id,
            slots=self._node.slots,
            threads=self.threads_per_slot,
            directory=self.working_directory(launch.allocation_id),
            home=self._home,
            inherited=self._environment,
        )
        return {**self._inherited(), "PYTHONUNBUFFERED": "1", **own, **launch.variables}

    def _inherited(self) -> dict[str, str]:
        """Return what every task inherits: it finds this interpreter first, and this package."""
        environment = importable(self._environment)
        interpreter = str(Path(sys.executable).parent)
        environment["PATH"] = os.pathsep.join([interpreter, environment.get("PATH", os.defpath)])
        return environment

    def _directory(self, allocation_id: str) -> Path:
        return self._logs / allocation_id


def _viewing(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return `argv` changed so that the program finds the info files of Determined's own package."""
    is_wanted = environment.get(_INFO_FILES, "1") != "0"
    # A program that does not exist stays first in `argv`, so that the supervisor reports it as not startable.
    if not is_wanted or shutil.which(argv[0], path=environment["PATH"]) is None:
        return list(argv)
    return [sys.executable, "-E", "-S", mount_view.__file__, *argv]


def _read_exit(directory: Path) -> Exit | None:
    try:
        result = json.loads((directory / "exit.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if "launch_error" in result:
        return Exit(Ending.NOT_LAUNCHED, detail=result["launch_error"])
    # A supervisor of an earlier version writes no reason.
    return Exit(Ending.EXITED, code=int(result["exit_code"]), detail=result.get("reason", ""))


def _is_locked(directory: Path) -> bool:
    if not directory.exists():
        return False
    with _locked(directory) as is_ours:
        return not is_ours


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[bool]:
    """Take a supervisor's lock if it is free; yield whether it was free."""
    with (directory / "supervisor.lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _supervisor_pid(directory: Path) -> int | None:
    """Return the pid of a running supervisor; its lock proves that the pid was not reused."""
    if not _is_locked(directory):
        return None
    text = (directory / "supervisor.lock").read_text(encoding="utf-8")
    return int(text) if text.isdigit() else None


def _entries(data: bytes) -> Iterator[LogEntry]:
    for line in data.splitlines():
        # A supervisor that is killed during a write, or a full disk, leaves half an entry.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            yield _entry(json.loads(line))


def _entry(content: Mapping[str, Any]) -> LogEntry:
    return LogEntry(
        time=datetime.fromtimestamp(content["t"], timezone.utc),
        text=content["m"],
        stdtype=content["s"],
        level=content.get("l"),
        derived_level=content.get("v"),
        rank=content.get("r"),
    )


def kill_everything(home: Home) -> None:
    """Kill all tasks of a data root and their supervisors. No master may be running there.

    They leave no exit code, so the next master runs them again from their checkpoints.
    """
    directories = [lock.parent for lock in home.logs.glob("*/supervisor.lock")]
    living = [
        (directory, pid) for directory in directories if (pid := _supervisor_pid(directory)) is not None
    ]
    for _, pid in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if living:
        sweep({directory.name for directory, _ in living})


def _write_private(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
