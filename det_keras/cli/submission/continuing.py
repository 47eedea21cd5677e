"""`det experiment continue`: continues an ended experiment."""

from __future__ import annotations

import argparse
import sys

from det_keras.cli.arguments import add_overrides, positive
from det_keras.cli.following.follow import follow
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_changes
from det_keras.cli.submission.files import print_notices
from det_keras.connection.settings import Settings

__all__ = ["add_arguments", "continue_"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("experiment_id", metavar="N", type=positive)
    parser.add_argument(
        "--config-file", metavar="FILE", help="YAML file with changes to the config of a single trial"
    )
    add_overrides(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="follow the experiment until it ends")


def continue_(args: argparse.Namespace, settings: Settings) -> int:
    """Continue an ended experiment, and follow it if requested; return the exit code."""
    changes = read_changes(args.config_file, args.overrides)
    with open_session(settings) as session:
        print_notices(session.api.experiments.continue_(args.experiment_id, changes))
        print(f"Continued experiment {args.experiment_id}")
        sys.stdout.flush()
        return follow(session, args.experiment_id) if args.follow else 0
