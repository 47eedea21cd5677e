"""`det trial list`: the trials of all experiments as a table."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import positive
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns

_SHOWN = 50
_NUMERIC = frozenset({"id", "experiment", "metric", "number", "duration", "hparam", "progress", "size"})


def add_parser(verbs: Nouns) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser("list", aliases=["ls"], help="list the trials of all experiments")
    parser.add_argument(
        "--filter", metavar="TERMS", default="", help="such as 'val_accuracy>.9 optimizer=adam'"
    )
    parser.add_argument(
        "--sort", metavar="NAME", default="", help="a column; --sort=-NAME for the largest first"
    )
    parser.add_argument(
        "--columns", metavar="NAMES", default="", help="such as id,learning_rate,val_accuracy"
    )
    parser.add_argument(
        "--group", metavar="NAME", default="", help="mean and deviation for each value of a column"
    )
    parser.add_argument(
        "--limit", metavar="K", type=positive, help=f"at most K rows (default: {_SHOWN}; with --json all)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print all rows as CSV")
    form.add_argument("--json", action="store_true", help="print a list of objects, NaN as text")
    parser.set_defaults(run=_list)


def _list(args: argparse.Namespace, settings: Settings) -> int:
    question = {"q": args.filter, "sort": args.sort, "columns": args.columns, "group": args.group}
    if args.csv and args.limit is not None:
        raise DetError("--csv prints all rows; --limit cannot be used with it.")
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError(
                "Only a master of det_keras has the table of all trials. Use `det experiment list-trials N`."
            )
        if args.csv:
            # In the master's own form, which is that of the page.
            for part in session.download(f"/trials.csv?{urlencode(question)}", accept="text/csv"):
                sys.stdout.buffer.write(part)
            sys.stdout.flush()
            return 0
        limit = args.limit or (None if args.json else _SHOWN)
        found = session.api.trials.table(**question, limit=limit)
    kinds = {column["key"]: column["kind"] for column in found["columns"]}
    if args.json:
        render.print_json([dict(zip(kinds, cells, strict=True)) for cells in found["rows"]])
        return 0
    heads = [f"{key}>" if kind in _NUMERIC else key for key, kind in kinds.items()]
    rows = [[_text(*pair) for pair in zip(kinds.values(), cells, strict=True)] for cells in found["rows"]]
    render.print_table(heads, rows)
    if len(rows) < found["found"]:
        print(f"{len(rows)} of {found['found']:,} rows; --limit or --csv show more.")
    return 0


def _text(kind: str, cell: Any) -> str:
    if cell is None or cell == []:
        return "-"
    if isinstance(cell, list):
        return ", ".join(map(str, cell))
    if kind == "duration":
        return display.seconds_text(float(cell))
    if kind == "size":
        return display.size_text(int(cell))
    if kind == "progress":
        return display.percent_text(cell)
    if kind == "time":
        return display.time_text(str(cell))
    return display.metric_text(cell) if kind == "metric" else display.number_text(cell)
