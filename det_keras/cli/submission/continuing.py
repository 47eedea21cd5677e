"""`det experiment continue`: continues an ended experiment."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from det_keras.cli.arguments import add_overrides, positive
from det_keras.cli.following.follow import follow
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_changes
from det_keras.cli.submission.files import print_notices
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.client import Session


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
        text = _text(session, args.experiment_id, changes) if changes else ""
        print_notices(session.api.experiments.continue_(args.experiment_id, text))
        print(f"Continued experiment {args.experiment_id}")
        sys.stdout.flush()
        return follow(session, args.experiment_id) if args.follow else 0


def _text(session: Session, experiment_id: int, changes: Mapping[str, Any]) -> str:
    # Imported here: only commands with a config need YAML.
    from det_keras.config import dump_yaml, portable_changes

    if session.api.accounts.is_determined():
        changes = portable_changes(changes, session.api.experiments.get(experiment_id)["config"])
    return dump_yaml(changes)
