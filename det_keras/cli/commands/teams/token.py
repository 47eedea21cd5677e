"""`det token`: logins for programs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, positive
from det_keras.cli.session import find_url, open_session
from det_keras.connection.masters import find_cert_file
from det_keras.connection.settings import Settings
from det_keras.connection.token_cache import TokenCache

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns

_HOURS = 24


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("token", help="logins for programs, such as CI")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    creating = verbs.add_parser("create", help="create an access token and print it, once")
    creating.add_argument("username", metavar="U", nargs="?", help="as whom it acts (default: you)")
    end = creating.add_mutually_exclusive_group()
    end.add_argument(
        "--expiration-days", "-e", metavar="K", type=positive, help="it ends after K days (default: 30)"
    )
    end.add_argument("--forever", action="store_true", help="it ends when it is revoked")
    creating.add_argument("--description", "-d", metavar="TEXT", default="", help="what it is for")
    add_json(creating)
    creating.set_defaults(run=_create)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the tokens, without the tokens themselves")
    listing.add_argument("username", metavar="U", nargs="?", help="only those of this user")
    listing.add_argument("--show-inactive", action="store_true", help="also revoked and expired ones")
    add_json(listing)
    listing.set_defaults(run=_list)
    describing = verbs.add_parser("describe", help="show tokens")
    describing.add_argument("token_ids", metavar="ID", nargs="+", type=positive)
    add_json(describing)
    describing.set_defaults(run=_describe)
    editing = verbs.add_parser("edit", help="change the description of a token")
    editing.add_argument("token_id", metavar="ID", type=positive)
    editing.add_argument("--description", "-d", metavar="TEXT", required=True)
    editing.set_defaults(run=_edit)
    revoking = verbs.add_parser("revoke", help="end a token at once and for good")
    revoking.add_argument("token_id", metavar="ID", type=positive)
    revoking.set_defaults(run=_revoke)
    entering = verbs.add_parser("login", help="use a token for later commands")
    entering.add_argument("token", metavar="TOKEN")
    entering.set_defaults(run=_login)


def _create(args: argparse.Namespace, settings: Settings) -> int:
    lifespan = "-1" if args.forever else f"{_HOURS * args.expiration_days}h" if args.expiration_days else ""
    with open_session(settings) as session:
        user_id = None if args.username is None else session.api.tokens.user_id(args.username)
        made = session.api.tokens.create(user_id, lifespan, args.description)
    if args.json:
        render.print_json(made)
    else:
        print(f"TokenID: {made['tokenId']}\nAccess-Token: {made['token']}")
    return 0


def _list(args: argparse.Namespace, settings: Settings) -> int:
    params = {"username": args.username or "", "showInactive": str(args.show_inactive).lower()}
    with open_session(settings) as session:
        found = session.api.tokens.all(**params)
    _print(found, is_json=args.json)
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.tokens.all(tokenIds=args.token_ids)
    _print(found, is_json=args.json)
    return 0


def _print(tokens: list[dict[str, Any]], *, is_json: bool) -> None:
    if is_json:
        render.print_json(tokens)
        return
    rows = [
        [
            str(one["id"]),
            str(one["userId"]),
            one["description"],
            display.time_text(one["createdAt"]),
            "revoked" if one["revoked"] else display.time_text(one["expiry"]) if one["expiry"] else "never",
        ]
        for one in tokens
    ]
    render.print_table(["ID>", "User>", "Description", "Created", "Ends"], rows)


def _edit(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.tokens.change(args.token_id, description=args.description)
    print(f"Changed token {args.token_id}.")
    return 0


def _revoke(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.tokens.change(args.token_id, setRevoked=True)
    print(f"Revoked token {args.token_id}.")
    return 0


def _login(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.client import Session

    url = find_url(settings)
    certificate = find_cert_file(settings, url)
    with Session(url, args.token, cert_file=certificate, cert_name=settings.cert_name) as session:
        name = str(session.api.accounts.me()["username"])
    TokenCache(settings.home).store(url, name, args.token)
    print(f"Authenticated as {render.printable(name)}.")
    return 0
