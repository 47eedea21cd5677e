"""`det experiment create`: creates an experiment from a config file and a directory."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from pathlib import Path

from det_keras.cli.arguments import add_overrides, add_template, with_template
from det_keras.cli.following.follow import follow
from det_keras.cli.session import open_session
from det_keras.cli.submission import foreign
from det_keras.cli.submission.config_file import ExperimentFile, read_experiment, templates_of
from det_keras.cli.submission.context_directory import ContextFiles
from det_keras.cli.submission.files import (
    PATIENCE_S,
    capture_submission,
    check_requirements,
    conceal_secrets,
    notice_without_effect,
    print_notices,
    read_files,
)
from det_keras.cli.submission.local_run import command_of, environment_of, run_locally
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.provenance.capture import Capture


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("config_file", metavar="CONFIG", help="YAML file that describes the experiment")
    parser.add_argument(
        "context_directory",
        metavar="CONTEXT_DIR",
        nargs="?",
        default=".",
        help="directory with the script (default: the current one); see .detignore",
    )
    add_overrides(parser)
    add_template(parser)
    way = parser.add_mutually_exclusive_group()
    way.add_argument("-f", "--follow", action="store_true", help="follow the experiment until it ends")
    way.add_argument("--paused", action="store_true", help="do not activate the experiment")
    way.add_argument("--local", action="store_true", help="run the script locally, without a master")
    way.add_argument(
        "--verify-resume",
        action="store_true",
        help="train briefly, kill and resume, and compare with an uninterrupted training",
    )
    parser.add_argument(
        "--workers",
        metavar="N,M,...",
        type=_numbers_of_workers,
        help="with --verify-resume: compare trainings on these numbers of workers, such as 1,2,4",
    )


def create(args: argparse.Namespace, settings: Settings) -> int:
    """Create an experiment, activate and follow it as requested; return the exit code."""
    if args.workers is not None and not args.verify_resume:
        raise DetError(
            "`--workers` belongs to `--verify-resume`. `resources.slots_per_trial` says how many train."
        )
    # Config and files are read first: after a mistake in them, not even a master is started, unless it has a template.
    overrides = with_template(args.overrides, args.template)
    has_master = not (args.local or args.verify_resume)
    file = read_experiment(args.config_file, overrides, templates_of(settings) if has_master else None)
    if args.local or args.verify_resume:
        option = "--local" if args.local else "--verify-resume"
        where = f"with `{option}`: the script runs with the Python of this command"
        print_notices({"notices": notice_without_effect(file.config.environment, where)})
    if args.local:
        print_notices({"notices": file.notices})
        return run_locally(file, Path(args.context_directory))
    if args.verify_resume:
        return _verify(file, Path(args.context_directory), args.workers)
    # Beside the rest: it is read while the files are packed and the master is found.
    capture = capture_submission(args.context_directory)
    files = conceal_secrets(read_files(args.context_directory), file.given)
    check_requirements(file.config.environment, files.entries)
    return _submit(args, settings, file, files, capture)


def _verify(file: ExperimentFile, directory: Path, workers: list[int] | None) -> int:
    # Imported here: they need NumPy.
    from det_keras.verification.resume import VerifiedScript, verify_resume
    from det_keras.verification.workers import verify_workers

    environment = functools.partial(environment_of, os.environ, file)
    script = VerifiedScript(directory, command_of(file), file.text, environment)
    return verify_resume(script) if workers is None else verify_workers(script, workers)


def _numbers_of_workers(text: str) -> list[int]:
    from det_keras.verification.workers import parse_numbers

    try:
        return parse_numbers(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected two or more numbers of workers, such as 1,2,4. Received: {text!r}."
        ) from None


def _submit(
    args: argparse.Namespace,
    settings: Settings,
    file: ExperimentFile,
    files: ContextFiles,
    capture: Capture,
) -> int:
    with open_session(settings) as session:
        text, provenance = file.text, None
        if session.api.accounts.is_determined():
            text, replaced = foreign.experiment_text(file)
            unused = notice_without_effect(file.config.environment, foreign.PACKAGES)
            importing = foreign.import_notices(text, files.entries)
            print_notices({"notices": [*file.notices, *replaced, *unused, *importing]})
        else:
            provenance = capture.result(PATIENCE_S)
        answer = session.api.experiments.create(
            text, files.entries, activate=not args.paused, provenance=provenance
        )
        print_notices(answer)
        number = int(answer["experiment"]["id"])
        print(f"Created experiment {number}")
        if not args.paused:
            print(f"Activated experiment {number}")
        sys.stdout.flush()
        return follow(session, number) if args.follow else 0
