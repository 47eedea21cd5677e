"""Prints the logs of trials and jobs, from their end or as they grow."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from det_keras.cli.render import write
from det_keras.errors import MasterUnavailableError

if TYPE_CHECKING:
    from det_keras.protocol.api.tasks import Logs

_PAUSE_S = 0.5
#: How long a master may be unavailable before a command that follows a task fails.
PATIENCE_S = 120.0


def print_log(
    log: Logs,
    *,
    follow: bool = False,
    head: int | None = None,
    last: int | None = None,
    is_raw: bool = False,
) -> None:
    """Print a log.

    Args:
        log: the log of a trial or a job.
        follow: continue until the task has ended.
        head: number of lines from the start; None for all. Not with `follow`.
        last: number of lines from the end, and with `follow` all later lines; None for all.
        is_raw: let a terminal obey control characters of the log.
    """
    after = None
    if last is not None:
        for line in log.tail(last):
            after = _print(line, is_raw=is_raw)
    elif not follow:
        for line in log.lines(limit=head):
            _print(line, is_raw=is_raw)
    if not follow:
        return
    sys.stdout.flush()
    for line in follow_log(log, after=after):
        _print(line, is_raw=is_raw)
        # Somebody watches.
        sys.stdout.flush()


def follow_log(log: Logs, *, after: str | None = None) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log until its task has ended, across restarts of the master.

    Args:
        log: the log of a trial or a job.
        after: the id of the last known line; None for none.

    Raises:
        MasterUnavailableError: the master was unavailable for too long.
    """
    gone_since = None
    while True:
        try:
            for line in log.follow(after):
                gone_since, after = None, str(line["id"])
                yield line
            return
        except MasterUnavailableError:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > PATIENCE_S:
                raise
            time.sleep(_PAUSE_S)


def _print(line: dict[str, Any], *, is_raw: bool) -> str:
    message = str(line["message"])
    # Messages end with a line break, except when their writer omitted it.
    write(message if message.endswith("\n") else message + "\n", sys.stdout, is_raw=is_raw)
    return str(line["id"])
