"""`det tensorboard`: opens TensorBoard with the events of experiments, trials or local runs."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError
from det_keras.scratch import Scratch

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session
    from det_keras.storage import Storage

    # A storage, and the prefix of files in it.
    Events = tuple[Storage, str]

_REFRESH_S = 5.0
_END_S = 5.0


def add_parsers(nouns: Nouns) -> None:
    """Add the commands to the command line."""
    parser = nouns.add_parser("tensorboard", help="inspect metrics with TensorBoard")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    start = verbs.add_parser("start", help="open TensorBoard for experiments, until Ctrl-C")
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
    start.add_argument("--run-dir", metavar="DIR", type=Path, action="append", default=[], help="a local run")
    start.add_argument(
        "--port",
        type=int,
        default=6006,
        help="port on 127.0.0.1; 0 for a free port (default: 6006)",
    )
    start.set_defaults(run=_start)


def _start(args: argparse.Namespace, settings: Settings) -> int:
    # Imported here: `det --help` does not need them.
    import importlib.util

    if not (args.experiment_ids or args.trial_ids or args.run_dir):
        raise DetError("Nothing to show: name experiments, `--trial-ids` or `--run-dir`.")
    if importlib.util.find_spec("tensorboard") is None:
        raise DetError("TensorBoard is not installed: `pip install 'det_keras[tensorboard]'`.")
    with Scratch("tensorboard") as folder:
        shown = _refresh(args, settings, Path(folder))
        print(f"TensorBoard shows {shown} runs. End it with Ctrl-C.", flush=True)
        process = launch(
            Path(folder),
            args.port,
            # Ctrl-C is handled here; TensorBoard would print a traceback if it is still starting.
            start_new_session=True,
        )
        for number in (signal.SIGTERM, signal.SIGHUP):
            # It is in a session of its own, in which no signal for this process reaches it.
            signal.signal(number, lambda number, _: sys.exit(128 + number))
        try:
            return refresh_until_end(process, lambda: _refresh(args, settings, Path(folder)))
        except KeyboardInterrupt:
            return 0
        finally:
            _end(process)


def launch(folder: Path, port: int, **options: Any) -> subprocess.Popen[str]:
    """Start TensorBoard with the links in `folder`, on a port of loopback; 0 for a free port."""
    import subprocess

    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--reload_interval", str(int(_REFRESH_S))],
        # Hides TensorFlow's messages at the start.
        env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
        text=True,
        **options,
    )


def _end(process: subprocess.Popen[str]) -> None:
    """End TensorBoard; kill it if it does not end in time, as when it is still starting."""
    import subprocess

    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def refresh_until_end(process: subprocess.Popen[str], refresh: Callable[[], object]) -> int:
    """Wait for TensorBoard's end, and refresh the links regularly; return its exit code."""
    import subprocess

    while True:
        try:
            return process.wait(_REFRESH_S)
        except subprocess.TimeoutExpired:
            # A running search creates new trials. If the master is unavailable, the next refresh finds them.
            with contextlib.suppress(DetError):
                refresh()


def _refresh(args: argparse.Namespace, settings: Settings, folder: Path) -> int:
    """Create a link for each trial and run; return the number of those with events."""
    from det_keras.storage import DirectoryStorage

    targets: dict[str, Events] = {
        f"run-{number}-{path.resolve().name}": (DirectoryStorage(path), "tensorboard")
        for number, path in enumerate(args.run_dir, 1)
    }
    missing = [str(path) for path in args.run_dir if not path.is_dir()]
    if missing:
        raise DetError(f"There is no run directory {', '.join(missing)}.")
    if args.experiment_ids or args.trial_ids:
        with open_session(settings) as session:
            targets |= events_of(session, args.experiment_ids, args.trial_ids)
    return link_events(folder, targets)


def link_events(folder: Path, targets: dict[str, Events]) -> int:
    """Make events readable in `folder`, as links or as copies of what is new; return the number of those that exist."""
    return sum(store.mirror_files(prefix, folder / name) for name, (store, prefix) in targets.items())


def events_of(session: Session, experiment_ids: list[int], trial_ids: list[int]) -> dict[str, Events]:
    """Return the storages and prefixes of the trials' events, by the names that TensorBoard shows.

    Args:
        session: of the master that has the trials.
        experiment_ids: all trials of these experiments.
        trial_ids: these trials.
    """
    from det_keras import storage
    from det_keras.config.secrets import without_masked
    from det_keras.storage.names import events_prefix

    api = session.api
    cluster = api.accounts.cluster().get("clusterId", "")
    trials = [api.trials.get(number) for number in trial_ids]
    for number in experiment_ids:
        trials += api.experiments.trials(number)
    sections: dict[int, Any] = {}
    found: dict[str, Events] = {}
    for trial in trials:
        experiment = int(trial["experimentId"])
        if experiment not in sections:
            config = api.experiments.get(experiment)["config"]
            sections[experiment] = config["checkpoint_storage"]
        place = events_prefix(cluster, experiment, trial["id"])
        store = storage.from_config(without_masked(sections[experiment]))
        found[f"experiment-{experiment}-trial-{trial['id']}"] = (store, place)
    return found
