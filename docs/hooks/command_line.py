"""The command line, from the parser of `det`."""

from __future__ import annotations

import os

from det_keras.cli.command_tree import command_tree
from det_keras.cli.main import command_parser

__all__ = ["generate"]


def generate() -> str:
    """Return a section for each command: the text of its `--help`."""
    # The width of the help text, which argparse otherwise takes from the terminal.
    os.environ["COLUMNS"] = "100"
    commands = command_tree(command_parser()).walk()
    return "\n".join(
        f"## {command.path}\n\n```text\n{command.parser.format_help()}```\n" for command in commands
    )
