"""`det master audit`: who changed what."""

from __future__ import annotations

import argparse
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, positive
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.protocol.values import now, timestamp

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

_ENTRIES = 50
# How many `det experiment describe` prints.
_LAST = 5


def add_verb(verbs: Nouns) -> None:
    """Add the verb to those of the master."""
    parser = verbs.add_parser("audit", help="show who changed what, latest first")
    parser.add_argument("--by", metavar="NAME", default="", help="only what this user did")
    parser.add_argument(
        "--object",
        metavar="KIND[:ID]",
        default="",
        help="only what was done with these things, such as experiment:7 or workspace",
    )
    parser.add_argument("--days", metavar="DAYS", type=positive, help="only of the last so many days")
    parser.add_argument(
        "-n", "--limit", metavar="N", type=positive, default=_ENTRIES, help="the most entries; default 50"
    )
    add_json(parser)
    parser.set_defaults(run=_audit)


def last_changes(session: Session, kind: str, number: int) -> list[str]:
    """Return the last changes of a thing, as sentences; [] from Determined's own master."""
    if session.api.accounts.is_determined():
        return []
    entries = session.api.accounts.changes(kind=kind, id=str(number), limit=_LAST)["entries"]
    return [f"{display.time_text(entry['time'])} {display.deed_text(entry)}" for entry in entries]


def _audit(args: argparse.Namespace, settings: Settings) -> int:
    kind, _, identity = args.object.partition(":")
    params: dict[str, Any] = {"user": args.by, "kind": kind, "id": identity, "limit": args.limit}
    if args.days is not None:
        params["since"] = timestamp(now() - timedelta(days=args.days))
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError("Only a master of det_keras records who changed what.")
        found = session.api.accounts.changes(**params)
    if args.json:
        render.print_json(found["entries"])
        return 0
    rows = [
        (
            display.time_text(entry["time"]),
            display.deed_text(entry),
            display.object_text(entry),
            entry["detail"],
            entry["address"] or "",
        )
        for entry in found["entries"]
    ]
    render.print_table(("Time", "What", "Of", "Detail", "From"), rows)
    total = found["pagination"]["total"]
    if total > len(rows):
        print(f"{len(rows)} of {total:,} entries; --limit shows more.")
    return 0
