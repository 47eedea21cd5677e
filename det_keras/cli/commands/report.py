"""`det experiment report`: writes the report of an experiment to one file."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.display import size_text
from det_keras.errors import DetError, MasterError

if TYPE_CHECKING:
    from det_keras.client import Session

__all__ = ["add_arguments", "report"]

# Contained in the first bytes of every report, but not in pages of other servers.
_MARK = b'name="generator" content="det_keras'
_MARK_WITHIN = 4096
_PNG = b"\x89PNG\r\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; the argument with the experiment's number exists already."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.html",
        type=Path,
        help="the page, which needs no other files (default: experiment-N.html)",
    )
    parser.add_argument(
        "--png",
        metavar="FILE.png",
        type=Path,
        help="also write the curves of the searcher's metric as a picture; the master needs the extra `png`",
    )


def report(args: argparse.Namespace, settings: Settings) -> int:
    """Write the report of an experiment; return the exit code."""
    page = args.output or Path(f"experiment-{args.experiment_id}.html")
    with open_session(settings) as session:
        # Distinguishes a missing experiment from a master that makes no reports.
        session.api.experiments.get(args.experiment_id)
        _save(session, f"/experiments/{args.experiment_id}/report", page, _MARK)
        if args.png is not None:
            _save(session, f"/experiments/{args.experiment_id}/report.png", args.png, _PNG)
    return 0


def _save(session: Session, path: str, target: Path, mark: bytes) -> None:
    # Without `text/html`, so that errors are JSON and not a page.
    content = _checked(session, session.download(path, accept="*/*"), mark)
    try:
        size_bytes = _write(target, content)
    except MasterError as error:
        if error.status in (404, 405) or 300 <= error.status < 400:
            raise _no_reports(session) from error
        raise
    print(f"Wrote {target} ({size_text(size_bytes)}).")


def _checked(session: Session, parts: Iterable[bytes], mark: bytes) -> Iterator[bytes]:
    """Yield a response, after checking that it begins like a report or picture."""
    rest = iter(parts)
    head = b""
    for part in rest:
        head += part
        if len(head) >= _MARK_WITHIN:
            break
    # Determined's own master returns the page of its web interface for unknown addresses.
    if mark not in head[:_MARK_WITHIN]:
        raise _no_reports(session)
    yield from itertools.chain([head], rest)


def _no_reports(session: Session) -> DetError:
    return DetError(
        f"The master at {session.url} makes no reports: only det_keras's own master does, since release 0.1. "
        "`det experiment describe` works with every master."
    )


def _write(target: Path, parts: Iterable[bytes]) -> int:
    """Write a file, which appears complete or not at all; return its size in bytes."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("wb") as file:
            for part in parts:
                file.write(part)
            size_bytes = file.tell()
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    return size_bytes
