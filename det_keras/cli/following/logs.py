"""Printing the logs of trials and jobs, from their end or as they grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from det_keras.errors import MasterUnavailableError

if TYPE_CHECKING:
    from det_keras.protocol.api.tasks import Logs

__all__ = ["follow_log", "print_log"]

_PAUSE_S = 0.5
#: How long a master may be away before a command that watches something gives up.
PATIENCE_S = 120.0


def print_log(log: Logs, *, follow: bool = False, head: int | None = None, last: int | None = None) -> None:
    """Print a log.

    Args:
        log: of a trial or a job.
        follow: continue until the task is over.
        head: only so many lines from the start; not with `follow`.
        last: only so many lines from the end, and with `follow` what comes after them.
    """
    after = None
    if last is not None:
        for line in log.tail(last):
            after = _print(line)
        if not follow:
            return
    elif not follow:
        for line in log.lines(limit=head):
            _print(line)
        return
    for line in follow_log(log, after=after):
        _print(line)


def follow_log(log: Logs, *, after: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log until its task is over, through restarts of the master.

    Args:
        log: of a trial or a job.
        after: the id of the last line that is known already.

    Raises:
        MasterUnavailableError: the master stayed away.
    """
    gone_since = None
    while True:
        try:
            for line in _behind(log.follow(), after):
                gone_since, after = None, str(line["id"])
                yield line
            return
        except MasterUnavailableError:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > PATIENCE_S:
                raise
            time.sleep(_PAUSE_S)


def _behind(lines: Iterator[dict[str, Any]], after: str | None) -> Iterator[dict[str, Any]]:
    """Yield the lines behind the one with id `after`: a stream always begins at the log's start."""
    if after is not None:
        for line in lines:
            if str(line["id"]) == after:
                break
    yield from lines


def _print(line: dict[str, Any]) -> str:
    message = str(line["message"])
    # The messages of this protocol carry their own newline, except where a writer left it out.
    sys.stdout.write(message if message.endswith("\n") else message + "\n")
    sys.stdout.flush()
    return str(line["id"])
