"""The verbs of `det experiment` and `det trial` that change a search while it runs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli.arguments import positive
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

_TO = ".."


def add_experiment_verbs(verbs: Nouns) -> None:
    """Add the verbs about experiments."""
    adding = verbs.add_parser("add-trial", help="add a trial to a search, with values of your own")
    adding.add_argument("experiment_id", metavar="N", type=positive)
    adding.add_argument("values", metavar="NAME=VALUE", nargs="+", help="each hyperparameter that varies")
    adding.set_defaults(run=_add_trial)
    narrowing = verbs.add_parser("narrow", help="draw the further trials of a search from fewer values")
    narrowing.add_argument("experiment_id", metavar="N", type=positive)
    narrowing.add_argument(
        "ranges", metavar="NAME=LOW..HIGH|A,B", nargs="+", help="a part of a range, or some values of a list"
    )
    narrowing.set_defaults(run=_narrow)


def add_trial_verbs(verbs: Nouns) -> None:
    """Add the verbs about trials."""
    stopping = verbs.add_parser("stop", help="end the trial at its next safe point, as completed")
    stopping.add_argument("trial_id", metavar="N", type=positive)
    stopping.set_defaults(run=_stop)
    extending = verbs.add_parser("extend", help="let the trial train longer than its search planned")
    extending.add_argument("trial_id", metavar="N", type=positive)
    extending.add_argument(
        "length", metavar="LENGTH", type=positive, help="in all, in the unit of `searcher.max_length`"
    )
    extending.set_defaults(run=_extend)


def _add_trial(args: argparse.Namespace, settings: Settings) -> int:
    values = {name: _value(text) for name, text in map(_assignment, args.values)}
    with open_session(settings) as session:
        _refuse_determined(session)
        trial = session.api.experiments.add_trial(args.experiment_id, values)
    print(f"Added trial {trial['trialId']}: {display.hparams_text(trial['hparams'])}")
    return 0


def _narrow(args: argparse.Namespace, settings: Settings) -> int:
    wanted = {name: _part(text) for name, text in map(_assignment, args.ranges)}
    with open_session(settings) as session:
        _refuse_determined(session)
        session.api.experiments.narrow(args.experiment_id, wanted)
    print(f"Further trials of experiment {args.experiment_id} are drawn from the narrower space.")
    return 0


def _stop(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        _refuse_determined(session)
        session.api.trials.stop(args.trial_id)
    print(f"Trial {args.trial_id} ends at its next safe point.")
    return 0


def _extend(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        _refuse_determined(session)
        session.api.trials.extend(args.trial_id, args.length)
    print(f"Trial {args.trial_id} trains to {args.length}.")
    return 0


def _refuse_determined(session: Session) -> None:
    if session.api.accounts.is_determined():
        raise DetError(
            "Only a master of det_keras changes a search while it runs. Fork the experiment with another config."
        )


def _assignment(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise DetError(f"{text!r} must have the form NAME=VALUE, such as learning_rate=0.01.")
    return name, value


def _part(text: str) -> list[Any]:
    low, dots, high = text.partition(_TO)
    if dots:
        return [_value(low), _value(high)]
    return [_value(part) for part in text.split(",")]


def _value(text: str) -> Any:
    # Imported here: help needs no YAML.
    from det_keras.config.yaml_text import parse_scalar

    return parse_scalar(text)
