"""Programs in forks of the server, started and handled like those of `subprocess`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, STDOUT, CompletedProcess, TimeoutExpired
from typing import IO, Any, NoReturn

from warm.program import Ground, early_values, program_of
from warm.ranks import run_launched
from warm.server import server

__all__ = ["Popen", "run"]


class Popen:
    """A program in a fork, in its own session, without input; its text output is UTF-8.

    Args:
        argv: the command: this interpreter, and a script, ``-m`` and a module, or ``-c`` and code, with arguments.
        env: the complete environment; None for that of this process. What is read early (`program.READ_EARLY`) has to
            be as it was when the server started.
        cwd: working directory; None for that of this process.
        stdout: a descriptor or file, PIPE, or None for that of this process.
        stderr: the same, or STDOUT.
        is_launcher: the program becomes a launcher, whose ranks are forks too. That of the launcher's own module always
            does.

    Attributes:
        args: the command.
        pid: of the process.
        returncode: None while it runs.
        stdout: what it prints, with PIPE.
        stderr: the same.

    Raises:
        ValueError: the command starts no such program, or needs a new interpreter.
    """

    def __init__(
        self,
        argv: Sequence[str | os.PathLike[str]],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        is_launcher: bool = False,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        self.args = [os.fspath(one) for one in argv]
        arguments = program_of(self.args, environment.get("PATH"))
        if arguments is None:
            raise ValueError(f"Only a program of this interpreter can be a fork. Received: {self.args}.")
        _check_early(environment)
        self.returncode: int | None = None
        self.stdout, out = _output(stdout, 1)
        self.stderr, err = (None, out) if stderr == STDOUT else _output(stderr, 2)
        directory = os.fspath(cwd) if cwd is not None else str(Path.cwd())
        call = (arguments, environment, directory, is_launcher)
        self._fork = server().fork(_be_program, *call, outputs=[out, err])
        self.pid = self._fork.pid
        for descriptor, is_ours in ((out, stdout == PIPE), (err, stderr == PIPE)):
            if is_ours:
                os.close(descriptor)

    def poll(self) -> int | None:
        """Return the exit code, minus the number of the signal that ended it; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code.

        Raises:
            TimeoutExpired: it still runs after so many seconds.
        """
        code = self._look(timeout)
        if code is None:
            raise TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Read the outputs to their ends and wait for the process.

        Raises:
            TimeoutExpired: an output is still open, or the process still runs, after so many seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found: dict[str, str] = {}
        readers = [
            threading.Thread(
                target=lambda name=name, stream=stream: found.update({name: stream.read()}), daemon=True
            )
            for name, stream in (("stdout", self.stdout), ("stderr", self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(_left(deadline))
            if reader.is_alive():
                raise TimeoutExpired(self.args, timeout or 0.0)
        self.wait(_left(deadline))
        return found.get("stdout"), found.get("stderr")

    def __enter__(self) -> Popen:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        self.wait()

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None and self._fork.wait(timeout):
            self.returncode = os.waitstatus_to_exitcode(self._fork.status)
        return self.returncode


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
    capture_output: bool = False,
    text: bool = True,
    timeout: float | None = None,
    check: bool = False,
) -> CompletedProcess[str]:
    """Run a program in a fork to its end, as `subprocess.run` does; see `Popen` for what it can be.

    Args:
        argv: the command.
        env: the complete environment.
        cwd: working directory.
        stdout: a descriptor, PIPE, or None.
        stderr: the same, or STDOUT.
        capture_output: both outputs are returned.
        text: the outputs are text; there is no other way.
        timeout: kill it, and its launcher's ranks with it, after so many seconds.
        check: an exit code other than 0 is an error.
    """
    assert text, "Outputs are always text."
    if capture_output:
        stdout = stderr = PIPE
    with Popen(argv, env=env, cwd=cwd, stdout=stdout, stderr=stderr) as process:
        try:
            out, err = process.communicate(timeout)
        except BaseException:
            process.kill()
            raise
    done = CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _output(wanted: int | IO[Any] | None, default: int) -> tuple[IO[str] | None, int]:
    """Return what is read of an output, and the descriptor that is written."""
    if wanted is None:
        return None, default
    if wanted == PIPE:
        read, write = os.pipe()
        return os.fdopen(read, encoding="utf-8", errors="replace"), write
    return None, wanted if isinstance(wanted, int) else wanted.fileno()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def _check_early(environment: Mapping[str, str]) -> None:
    wanted, found = early_values(environment), server().early
    if differing := [name for name in found if wanted[name] != found[name]]:
        raise ValueError(f"{', '.join(differing)} is read by an interpreter's imports: start a new one.")


def _be_program(
    ground: Ground,
    _: list[int],
    arguments: list[str],
    environment: dict[str, str],
    directory: str,
    is_launcher: bool,
) -> NoReturn:
    run_launched(arguments, environment, directory, ground, is_launcher=is_launcher)
