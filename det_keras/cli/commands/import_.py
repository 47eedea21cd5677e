"""`det import`: runs of other trackers become experiments of the master."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli.render import printable
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from types import TracebackType

    from det_keras.cli.arguments import Nouns
    from det_keras.importing.base import Find

_BAR_COLUMNS = 24


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("import", help="import runs of other trackers")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    mlflow = verbs.add_parser("mlflow", help="import runs of MLflow")
    mlflow.add_argument("path", metavar="PATH", type=Path, help="a directory `mlruns` or a file `mlflow.db`")
    mlflow.add_argument(
        "--experiment", metavar="NAME", help="only runs of MLflow's experiment with this name"
    )
    mlflow.set_defaults(run=_mlflow)
    wandb = verbs.add_parser("wandb", help="import runs of W&B")
    wandb.add_argument("path", metavar="PATH", type=Path, help="a directory `wandb`, or one run below it")
    wandb.set_defaults(run=_wandb)
    tensorboard = verbs.add_parser("tensorboard", help="import TensorBoard's event files")
    tensorboard.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="a directory with folders of event files, each of which is a run",
    )
    tensorboard.set_defaults(run=_tensorboard)


# Each reader is imported by its command: `det --help` needs none.


def _mlflow(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.importing import mlflow

    return _import(args, settings, "mlflow", mlflow.find)


def _wandb(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.importing import wandb

    return _import(args, settings, "wandb", wandb.find)


def _tensorboard(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.importing import tensorboard

    return _import(args, settings, "tensorboard", tensorboard.find)


def _import(args: argparse.Namespace, settings: Settings, tracker: str, find: Find) -> int:
    from det_keras.importing.sending import failure_text, import_runs

    # Before a master is started: the path may be wrong.
    found = list(find(args.path, getattr(args, "experiment", None), datetime.now(timezone.utc)))
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError(
                f"Runs can be imported only by det_keras's own master, and {session.url} is one of Determined."
            )
        with _Progress(len(found)) as progress:
            report = import_runs(
                session.api, tracker, found, on_done=progress.advance, on_failure=progress.fail
            )
    print(report)
    if report.failures:
        print(failure_text(report), file=sys.stderr)
    return 1 if report.failures else 0


class _Progress:
    """A progress bar on a terminal; elsewhere only the failures are printed.

    Args:
        total: number of runs.
    """

    def __init__(self, total: int) -> None:
        self._bar: Any = None
        self._task: Any = None
        if total and sys.stdout.isatty():
            # Imported here: importing rich takes longer than most commands.
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            self._bar = Progress(
                BarColumn(bar_width=_BAR_COLUMNS),
                MofNCompleteColumn(),
                TextColumn("runs"),
                TimeRemainingColumn(),
                TextColumn("left"),
                transient=True,
            )
            self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> _Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self) -> None:
        """Count a run."""
        if self._bar is not None:
            self._bar.advance(self._task)

    def fail(self, text: str) -> None:
        """Print why a run could not be imported."""
        show: Callable[[str], object] = lambda line: print(line, file=sys.stderr)  # noqa: E731
        if self._bar is not None:
            # Above the bar, which would overwrite it.
            show = lambda line: self._bar.console.print(line, markup=False, highlight=False)  # noqa: E731
        show(printable(text))
