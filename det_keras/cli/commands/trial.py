"""`det trial`: list trials, inspect single ones."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_days, add_json, add_raw, kept_text, positive
from det_keras.cli.commands import steering, trial_list
from det_keras.cli.download import best_checkpoints_first, default_target
from det_keras.cli.following import logs
from det_keras.cli.following.trial_table import metric_of
from det_keras.cli.following.workloads import print_workloads
from det_keras.cli.session import open_session
from det_keras.connection.checkpoint_files import download
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.protocol.states import COMPLETED, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("trial", aliases=["t"], help="list trials, inspect single ones")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    trial_list.add_parser(verbs)
    describing = _numbered(verbs, "describe", "show a trial with its metrics", _describe)
    describing.add_argument("-a", "--all", action="store_true", help="all reports, not only the last ones")
    add_json(describing)
    reading = _numbered(verbs, "logs", "print the log", _logs)
    way = reading.add_mutually_exclusive_group()
    way.add_argument("--head", metavar="K", type=positive, help="only the first K lines")
    way.add_argument("--tail", metavar="K", type=positive, help="only the last K lines")
    reading.add_argument("-f", "--follow", action="store_true", help="follow the log until the trial ends")
    add_raw(reading)
    logs.add_filters(reading)
    retaining = _numbered(verbs, "retain-logs", "say how long the log is kept", _retain)
    add_days(retaining)
    _numbered(verbs, "kill", "end the trial at once", _kill)
    steering.add_trial_verbs(verbs)
    getting = _numbered(verbs, "download", "download a checkpoint", _download)
    choice = getting.add_mutually_exclusive_group()
    choice.add_argument("--best", action="store_true", help="the best by the searcher's metric (the default)")
    choice.add_argument("--latest", action="store_true", help="the checkpoint with the most batches")
    choice.add_argument("--uuid", metavar="UUID", help="the checkpoint with this UUID")
    getting.add_argument("-o", "--output-dir", metavar="DIR", help="target (default: checkpoints/UUID)")


def _numbered(
    verbs: Nouns, name: str, text: str, run: Callable[[argparse.Namespace, Settings], int]
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("trial_id", metavar="N", type=positive)
    parser.set_defaults(run=run)
    return parser


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        trial = session.api.trials.get(args.trial_id)
        if args.json:
            render.print_json(trial)
            return 0
        experiment = session.api.experiments.get(trial["experimentId"])
        waiting = {"Waiting": trial["waitReason"]} if trial.get("waitReason") else {}
        render.print_facts(
            {
                "Trial": str(trial["id"]),
                "Experiment": str(trial["experimentId"]),
                "State": display.state_text(trial["state"]),
                **waiting,
                "Activity": trial.get("runnerState") or "-",
                "Started": display.time_text(trial["startTime"]),
                "Ended": display.time_text(trial.get("endTime")),
                "Restarts": str(trial["restarts"]),
                "Batches": str(trial["totalBatchesProcessed"]),
                "Best metric": display.metric_text(metric_of(experiment, trial)),
                "Hyperparameters": display.hparams_text(trial["hparams"]),
            }
        )
        print()
        print_workloads(session, args.trial_id, show_all=args.all)
    return 0


def _logs(args: argparse.Namespace, settings: Settings) -> int:
    if args.follow and args.head is not None:
        raise DetError("--head shows the start of a log and --follow its end. Use one of them.")
    with open_session(settings) as session:
        log = logs.chosen(session.api.trial_logs(args.trial_id), args)
        logs.print_log(log, follow=args.follow, head=args.head, last=args.tail, is_raw=args.raw)
    return 0


def _retain(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.trials.retain_logs(args.trial_id, args.days)
    print(f"Log of trial {args.trial_id}: {kept_text(args.days)}")
    return 0


def _kill(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.trials.kill(args.trial_id)
    print(f"Killed trial {args.trial_id}")
    return 0


def _download(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.trials.all_checkpoints(args.trial_id)
        record = _chosen(args, found)
        target = Path(args.output_dir) if args.output_dir else default_target(record["uuid"])
        print(download(session, record, target))
    return 0


def _chosen(args: argparse.Namespace, found: list[dict[str, Any]]) -> dict[str, Any]:
    if args.uuid is not None:
        asked = [record for record in found if record["uuid"] == args.uuid.lower()]
        if not asked:
            raise DetError(f"Trial {args.trial_id} has no checkpoint {args.uuid!r}.")
        return asked[0]
    complete = [record for record in found if record["state"] == named(COMPLETED)]
    if not complete:
        raise DetError(f"Trial {args.trial_id} has no checkpoint to download.")
    if args.latest:
        return max(complete, key=lambda record: record["metadata"].get("steps_completed") or 0)
    return best_checkpoints_first(complete)[0]
