"""`det checkpoint`: find, download and delete checkpoints."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_yes, confirm, positive
from det_keras.cli.download import default_target, fetch_checkpoint
from det_keras.cli.session import open_session
from det_keras.connection.checkpoint_files import WAYS, download
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns

# Longer than any upload takes: what is younger may belong to a process that still writes.
_ORPHAN_HOURS = 24.0


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("checkpoint", aliases=["c"], help="find, download and delete checkpoints")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser(
        "list", aliases=["ls"], help="list the checkpoints of a trial or an experiment"
    )
    whose = listing.add_mutually_exclusive_group(required=True)
    whose.add_argument("trial_id", metavar="N", nargs="?", type=positive, help="the trial")
    whose.add_argument("--experiment", metavar="N", type=positive, help="all trials of this experiment")
    add_json(listing)
    listing.set_defaults(run=_list)
    describing = verbs.add_parser("describe", help="show a checkpoint with its files")
    describing.add_argument("uuid", metavar="UUID")
    add_json(describing)
    describing.set_defaults(run=_describe)
    getting = verbs.add_parser("download", help="download a checkpoint")
    getting.add_argument("uuid", metavar="UUID")
    getting.add_argument("-o", "--output-dir", metavar="DIR", help="target (default: checkpoints/UUID)")
    getting.add_argument(
        "--mode",
        choices=WAYS,
        default="auto",
        help="where from: through the master, direct from the storage with this machine's access to it, or auto",
    )
    getting.set_defaults(run=_download)
    removing = verbs.add_parser("rm", help="delete some files of checkpoints")
    removing.add_argument("uuids", metavar="UUID[,UUID]")
    removing.add_argument(
        "--glob", metavar="PATTERN", action="append", default=[], help="files to delete, such as 'code/**'"
    )
    add_yes(removing)
    removing.set_defaults(run=_remove)
    deleting = verbs.add_parser("delete", help="delete checkpoints")
    deleting.add_argument("uuids", metavar="UUID[,UUID]")
    add_yes(deleting)
    deleting.set_defaults(run=_delete)
    collecting = verbs.add_parser("gc", help="remove what unfinished checkpoints left in the storages")
    collecting.add_argument(
        "--orphans", action="store_true", required=True, help="files that belong to no finished checkpoint"
    )
    collecting.add_argument(
        "--older-than",
        metavar="HOURS",
        type=float,
        default=_ORPHAN_HOURS,
        help="age from which unfinished checkpoints of other machines count (default: %(default)g)",
    )
    collecting.add_argument("--dry-run", action="store_true", help="only list them")
    add_yes(collecting)
    collecting.set_defaults(run=_collect)


def checkpoint_rows(checkpoints: list[dict[str, Any]]) -> list[list[str]]:
    """Return one row of `print_checkpoints` for each checkpoint."""
    return [
        [
            checkpoint["uuid"],
            str(checkpoint["training"].get("trialId") or "-"),
            display.number_text((checkpoint.get("metadata") or {}).get("steps_completed")),
            display.state_text(checkpoint["state"]),
            display.metric_text(checkpoint["training"].get("searcherMetric")),
            display.size_text(sum(int(size) for size in checkpoint["resources"].values())),
            display.time_text(checkpoint.get("reportTime")),
        ]
        for checkpoint in checkpoints
    ]


def print_checkpoints(rows: list[list[str]]) -> None:
    """Print a table of checkpoints."""
    render.print_table(["UUID", "Trial>", "Batch>", "State", "Metric>", "Size>", "Reported"], rows)


def _list(args: argparse.Namespace, settings: Settings) -> int:
    params = {"sortByAttr": "SORT_BY_END_TIME", "orderBy": "ORDER_BY_ASC"}
    with open_session(settings) as session:
        if args.trial_id is not None:
            found = session.api.trials.all_checkpoints(args.trial_id, **params)
        else:
            found = session.api.experiments.checkpoints(args.experiment, **params)
    if args.json:
        render.print_json(found)
    else:
        print_checkpoints(checkpoint_rows(found))
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        record = fetch_checkpoint(session, args.uuid)
    if args.json:
        render.print_json(record)
        return 0
    training = record["training"]
    metrics = ((training.get("validationMetrics") or {}).get("avgMetrics")) or {}
    render.print_facts(
        {
            "Checkpoint": record["uuid"],
            "State": display.state_text(record["state"]),
            "Experiment": str(training.get("experimentId") or "-"),
            "Trial": str(training.get("trialId") or "-"),
            "Reported": display.time_text(record.get("reportTime")),
            **{name: display.number_text(value) for name, value in (record.get("metadata") or {}).items()},
            **{name: display.metric_text(value) for name, value in metrics.items()},
        }
    )
    print()
    files = {name: int(size) for name, size in record["resources"].items() if not name.endswith("/")}
    render.print_table(
        ["File", "Size>"], [[name, display.size_text(size)] for name, size in sorted(files.items())]
    )
    return 0


def _download(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        record = fetch_checkpoint(session, args.uuid)
        target = Path(args.output_dir) if args.output_dir else default_target(record["uuid"])
        print(download(session, record, target, way=args.mode))
    return 0


def _remove(args: argparse.Namespace, settings: Settings) -> int:
    uuids = _uuids(args.uuids)
    if args.glob:
        patterns = ", ".join(args.glob)
        if not confirm(f"Delete {patterns} from {_counted(uuids)} permanently?", yes=args.yes):
            raise DetError("Nothing was deleted.")
    with open_session(settings) as session:
        session.api.checkpoints.remove_files(uuids, args.glob)
    print(f"{'Deleting files of' if args.glob else 'Listing again the files of'} {_counted(uuids)}")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    uuids = _uuids(args.uuids)
    if not confirm(f"Delete {_counted(uuids)} permanently?", yes=args.yes):
        raise DetError("Nothing was deleted.")
    with open_session(settings) as session:
        session.api.checkpoints.delete(uuids)
    print(f"Deleting {_counted(uuids)}")
    return 0


def _collect(args: argparse.Namespace, settings: Settings) -> int:
    if not 0.0 <= args.older_than < float("inf"):
        raise DetError(f"`--older-than` must be a number of hours, received {args.older_than:g}.")
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError(
                f"The master at {session.url} does not search storages for unfinished checkpoints: only det_keras's "
                "own master does. A training removes those of its own machine when it stores its first checkpoint."
            )
        swept = session.api.checkpoints.remove_orphans(args.older_than * 3600.0, dry_run=True)
        _print_orphans(swept)
        if swept["orphans"] and not args.dry_run:
            if not confirm(
                f"Remove {len(swept['orphans'])} unfinished checkpoints permanently?", yes=args.yes
            ):
                raise DetError("Nothing was deleted.")
            swept = session.api.checkpoints.remove_orphans(args.older_than * 3600.0, dry_run=False)
            print(f"Removed {len(swept['orphans'])} unfinished checkpoints.")
    for problem in swept["problems"]:
        print(f"Not searched: {problem}", file=sys.stderr)
    return 1 if swept["problems"] else 0


def _print_orphans(swept: dict[str, Any]) -> None:
    if not swept["orphans"]:
        print("No unfinished checkpoints were found.")
        return
    rows = [
        [orphan["name"], display.size_text(int(orphan["sizeBytes"])), f"{orphan['ageS'] / 3600.0:.1f} h"]
        for orphan in swept["orphans"]
    ]
    render.print_table(["Place", "Size>", "Age>"], rows)


def _uuids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _counted(uuids: list[str]) -> str:
    return f"checkpoint {uuids[0]}" if len(uuids) == 1 else f"{len(uuids)} checkpoints"
