"""Arguments that several commands share."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    #: The object to which a noun adds its parser; argparse has no public name for it.
    Nouns = argparse._SubParsersAction[argparse.ArgumentParser]


def positive(text: str) -> int:
    """Parse a positive integer, as an argparse type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, received {text!r}")
    return int(text)


def id_list(text: str) -> list[int]:
    """Parse a list of positive integers such as ``3,5``, as an argparse type."""
    return [positive(part.strip()) for part in text.split(",")]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option to print JSON."""
    parser.add_argument("--json", action="store_true", help="print JSON, as in the REST API")


def add_raw(parser: argparse.ArgumentParser) -> None:
    """Add the option to print a log as it was written."""
    parser.add_argument(
        "--raw",
        action="store_true",
        help="let the terminal obey control characters of the log, which otherwise are shown",
    )


def add_overrides(parser: argparse.ArgumentParser) -> None:
    """Add the option to change values of the config."""
    parser.add_argument(
        "--config",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change the config, such as searcher.max_trials=4; may be repeated",
    )


def add_template(parser: argparse.ArgumentParser) -> None:
    """Add the option for the template of a config."""
    parser.add_argument(
        "--template", metavar="NAME", help="complete the config by this template of the master"
    )


def with_template(overrides: Sequence[str], template: str | None) -> list[str]:
    """Return changes of a config that also name its template."""
    # As a text, also if it looks like a number.
    return [*overrides, *([] if template is None else [f"template={json.dumps(template)}"])]


def add_days(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how long logs are kept."""
    how_long = parser.add_mutually_exclusive_group(required=True)
    how_long.add_argument("--days", type=int, metavar="N", help="N days after the end of the experiment")
    how_long.add_argument("--forever", dest="days", action="store_const", const=-1, help="for ever")


def kept_text(days: int) -> str:
    """Return how long a log is kept."""
    return "kept for ever" if days < 0 else f"kept for {days} days after the end of the experiment"


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add the option to skip the confirmation."""
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def confirm(question: str, *, yes: bool) -> bool:
    """Ask for confirmation before a deletion; the end of the input means no."""
    if yes:
        return True
    try:
        return input(f"{question} [y/N]: ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
