"""`det experiment`: create, follow and control experiments."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import (
    add_days,
    add_json,
    add_raw,
    add_yes,
    confirm,
    id_list,
    kept_text,
    positive,
)
from det_keras.cli.commands import report, sharing, steering
from det_keras.cli.commands.checkpoint import checkpoint_rows, print_checkpoints
from det_keras.cli.commands.teams import project
from det_keras.cli.commands.teams.audit import last_changes
from det_keras.cli.download import best_checkpoints_first
from det_keras.cli.following import follow, logs
from det_keras.cli.following.progress import best_validation
from det_keras.cli.following.trial_table import best_trials_first, is_search, metric_of
from det_keras.cli.following.workloads import print_workloads
from det_keras.cli.session import open_session
from det_keras.cli.submission import continuing, create
from det_keras.connection.checkpoint_files import download
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.protocol.states import COMPLETED, TERMINAL, named

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

_WAIT_PERIOD_S = 1.0
_ACTIONS = {
    "pause": ("Paused", "stop the trials at a checkpoint; activate resumes them"),
    "activate": ("Activated", "resume a paused experiment"),
    "cancel": ("Canceled", "end the experiment; the trials may still write a checkpoint"),
    "kill": ("Killed", "end the experiment at once"),
    "archive": ("Archived", "hide a finished experiment from the list"),
    "unarchive": ("Unarchived", "show an archived experiment again"),
}
_ENDINGS = ("cancel", "kill")


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser(
        "experiment", aliases=["e", "exp"], help="create, follow and control experiments"
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    making = verbs.add_parser("create", help="create an experiment from a config and a directory")
    create.add_arguments(making)
    making.set_defaults(run=create.create)
    listing = verbs.add_parser("list", aliases=["ls"], help="list experiments")
    listing.add_argument(
        "-a", "--all", action="store_true", help="of all users, including archived experiments"
    )
    add_json(listing)
    listing.set_defaults(run=_list)
    describing = verbs.add_parser("describe", help="show experiments with trials and metrics")
    describing.add_argument("experiment_ids", metavar="N[,M]", type=id_list)
    add_json(describing)
    describing.set_defaults(run=_describe)
    reading = _numbered(verbs, "logs", "print the log of the first trial", _logs)
    reading.add_argument("-f", "--follow", action="store_true", help="follow the log until the trial ends")
    add_raw(reading)
    logs.add_filters(reading)
    add_days(_numbered(verbs, "retain-logs", "say how long the logs are kept", _retain))
    _numbered(verbs, "wait", "wait until the experiment ends; the exit code is 0 if it completed", _wait)
    for verb, (_, text) in _ACTIONS.items():
        _numbered(verbs, verb, text, _act).set_defaults(verb=verb)
    resuming = verbs.add_parser(
        "continue", help="run an experiment that has ended again, from its checkpoints"
    )
    continuing.add_arguments(resuming)
    resuming.set_defaults(run=continuing.continue_)
    add_yes(_numbered(verbs, "delete", "delete a finished experiment with its checkpoints", _delete))
    listing_trials = _numbered(verbs, "list-trials", "list the trials, best first", _list_trials, ["lt"])
    listing_trials.add_argument(
        "--sort-by", choices=("metric", "id"), default="metric", help="the searcher's metric, or the number"
    )
    add_json(listing_trials)
    _add_checkpoint_verbs(verbs)
    add_json(_numbered(verbs, "config", "print the complete config", _config))
    steering.add_experiment_verbs(verbs)
    sharing.add_verbs(verbs)
    project.add_experiment_verbs(verbs)
    report.add_arguments(_numbered(verbs, "report", "write one page with its plots", report.report))


def _add_checkpoint_verbs(verbs: Nouns) -> None:
    listing = _numbered(verbs, "list-checkpoints", "list the checkpoints", _list_checkpoints, aliases=["lc"])
    listing.add_argument(
        "--best", metavar="K", type=positive, help="only the K best by the searcher's metric"
    )
    add_json(listing)
    getting = _numbered(verbs, "download", "download the best checkpoint", _download)
    getting.add_argument(
        "-o",
        "--output-dir",
        metavar="DIR",
        default="checkpoints",
        help="parent of one directory per checkpoint",
    )
    choice = getting.add_mutually_exclusive_group()
    choice.add_argument("--best", action="store_true", help="the best by the searcher's metric (the default)")
    choice.add_argument("--top-n", metavar="K", type=positive, default=1, help="the K best")


def _numbered(
    verbs: Nouns,
    name: str,
    text: str,
    run: Callable[[argparse.Namespace, Settings], int],
    aliases: tuple[str, ...] | list[str] = (),
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text, aliases=list(aliases))
    parser.add_argument("experiment_id", metavar="N", type=positive)
    parser.set_defaults(run=run)
    return parser


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        params: dict[str, Any] = {"limit": -1, "offset": 0}
        if not args.all:
            me = session.api.accounts.me()["username"]
            params |= {"archived": False, "users": [me]}
        experiments = session.api.experiments.all(**params)
    if args.json:
        render.print_json(experiments)
        return 0
    columns = ["ID>", "Name", "State", "Progress>", "Trials>", "Started", "Took>", "Owner"]
    rows = [_experiment_row(experiment) for experiment in experiments]
    if args.all:
        columns.append("Archived")
        for row, experiment in zip(rows, experiments, strict=True):
            row.append("yes" if experiment["archived"] else "no")
    render.print_table(columns, rows)
    return 0


def _experiment_row(experiment: dict[str, Any]) -> list[str]:
    start, end = experiment["startTime"], experiment.get("endTime")
    return [
        str(experiment["id"]),
        experiment["name"],
        display.state_text(experiment["state"]),
        display.percent_text(experiment.get("progress")),
        str(experiment["numTrials"]),
        display.time_text(start),
        display.duration_text(start, end),
        experiment["username"],
    ]


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = [_fetch(session, number) for number in args.experiment_ids]
        if args.json:
            found = [{**each, "verification": _verification(session, each["id"])} for each in found]
            render.print_json(found if len(found) > 1 else found[0])
            return 0
        for index, experiment in enumerate(found):
            if index:
                print()
            _print_experiment(session, experiment)
    return 0


def _print_experiment(session: Session, experiment: dict[str, Any]) -> None:
    searcher = experiment["config"].get("searcher") or {}
    facts = {
        "Experiment": f"{experiment['id']} {experiment['name']}",
        "State": display.state_text(experiment["state"]),
        "Progress": display.percent_text(experiment.get("progress")),
        "Started": display.time_text(experiment["startTime"]),
        "Ended": display.time_text(experiment.get("endTime")),
        "Searcher": f"{searcher.get('name')} on {searcher.get('metric')}",
    }
    if experiment.get("waitReason"):
        facts["Next trial"] = experiment["waitReason"]
    if experiment.get("description"):
        facts["Description"] = experiment["description"]
    if experiment.get("labels"):
        facts["Labels"] = ", ".join(experiment["labels"])
    if (verified := _verification(session, experiment["id"])) is not None:
        facts["Resume"] = verified["text"]
    if changes := last_changes(session, "experiment", experiment["id"]):
        facts["Changes"] = "; ".join(changes)
    trials = _trials(session, experiment["id"])
    best = best_validation(experiment, trials)
    if best is not None and is_search(experiment):
        facts["Best trial"] = (
            f"{best.trial_id}, {best.metric} {display.metric_text(best.value)} at batch {best.batches}"
        )
        hparams = next(trial["hparams"] for trial in trials if trial["id"] == best.trial_id)
        facts["Hyperparameters"] = display.hparams_text(hparams)
    render.print_facts(facts)
    print()
    _print_trials(experiment, best_trials_first(experiment, trials) if is_search(experiment) else trials)
    # For a search, only the reports of the best trial: those of a hundred trials would be too long.
    shown = (
        [best.trial_id]
        if best is not None and is_search(experiment)
        else [trial["id"] for trial in trials[:1]]
    )
    for trial_id in shown:
        print()
        print_workloads(session, trial_id, title=f"Trial {trial_id}")
    if len(trials) > len(shown):
        print("\n`det trial describe N` shows the reports of the other trials.")


def _logs(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        trial_id = follow.first_trial(session, args.experiment_id, wait_for_it=args.follow)
        if trial_id is None:
            raise DetError(f"Experiment {args.experiment_id} has no trials yet, so there is no log.")
        log = logs.chosen(session.api.trial_logs(trial_id), args)
        logs.print_log(log, follow=args.follow, is_raw=args.raw)
    return 0


def _retain(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.experiments.retain_logs(args.experiment_id, args.days)
    print(f"Logs of experiment {args.experiment_id}: {kept_text(args.days)}")
    return 0


def _wait(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        state = follow.wait(session, args.experiment_id, _WAIT_PERIOD_S)
    print(f"Experiment {args.experiment_id} is {display.state_text(state)}")
    return 0 if state == named(COMPLETED) else 1


def _act(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        if args.verb in _ENDINGS:
            state = display.state_text(_fetch(session, args.experiment_id)["state"])
            if state in TERMINAL:
                print(f"Experiment {args.experiment_id} has already ended: {state}")
                return 0
        session.api.experiments.move(args.experiment_id, args.verb)
    print(f"{_ACTIONS[args.verb][0]} experiment {args.experiment_id}")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    question = f"Delete experiment {args.experiment_id} with its trials, logs and checkpoints permanently?"
    if not confirm(question, yes=args.yes):
        raise DetError("Nothing was deleted.")
    with open_session(settings) as session:
        session.api.experiments.delete(args.experiment_id)
    print(f"Deleting experiment {args.experiment_id}")
    return 0


def _list_trials(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        experiment = _fetch(session, args.experiment_id)
        trials: Sequence[Mapping[str, Any]] = _trials(session, args.experiment_id)
        if args.sort_by == "metric":
            trials = best_trials_first(experiment, trials)
    if args.json:
        render.print_json(trials)
    else:
        _print_trials(experiment, trials)
    return 0


def _verification(session: Session, number: int) -> dict[str, Any] | None:
    """Return whether an experiment resumes exactly; None if that was not compared, as on a Determined master."""
    if session.api.accounts.is_determined():
        return None
    return session.api.experiments.verification(number)


def _print_trials(experiment: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    columns = [
        "Trial>",
        "State",
        "Batches>",
        "Restarts>",
        "Best metric>",
        "Started",
        "Took>",
        "Hyperparameters",
    ]
    render.print_table(columns, [_trial_row(experiment, trial) for trial in trials])


def _trial_row(experiment: Mapping[str, Any], trial: Mapping[str, Any]) -> list[str]:
    start, end = trial["startTime"], trial.get("endTime")
    return [
        str(trial["id"]),
        display.state_text(trial["state"]),
        str(trial["totalBatchesProcessed"]),
        str(trial["restarts"]),
        display.metric_text(metric_of(experiment, trial)),
        display.time_text(start),
        display.duration_text(start, end),
        display.hparams_text(trial["hparams"]),
    ]


def _list_checkpoints(args: argparse.Namespace, settings: Settings) -> int:
    params: dict[str, Any] = {"sortByAttr": "SORT_BY_END_TIME"}
    if args.best is not None:
        params |= {"sortByAttr": "SORT_BY_SEARCHER_METRIC", "limit": args.best, "states": [named(COMPLETED)]}
    with open_session(settings) as session:
        found = session.api.experiments.checkpoints(args.experiment_id, **params)
    if args.json:
        render.print_json(found)
    else:
        print_checkpoints(checkpoint_rows(found))
    return 0


def _download(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.experiments.checkpoints(args.experiment_id, states=[named(COMPLETED)])
        if not found:
            raise DetError(f"Experiment {args.experiment_id} has no checkpoint to download.")
        for record in best_checkpoints_first(found)[: args.top_n]:
            print(download(session, record, Path(args.output_dir) / record["uuid"]))
    return 0


def _config(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        config = _fetch(session, args.experiment_id)["config"]
    if args.json:
        render.print_json(config)
    else:
        # Imported here: only this command writes YAML.
        from det_keras.config import dump_yaml

        print(dump_yaml(config), end="")
    return 0


def _fetch(session: Session, number: int) -> dict[str, Any]:
    return session.api.experiments.get(number)


def _trials(session: Session, number: int) -> list[dict[str, Any]]:
    return session.api.experiments.trials(number, orderBy="ORDER_BY_ASC", sortBy="SORT_BY_ID")
