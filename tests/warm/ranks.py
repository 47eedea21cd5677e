"""What a program in a fork starts or becomes: forks of it, or itself, in place of new interpreters.

What the first program has imported, and has registered with `atexit`, stays: launchers register nothing.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from det_keras.launch import process_group, rank_group
from warm.program import Ground, early_values, open_descriptors, program_of, run_program

__all__ = ["fork_ranks", "forking", "run_launched"]

_LAUNCHERS = ("det_keras.launch.", "determined.launch.")
_EXECUTE = os.execvpe


class _Rank:
    """A forked rank, with what a launcher uses of a `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.stdout, self.stderr = (os.fdopen(read, "rb", 0) for read in (stdout, stderr))
        self._code: int | None = None

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        if self._code is None:
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._code


def fork_ranks(ground: Ground) -> None:
    """Let the launcher that this process becomes fork its ranks, as far as they are programs of this interpreter."""
    rank_group.start_group = forking(process_group.start_group, ground)


def forking(start_group: Callable[..., Any], ground: Ground) -> Callable[..., Any]:
    """Return a `start_group` that forks programs of this interpreter, and calls the given one for other commands."""

    def start(
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: str | None = None,
        *,
        descriptors: Sequence[int] = (),
    ) -> Any:
        arguments = program_of(argv, environment.get("PATH"))
        if arguments is None or early_values(environment) != ground.early:
            return start_group(argv, environment, directory, descriptors=descriptors)
        return _fork(arguments, environment, directory, ground, descriptors)

    return start


def _fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    ground: Ground,
    descriptors: Sequence[int],
) -> _Rank:
    die_with_parent = process_group.die_with_parent()
    out, err = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(arguments, environment, directory, ground, descriptors, (out[1], err[1]), die_with_parent)
    os.close(out[1])
    os.close(err[1])
    return _Rank(pid, out[0], err[0])


def _become(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    ground: Ground,
    descriptors: Sequence[int],
    outputs: tuple[int, int],
    die_with_parent: Any,
) -> NoReturn:
    try:
        os.setsid()
        die_with_parent()
        null = os.open(os.devnull, os.O_RDONLY)
        for number, source in enumerate((null, *outputs)):
            os.dup2(source, number)
        run_launched(arguments, environment, directory, ground, descriptors=descriptors)
    except BaseException:
        traceback.print_exc()
    finally:
        # A rank must never continue as a second launcher.
        os._exit(1)


def run_launched(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    ground: Ground,
    *,
    descriptors: Sequence[int] = (),
    is_launcher: bool = False,
) -> NoReturn:
    """Run a program in this fork as `run_program` does; what a launcher starts, or becomes, needs no interpreter.

    A program that is not one of the launchers' modules becomes a launcher if `is_launcher` says so.
    """
    if is_launcher or (arguments[0] == "-m" and arguments[1].startswith(_LAUNCHERS)):
        fork_ranks(ground)
    os.execvpe = execute = _executing(ground)
    os.execvp = lambda file, argv: execute(file, argv, os.environ)
    run_program(arguments, environment, directory, ground, descriptors=descriptors)


def _executing(ground: Ground) -> Callable[..., NoReturn]:
    """Return an `os.execvpe` for this process, which runs a program of this interpreter without a new one."""

    def execute_program(file: str, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
        arguments = program_of([file, *argv[1:]], environment.get("PATH"))
        is_alone = len(list(Path("/proc/self/task").iterdir())) == 1
        if arguments is None or not is_alone or early_values(environment) != ground.early:
            _EXECUTE(file, argv, environment)
        kept = [one for one in open_descriptors() if os.get_inheritable(one)]
        run_launched(arguments, environment, None, ground, descriptors=kept)

    return execute_program
