"""Prints the logs of trials and jobs, from their end or as they grow."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from det_keras.cli.render import write
from det_keras.errors import DetError, MasterUnavailableError

if TYPE_CHECKING:
    from det_keras.protocol.api.tasks import Logs

_PAUSE_S = 0.5
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: How long a master may be unavailable before a command that follows a task fails.
PATIENCE_S = 120.0


def add_filters(parser: argparse.ArgumentParser, *, has_allocations: bool = False) -> None:
    """Add the options that choose lines of a log.

    Args:
        parser: of the command.
        has_allocations: whether the log is that of a task.
    """
    filters = parser.add_argument_group("only some lines; options without LEVEL and TIME may be repeated")
    filters.add_argument("--search", metavar="TEXT", help="that contain this text, in upper or lower case")
    filters.add_argument("--regex", metavar="PATTERN", help="that match a regular expression of RE2")
    filters.add_argument(
        "--level",
        type=str.upper,
        choices=_LEVELS,
        metavar="LEVEL",
        help=f"of this level or above: {', '.join(_LEVELS)}",
    )
    many = [("rank", "of this rank; -1 for lines without one"), ("agent", "of this machine")]
    many += [
        ("container", "of this container"),
        ("source", "of this source"),
        ("stdtype", "stdout or stderr"),
    ]
    many += [("allocation", "of this attempt of the task")] if has_allocations else []
    for name, text in many:
        option = f"--{name}" if name in ("source", "stdtype") else f"--{name}-id"
        kind = int if name == "rank" else str
        filters.add_argument(
            option, dest=f"only_{name}", action="append", type=kind, metavar=name.upper(), help=text
        )
    filters.add_argument(
        "--timestamp-before", metavar="TIME", help="before this time, such as 2026-01-31T12:00:00Z"
    )
    filters.add_argument("--timestamp-after", metavar="TIME", help="after this time")


def chosen(log: Logs, args: argparse.Namespace) -> Logs:
    """Return the lines of a log that the options of `add_filters` choose.

    Raises:
        DetError: a text and a pattern are given.
    """
    if args.search and args.regex:
        raise DetError("--search and --regex exclude each other.")
    levels = [] if args.level is None else _LEVELS[_LEVELS.index(args.level) :]
    return log.filtered(
        searchText=args.regex or args.search,
        enableRegex=bool(args.regex),
        levels=[f"LOG_LEVEL_{level}" for level in levels],
        rankIds=args.only_rank,
        agentIds=args.only_agent,
        containerIds=args.only_container,
        sources=args.only_source,
        stdtypes=args.only_stdtype,
        allocationIds=getattr(args, "only_allocation", None),
        timestampBefore=args.timestamp_before,
        timestampAfter=args.timestamp_after,
    )


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
