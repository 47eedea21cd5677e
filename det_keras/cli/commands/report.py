"""`det experiment report`: writes the report of an experiment to one file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.display import size_text
from det_keras.errors import DetError
from det_keras.files import replacing

if TYPE_CHECKING:
    from det_keras.client import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command; the argument with the experiment's number exists already."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE.html",
        type=Path,
        help="the page, which needs no other files (default: experiment-N.html)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE.md",
        type=Path,
        help="text at the top of the page, in Markdown without HTML; a line ![](card:val_loss) places this card there",
    )
    parser.add_argument(
        "--cards",
        metavar="CARD[,CARD]",
        type=cards_of,
        help="draw these metrics and expressions only, such as val_loss,'val_loss - loss'",
    )
    parser.add_argument(
        "--view",
        metavar="ADDRESS",
        help="take over cards, range, axes, smoothing, hidden runs and baseline of a wall; its address in the browser",
    )
    parser.add_argument(
        "--png",
        metavar="FILE.png",
        type=Path,
        help="also write the curves of the searcher's metric as a picture; the master needs the extra `png`",
    )


def report(args: argparse.Namespace, settings: Settings) -> int:
    """Write the report of an experiment; return the exit code."""
    page = args.output or Path(f"experiment-{args.experiment_id}.html")
    text = None if args.text is None else _text(args.text)
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError(
                f"The master at {session.url} makes no reports: only det_keras's own master does, since release 0.1. "
                "`det experiment describe` works with every master."
            )
        given = {"text": text, "cards": args.cards, "view": args.view}
        body = {name: value for name, value in given.items() if value is not None} or None
        _save(session, f"/experiments/{args.experiment_id}/report", page, body)
        if args.png is not None:
            _save(session, f"/experiments/{args.experiment_id}/report.png", args.png)
    return 0


def cards_of(text: str) -> list[str]:
    """Return the cards of a list with commas; those inside of parentheses and quotation marks separate none."""
    cards, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character == "(") - (character == ")")
        if character == "," and not quote and depth <= 0:
            cards.append("")
        else:
            cards[-1] += character
    cards = [card.strip() for card in cards]
    if not all(cards):
        raise argparse.ArgumentTypeError("must be metrics or expressions with commas between them")
    return cards


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DetError(f"{path} is not text in UTF-8: {error.reason} at byte {error.start}.") from error


def _save(session: Session, path: str, target: Path, body: object = None) -> None:
    # Without `text/html`, so that errors are JSON and not a page.
    size_bytes = _write(target, session.download(path, accept="*/*", body=body))
    print(f"Wrote {target} ({size_text(size_bytes)}).")


def _write(target: Path, parts: Iterable[bytes]) -> int:
    """Write a file, which appears complete or not at all; return its size in bytes."""
    with replacing(target) as file:
        for part in parts:
            file.write(part)
        return file.tell()
