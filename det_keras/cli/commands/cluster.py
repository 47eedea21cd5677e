"""`det cluster`: checks of the configured master."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from det_keras.cli.arguments import add_overrides
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.cli.checking.finding import Finding
    from det_keras.client import Session


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("cluster", help="check what works with the master")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = verbs.add_parser(
        "check", help="check version, login, slots and storage; exits with 1 if one fails"
    )
    check.add_argument(
        "--submit", action="store_true", help="also train for a minute, with a pause and a resume"
    )
    check.add_argument(
        "--limit",
        metavar="SECONDS",
        type=float,
        default=600.0,
        help="how long one step of the training may take (default: 600)",
    )
    add_overrides(check)
    check.set_defaults(run=_check)


def _check(args: argparse.Namespace, settings: Settings) -> int:
    # Imported here: `det --help` does not need them.
    from det_keras.cli.checking.finding import Outcome

    has_failed = False
    with open_session(settings) as session:
        for finding in _findings(session, args):
            finding.show()
            has_failed = has_failed or finding.outcome is Outcome.FAILED
    return 1 if has_failed else 0


def _findings(session: Session, args: argparse.Namespace) -> Iterator[Finding]:
    from det_keras.cli.checking import reading
    from det_keras.cli.checking.finding import Outcome
    from det_keras.cli.checking.submitted import find_training

    yield reading.find_version(session)
    login = reading.find_login(session)
    yield login
    if login.outcome is Outcome.FAILED:
        return
    yield reading.find_slots(session)
    yield reading.find_storage(session)
    yield from reading.find_features(session)
    if args.submit:
        yield from find_training(session, args.overrides, args.limit)
