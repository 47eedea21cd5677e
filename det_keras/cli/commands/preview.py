"""`det preview-search`: the trials that a search would run."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_overrides
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_experiment
from det_keras.cli.submission.foreign import check_method
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the command to the command line."""
    parser = nouns.add_parser(
        "preview-search", help="show how many trials a config would train, and how long"
    )
    parser.add_argument("config_file", metavar="CONFIG", help="YAML file that describes the experiment")
    add_overrides(parser)
    add_json(parser)
    parser.set_defaults(run=_preview)


def _preview(args: argparse.Namespace, settings: Settings) -> int:
    file = read_experiment(args.config_file, args.overrides)
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            check_method(file)
        summary = session.api.experiments.preview_search(file.portable)
    if args.json:
        render.print_json(summary)
        return 0
    rows = [[str(trials["count"]), _length(trials["unit"])] for trials in summary["trials"]]
    render.print_table(["Trials>", "Trained for"], rows)
    if summary.get("simulation"):
        print()
        print(_simulation_text(summary["simulation"]))
    return 0


def _length(unit: dict[str, Any]) -> str:
    return "their whole length" if unit["maxLength"] else f"{unit['value']} {unit['name']}"


def _simulation_text(simulation: dict[str, Any]) -> str:
    """Return a sentence about one simulated run of the search."""
    endings = simulation["trials"]
    count = sum(ending["count"] for ending in endings)
    longest = max(ending["unit"]["value"] for ending in endings)
    saved = 1.0 - simulation["totalLength"] / (count * longest)
    spread = ", ".join(f"{ending['count']} at {ending['unit']['value']}" for ending in endings)
    unit = endings[0]["unit"]["name"]
    text = f"Simulated with made-up metrics: {count} trials train {simulation['totalLength']} {unit} in all"
    if saved > 0:
        text += f", {display.percent_text(saved)} less than in full; they end {spread}"
    return f"{text}. At most {simulation['mostAtOnce']} train at the same time."
