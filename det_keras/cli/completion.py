"""`det completion`: shell scripts that complete the words of `det`, which shtab makes of the parser.

The scripts are static: they contain all commands and options, so that completion does not start Python.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns, root: argparse.ArgumentParser) -> None:
    """Add the command to the command line with the parser `root`."""
    parser = nouns.add_parser("completion", help="print a script that completes commands in a shell")
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell to write it for")
    parser.set_defaults(run=_print_script, root=root)


def _print_script(args: argparse.Namespace, settings: Settings) -> int:
    # Imported here: no other command needs it.
    import shtab

    print(shtab.complete(args.root, args.shell))
    return 0
