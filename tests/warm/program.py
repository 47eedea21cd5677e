"""Runs a Python program in a fork of a process that has imported much, as a new interpreter would run it.

What a program may notice: modules are imported already, and hashes of strings are those of the parent. So are the
values of the variables in `READ_EARLY`, which the interpreter and the libraries read once, and how much TensorFlow
logs. Output buffers, `sys.path`, `sys.argv`, signal handlers, random numbers, descriptors and the end of the process
are those of a new interpreter, except that objects are not torn down at the end.
"""

from __future__ import annotations

import atexit
import io
import logging
import os
import re
import runpy
import shutil
import signal
import sys
import threading
import types
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NoReturn

__all__ = [
    "READ_EARLY",
    "Ground",
    "become_new",
    "early_values",
    "is_possible",
    "open_descriptors",
    "program_of",
    "run_program",
]

#: Variables that are read when Python starts or a library is imported, and never again.
READ_EARLY = (
    "KERAS_BACKEND",
    "KERAS_HOME",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONDEVMODE",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHASHSEED",
    "PYTHONIOENCODING",
    "PYTHONOPTIMIZE",
    "PYTHONUTF8",
    "PYTHONWARNINGS",
    "TF_ENABLE_ONEDNN_OPTS",
    "TF_USE_LEGACY_KERAS",
)

# Words that no shell changes. The supervisor adds the `exec` of a shell that a program replaces.
_SHELL_COMMAND = re.compile(r"(?:exec )?([\w./:=+-]+(?: [\w./:=+-]+)*)")


@dataclass(frozen=True)
class Ground:
    """What a process was when it had imported all it should, and before it did anything else.

    Attributes:
        path: `sys.path` without the program's directory and without PYTHONPATH.
        descriptors: open ones, which belong to libraries.
        early: the values of the variables in `READ_EARLY`.
    """

    path: Sequence[str]
    descriptors: Collection[int]
    early: Mapping[str, str | None]

    @classmethod
    def here(cls, path: Sequence[str], ours: Collection[int]) -> Ground:
        """Return the ground of this process, of whose descriptors `ours` belong to no library."""
        return cls(path, open_descriptors() - {0, 1, 2, *ours}, early_values(os.environ))


def early_values(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the values of the variables that are read early."""
    found = {name: environment.get(name) or None for name in READ_EARLY}
    # The import of `det_keras.keras` sets it.
    return {**found, "KERAS_BACKEND": found["KERAS_BACKEND"] or "tensorflow"}


def program_of(argv: Sequence[str], path: str | None) -> list[str] | None:
    """Return the arguments of a command that starts a program with this interpreter; None for another command.

    The command may be a shell's, if all that the shell does is to start the program.

    Args:
        argv: the command.
        path: the variable PATH of the process.
    """
    if list(argv[:2]) == ["sh", "-c"] and len(argv) == 3 and (words := _SHELL_COMMAND.fullmatch(argv[2])):
        argv = words[1].split()
    found = shutil.which(argv[0], path=path)
    here = Path(sys.executable)
    if found is None or Path(found).parent != here.parent or not Path(found).name.startswith("python"):
        return None
    arguments = [os.fspath(one) for one in argv[1:]]
    return arguments if arguments and is_possible(arguments) else None


def is_possible(arguments: Sequence[str]) -> bool:
    """Return whether these arguments of an interpreter are a script, a module or code, without options before it."""
    return not arguments[0].startswith("-") or (arguments[0] in ("-c", "-m") and len(arguments) > 1)


def run_program(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    directory: str | None,
    ground: Ground,
    *,
    descriptors: Collection[int] = (),
) -> NoReturn:
    """Run a program in this fork to its end, and end the process as an interpreter does.

    The caller has put the outputs in their places. It must not return to the frames below: they hold objects whose
    descriptors are closed here.

    Args:
        arguments: of the interpreter: a script, ``-m`` and a module, or ``-c`` and code, and the program's arguments.
        environment: the complete environment.
        directory: working directory; None for that of this process.
        ground: of the process that this one was forked from.
        descriptors: further ones that stay open.
    """
    status = 1
    try:
        become_new(environment, directory, ground, descriptors=descriptors)
        _set_path(arguments, environment, ground)
        status = _ended(arguments)
    finally:
        os._exit(status)


def become_new(
    environment: Mapping[str, str],
    directory: str | None,
    ground: Ground,
    *,
    descriptors: Collection[int] = (),
) -> None:
    """Give this fork the state of a new process: no signal handlers and descriptors of its parent."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in open_descriptors() - {0, 1, 2, *descriptors, *ground.descriptors}:
        os.close(number)
    # It may be `os.environ` itself.
    environment = dict(environment)
    os.environ.clear()
    os.environ.update(environment)
    if directory is not None:
        os.chdir(directory)
    _open_outputs(is_unbuffered=bool(environment.get("PYTHONUNBUFFERED")))
    # What a launcher has configured is its own.
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    # Python seeds its own generator after a fork.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def open_descriptors() -> set[int]:
    """Return the descriptors of this process."""
    # The listing's own descriptor is closed when it ends.
    return {int(one.name) for one in list(Path("/proc/self/fd").iterdir()) if one.exists()}


def _open_outputs(*, is_unbuffered: bool) -> None:
    """Open `sys.stdout` and `sys.stderr` anew: buffered as this process wants it."""
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = os.fdopen(number, "wb", 0 if is_unbuffered else -1, closefd=False)
        stream = io.TextIOWrapper(
            raw,
            encoding=getattr(sys, name).encoding,
            errors=getattr(sys, name).errors,
            newline="\n",
            line_buffering=not is_unbuffered and (number == 2 or os.isatty(number)),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _set_path(arguments: Sequence[str], environment: Mapping[str, str], ground: Ground) -> None:
    if arguments[0] == "-c":
        first = ""
    else:
        first = str(Path.cwd() if arguments[0] == "-m" else Path(arguments[0]).resolve().parent)
    own = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = [first, *(str(Path(one).absolute()) for one in own), *ground.path]


def _ended(arguments: Sequence[str]) -> int:
    """Run the program, and what an interpreter runs before it ends; return the exit code."""
    status, is_interrupted = 0, False
    try:
        _execute(arguments)
    except SystemExit as error:
        status = _exit_code(error)
    except BaseException as error:
        is_interrupted = isinstance(error, KeyboardInterrupt)
        status = 1
        _report(error)
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    if is_interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


def _execute(arguments: Sequence[str]) -> None:
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    sys.orig_argv = [sys.executable, *arguments]
    if arguments[0] == "-m":
        sys.argv[:] = ["-m", *arguments[2:]]
        runpy._run_module_as_main(arguments[1])
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec", dont_inherit=True), main.__dict__)
    else:
        sys.argv[:] = arguments
        path = str(Path(arguments[0]).absolute())
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        main.__file__, main.__loader__ = path, SourceFileLoader("__main__", path)
        exec(compile(content, path, "exec", dont_inherit=True), main.__dict__)


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def _report(error: BaseException) -> None:
    """Show an uncaught exception, without the frames of this module."""
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    sys.excepthook(type(error), error.with_traceback(below), below)
