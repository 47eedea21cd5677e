"""The entry point of `det`: the parser, running the command, and printing errors."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from det_keras.about import __version__
from det_keras.cli import completion
from det_keras.cli.commands import (
    agent,
    checkpoint,
    cluster,
    deploy,
    experiment,
    import_,
    job,
    master,
    preview,
    tensorboard,
    trial,
    user,
    web,
)
from det_keras.cli.commands.teams import model, project, template, token, webhook, workspace
from det_keras.cli.help_texts import add_help_texts
from det_keras.cli.render import write
from det_keras.connection.settings import Settings
from det_keras.errors import DetError, MasterError, MasterUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[argparse.Namespace, Settings], int]

_INTERRUPTED = 130
# The exit code that a shell reports for a process that a closed pipe ended.
_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: the arguments after `det`; None for those of this process.

    Raises:
        SystemExit: the command line is invalid, or help was requested.
    """
    _prepare_output()
    parser = command_parser()
    args = parser.parse_args(argv)
    if "run" not in args:
        parser.print_help()
        return 0
    try:
        code: int = _run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as in `det experiment list | head -1`.
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        _drop_output()
        print(f"The output cannot be written: {error.strerror}.", file=sys.stderr)
        return 1
    return code


def _prepare_output() -> None:
    """Let the output take every text: what a terminal cannot show is replaced, and a closed one takes nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """Redirect the output to nothing: Python flushes once more at exit, which would fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: argparse.Namespace) -> int:
    run: Run = args.run
    try:
        return run(args, Settings.gather(args, os.environ))
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        # The outermost level: every error is printed as one line, or with `--debug` as a traceback.
        if args.debug:
            raise
        # A part of it may be what a master, a config or a file says.
        write(_reason(error) + "\n", sys.stderr)
        return 1


def _reason(error: Exception) -> str:
    if isinstance(error, MasterError) and error.status == 401:
        return (
            f"Unauthenticated: the master does not accept the token ({error.message}). "
            "Log in with `det user login`, or correct DET_USER_TOKEN, or DET_USER and DET_PASS."
        )
    if isinstance(error, MasterUnavailableError):
        return f"{error} The address is that of `-m` or DET_MASTER, else that of the embedded master."
    if isinstance(error, DetError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f": {error.filename}" if error.filename else "")
    detail = " ".join(str(error).split())
    return f"Unexpected {type(error).__name__}: {detail} (`det --debug ...` shows where.)"


def command_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; without a command the result has no `run`."""
    parser = argparse.ArgumentParser(prog="det")
    parser.add_argument(
        "-m",
        "--master",
        metavar="URL",
        help="the master (default: DET_MASTER, else the embedded master, started if necessary)",
    )
    parser.add_argument("-u", "--user", metavar="NAME", help="act as this user, who must have logged in")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    parser.add_argument(
        "--version", action="version", version=f"det_keras {__version__}", help="print the version"
    )
    nouns = parser.add_subparsers(title="commands", metavar="COMMAND")
    for noun in (
        experiment,
        trial,
        checkpoint,
        model,
        job,
        master,
        cluster,
        agent,
        deploy,
        user,
        token,
        template,
        webhook,
        workspace,
        project,
        preview,
        tensorboard,
        import_,
        web,
    ):
        noun.add_parsers(nouns)
    completion.add_parsers(nouns, parser)
    add_help_texts(parser)
    return parser
