"""`det master` and `det version`: facts about the master and this program."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from det_keras.cli import render
from det_keras.cli.arguments import add_json
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns

__all__ = ["add_parsers"]


def add_parsers(nouns: Nouns) -> None:
    """Add the nouns and their verbs to the command line."""
    parser = nouns.add_parser("master", help="show facts about the master")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    info = verbs.add_parser("info", help="show address, version and ids")
    add_json(info)
    info.set_defaults(run=_info)
    version = nouns.add_parser("version", help="print the version of this program")
    version.set_defaults(run=_version)


def _info(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        info = session.api.accounts.cluster()
        if args.json:
            render.print_json(info)
            return 0
        render.print_facts(
            {
                "Master": session.url,
                "Version of the API": info["version"],
                "Master ID": info["masterId"],
                "Cluster ID": info["clusterId"],
                "Cluster name": info["clusterName"] or "-",
            }
        )
    return 0


def _version(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.about import __version__

    print(f"det_keras {__version__}")
    return 0
