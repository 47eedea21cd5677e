"""The task of `det tensorboard start` of Determined's client: runs TensorBoard and reports its address."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from det_keras.cli.commands.tensorboard import events_of, launch, link_events, refresh_until_end
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.scratch import Scratch

_SERVES = re.compile(r"TensorBoard \S+ at http://127\.0\.0\.1:(\d+)/")


def main(argv: list[str], environ: Mapping[str, str]) -> int:
    """Run until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experiment_ids", type=int, nargs="*")
    parser.add_argument("--trial-ids", type=int, nargs="+", default=[])
    parser.set_defaults(master=None, user=None)
    args = parser.parse_args(argv)
    settings = Settings.gather(args, environ)
    with Scratch("tensorboard") as folder:

        def refresh() -> int:
            with open_session(settings) as session:
                targets = events_of(session, args.experiment_ids, args.trial_ids)
            return link_events(Path(folder), targets)

        print(f"TensorBoard shows {refresh()} runs.", flush=True)
        process = launch(Path(folder), 0, stderr=subprocess.PIPE)
        assert process.stderr is not None
        allocation = environ["DET_ALLOCATION_ID"]
        threading.Thread(target=_announce, args=(process.stderr, settings, allocation), daemon=True).start()
        return refresh_until_end(process, refresh)


def _announce(lines: Iterable[str], settings: Settings, allocation: str) -> None:
    """Pass TensorBoard's output on, and report its port to the master as soon as it accepts requests."""
    for line in lines:
        print(line, end="", file=sys.stderr, flush=True)
        serves = _SERVES.search(line)
        if serves is not None:
            with open_session(settings) as session:
                session.api.tasks.announce_server(allocation, f"127.0.0.1:{serves[1]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
