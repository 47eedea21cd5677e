"""`det experiment share` and `unshare`: links to the report of an experiment that need no login."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, positive
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session


def add_verbs(verbs: Nouns) -> None:
    """Add the verbs to `det experiment`."""
    sharing = verbs.add_parser("share", help="make a link to its report that needs no login")
    sharing.add_argument("experiment_id", metavar="N", type=positive)
    choice = sharing.add_mutually_exclusive_group()
    choice.add_argument("--days", metavar="K", type=positive, help="the link ends after K days")
    choice.add_argument("--list", action="store_true", help="list the links instead, without their tokens")
    add_json(sharing)
    sharing.set_defaults(run=_share)
    ending = verbs.add_parser("unshare", help="revoke a link to its report, or all of them")
    ending.add_argument("experiment_id", metavar="N", type=positive)
    ending.add_argument(
        "link_id", metavar="ID", type=positive, nargs="?", help="only the link with this number"
    )
    ending.set_defaults(run=_unshare)


def _share(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        _refuse_determined(session)
        if args.list:
            _print_links(session.api.experiments.shared_links(args.experiment_id), is_json=args.json)
            return 0
        made = session.api.experiments.share(args.experiment_id, args.days)
    if args.json:
        render.print_json(made)
    else:
        # Alone in its line, for other programs.
        print(made["url"])
    return 0


def _print_links(links: list[dict[str, object]], *, is_json: bool) -> None:
    if is_json:
        render.print_json(links)
        return
    rows = [
        [
            str(link["id"]),
            str(link["username"]),
            display.time_text(str(link["madeAt"])),
            _end_text(link),
        ]
        for link in links
    ]
    render.print_table(["ID>", "Made by", "Made", "Until"], rows)


def _end_text(link: dict[str, object]) -> str:
    if link["expiresAt"] is None:
        return "it is revoked"
    text = display.time_text(str(link["expiresAt"]))
    return f"{text} (ended)" if link["isOver"] else text


def _unshare(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        _refuse_determined(session)
        count = session.api.experiments.unshare(args.experiment_id, args.link_id)
    print(
        f"Revoked {count} {'link' if count == 1 else 'links'} to the report of experiment {args.experiment_id}."
    )
    return 0


def _refuse_determined(session: Session) -> None:
    if session.api.accounts.is_determined():
        raise DetError(
            "Only a master of det_keras shares reports by links. `det experiment describe` works here."
        )
