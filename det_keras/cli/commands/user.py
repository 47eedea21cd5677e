"""`det user`: log in to a master and log out; the users of a master."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import sys
from typing import TYPE_CHECKING

from det_keras.cli import render
from det_keras.cli.arguments import add_json
from det_keras.cli.session import find_url, open_session
from det_keras.connection.masters import DEFAULT_USER, find_cert_file, log_in
from det_keras.connection.settings import Settings
from det_keras.connection.token_cache import TokenCache
from det_keras.errors import DetError, MasterError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("user", help="log in and out, and the users of a master")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    entering = verbs.add_parser("login", help="log in; the password is asked for, or taken from DET_PASS")
    entering.add_argument("name", metavar="U", nargs="?", help="the user (default: -u, DET_USER, determined)")
    entering.set_defaults(run=_login)
    asking = verbs.add_parser("whoami", help="show the user as whom you are logged in")
    add_json(asking)
    asking.set_defaults(run=_whoami)
    leaving = verbs.add_parser("logout", help="log out")
    leaving.set_defaults(run=_logout)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the users")
    listing.add_argument("--all", action="store_true", help="also those who are deactivated")
    add_json(listing)
    listing.set_defaults(run=_list)
    creating = verbs.add_parser(
        "create", help="create a user; the password is asked for, or read from a pipe"
    )
    creating.add_argument("name", metavar="U")
    creating.add_argument("--admin", action="store_true", help="an administrator")
    creating.set_defaults(run=_create)
    changing = verbs.add_parser(
        "change-password", help="change a password; it is asked for, or read from a pipe"
    )
    changing.add_argument("name", metavar="U", nargs="?", help="the user (default: who is logged in)")
    changing.set_defaults(run=_change_password)
    for verb, text in (
        ("activate", "let a user log in again"),
        ("deactivate", "end the logins and tokens of a user, who cannot log in any more"),
    ):
        acting = verbs.add_parser(verb, help=text)
        acting.add_argument("name", metavar="U")
        acting.set_defaults(run=_act, verb=verb)


def _login(args: argparse.Namespace, settings: Settings) -> int:
    url = find_url(settings)
    name = args.name or settings.user or DEFAULT_USER
    token = log_in(settings, url, name, _password(settings, name))
    TokenCache(settings.home).store(url, name, token)
    print(f"Logged in to {url} as {name}")
    return 0


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = [user for user in session.api.accounts.users() if args.all or user["active"]]
    if args.json:
        render.print_json(found)
    else:
        rows = [
            [
                user["username"],
                user.get("displayName") or "",
                "yes" if user["admin"] else "no",
                "yes" if user["active"] else "no",
            ]
            for user in found
        ]
        render.print_table(["User", "Name", "Administrator", "Active"], rows)
    return 0


def _create(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        password = _new_password(args.name)
        session.api.accounts.create_user(args.name, password, is_admin=args.admin)
    print(f"Created user {args.name}")
    return 0


def _change_password(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        name = args.name or session.api.accounts.me()["username"]
        user_id = session.api.accounts.user(name)["id"]
        session.api.accounts.change_user(user_id, password=_new_password(name), isHashed=False)
    print(f"Changed the password of {name}, which ends the other logins of this user")
    return 0


def _act(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        user_id = session.api.accounts.user(args.name)["id"]
        session.api.accounts.change_user(user_id, active=args.verb == "activate")
    print(f"{args.verb.capitalize()}d user {args.name}")
    return 0


def _new_password(name: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass(f"New password for user {name!r}: ")
    if getpass.getpass("Again: ") != password:
        raise DetError("The two passwords differ. Nothing was changed.")
    return password


def _password(settings: Settings, name: str) -> str:
    if settings.password is not None and settings.environment_user in (None, name):
        return settings.password
    if sys.stdin.isatty():
        return getpass.getpass(f"Password for user {name!r}: ")
    return sys.stdin.readline().rstrip("\n")


def _whoami(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        user = session.api.accounts.me()
        if args.json:
            render.print_json(user)
        else:
            print(f"You are logged in to {session.url} as {render.printable(user['username'])}")
    return 0


def _logout(args: argparse.Namespace, settings: Settings) -> int:
    url = find_url(settings)
    cache = TokenCache(settings.home)
    known = cache.find(url, settings.user)
    if known is None:
        # The token that the embedded master writes for its owner is not a login: without it the owner is locked out.
        raise DetError(f"There is no login to {url} by `det user login`, so there is nothing to log out of.")
    name, token = known
    cache.forget(url, name)
    from det_keras.client import Session

    with (
        Session(url, token, cert_file=find_cert_file(settings, url), cert_name=settings.cert_name) as session,
        contextlib.suppress(MasterError),
    ):
        # If the master refuses the token, it has expired, and the logout is complete.
        session.api.accounts.log_out()
    print(f"Logged out {name} of {url}")
    return 0
