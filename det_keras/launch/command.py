"""Replaces a launcher by its only process, and reports why a command cannot be started."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

logger = logging.getLogger(__name__)

_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


def become(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Replace this process by a command; return only on failure, with the exit code of a shell."""
    # Python ignores SIGPIPE, and a program inherits ignored signals through exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], list(argv), dict(environ))
    except OSError as error:
        return cannot_start(argv[0], error)


def cannot_start(program: str, error: OSError) -> int:
    """Print why a command could not be started, and return the exit code that a shell would return."""
    if program.endswith(".py") and Path(program).is_file():
        logger.error(
            "%r is not a program. A Python script needs its interpreter: `python3 %s`.", program, program
        )
        return _NOT_EXECUTABLE
    if isinstance(error, FileNotFoundError):
        logger.error("The command %r was not found. Is it on the PATH, and installed?", program)
        return _NOT_FOUND
    logger.error("The command %r could not be started: %s.", program, error)
    return _NOT_EXECUTABLE
