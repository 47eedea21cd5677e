"""`det web`: the master's pages in a browser."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import quote

from det_keras.cli.arguments import positive
from det_keras.cli.session import determined_page, open_session
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the command to the command line."""
    parser = nouns.add_parser("web", help="print an address that logs a browser in, once")
    parser.add_argument(
        "experiment_id", metavar="EXPERIMENT", nargs="?", type=positive, help="the page of this experiment"
    )
    parser.set_defaults(run=_web)


def _web(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        if args.experiment_id is not None:
            session.api.experiments.get(args.experiment_id)
        if session.api.accounts.is_determined():
            # Determined's own pages ask for a login themselves.
            print(determined_page(session.url, args.experiment_id))
            return 0
        url = session.api.accounts.web_login_url()
    if args.experiment_id is not None:
        url += f"&next={quote(f'/experiments/{args.experiment_id}', safe='')}"
    # Printed, not opened: other accounts of this machine can read a browser's command line, but not the terminal.
    print(url)
    return 0
