"""`det tensorboard`: a real TensorBoard over the events of experiments, or of runs alone."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

__all__ = ["add_parsers", "events_of", "launch", "link_events", "refresh_until_end"]

_REFRESH_S = 5.0
_END_S = 5.0


def add_parsers(nouns: Nouns) -> None:
    """Add the commands to the command line."""
    parser = nouns.add_parser("tensorboard", help="look at metrics with TensorBoard")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    start = verbs.add_parser("start", help="open TensorBoard over experiments, until Ctrl-C")
    start.add_argument(
        "experiment_ids", metavar="EXPERIMENT_ID", type=int, nargs="*", help="numbers of experiments"
    )
    start.add_argument(
        "-t",
        "--trial-ids",
        metavar="TRIAL_ID",
        type=int,
        nargs="+",
        default=[],
        help="numbers of single trials",
    )
    start.add_argument("--run-dir", metavar="DIR", type=Path, action="append", default=[], help="a run alone")
    start.add_argument(
        "--port",
        type=int,
        default=6006,
        help="where to listen on 127.0.0.1; 0 for a free one (default: 6006)",
    )
    start.set_defaults(run=_start)


def _start(args: argparse.Namespace, settings: Settings) -> int:
    # Imported here, as all that `det --help` would load for nothing.
    import importlib.util
    import tempfile

    if not (args.experiment_ids or args.trial_ids or args.run_dir):
        raise DetError("Say what to show: numbers of experiments, `--trial-ids`, or `--run-dir`.")
    if importlib.util.find_spec("tensorboard") is None:
        raise DetError("TensorBoard is not installed: `pip install 'det_keras[tensorboard]'`.")
    with tempfile.TemporaryDirectory(prefix="det-tensorboard-") as folder:
        shown = _refresh(args, settings, Path(folder))
        print(f"TensorBoard shows {shown} runs. End it with Ctrl-C.", flush=True)
        process = launch(
            Path(folder),
            args.port,
            # Ctrl-C is for us; it would have the other print a traceback while it starts.
            start_new_session=True,
        )
        try:
            return refresh_until_end(process, lambda: _refresh(args, settings, Path(folder)))
        except KeyboardInterrupt:
            return 0
        finally:
            _end(process)


def launch(folder: Path, port: int, **options: Any) -> subprocess.Popen[str]:
    """Start TensorBoard over the links in `folder`, on a port of loopback; 0 for a free one."""
    import subprocess

    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--reload_interval", str(int(_REFRESH_S))],
        # TensorFlow's own start-up messages tell nothing of the events.
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        text=True,
        **options,
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End a TensorBoard; one that is still starting, or whose threads do not end, does not hear of it in time."""
    import subprocess

    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def refresh_until_end(process: subprocess.Popen[str], refresh: Callable[[], object]) -> int:
    """Return the exit code of a TensorBoard; as long as it runs, look for new trials once in a while."""
    import subprocess

    while True:
        try:
            return process.wait(_REFRESH_S)
        except subprocess.TimeoutExpired:
            # Searches make new trials as they go on; a master that is away comes back.
            with contextlib.suppress(DetError):
                refresh()


def _refresh(args: argparse.Namespace, settings: Settings, folder: Path) -> int:
    """Make a link for each trial and run, and return how many have events."""
    targets = {
        f"run-{number}-{path.resolve().name}": path / "tensorboard"
        for number, path in enumerate(args.run_dir, 1)
    }
    missing = [str(path) for path in args.run_dir if not path.is_dir()]
    if missing:
        raise DetError(f"There is no run directory {', '.join(missing)}.")
    if args.experiment_ids or args.trial_ids:
        with open_session(settings) as session:
            targets |= events_of(session, args.experiment_ids, args.trial_ids)
    return link_events(folder, targets)


def link_events(folder: Path, targets: dict[str, Path]) -> int:
    """Make symbolic links to directories in `folder`, where they are missing; return how many targets exist."""
    for name, target in targets.items():
        link = folder / name
        if not link.is_symlink():
            link.symlink_to(target.absolute(), target_is_directory=True)
    return sum(target.is_dir() for target in targets.values())


def events_of(session: Session, experiment_ids: list[int], trial_ids: list[int]) -> dict[str, Path]:
    """Return where the events of each trial are stored, by a name to show."""
    from det_keras import storage
    from det_keras.storage.events import events_prefix

    api = session.api
    cluster = api.accounts.cluster().get("clusterId", "")
    trials = [api.trials.get(number) for number in trial_ids]
    for number in experiment_ids:
        trials += api.experiments.trials(number)
    sections: dict[int, Any] = {}
    found = {}
    for trial in trials:
        experiment = int(trial["experimentId"])
        if experiment not in sections:
            config = api.experiments.get(experiment)["config"]
            sections[experiment] = config["checkpoint_storage"]
        place = events_prefix(cluster, experiment, trial["id"])
        store = storage.from_config(sections[experiment])
        found[f"experiment-{experiment}-trial-{trial['id']}"] = store.files_path(place)
    return found
