"""``python -m cluster.double HOME``: a master that answers as a Determined 0.38.1 cluster does.

Our own master keeps the books and decides; before it stand the recorded rules, behind it containers.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import select

from cluster import containers
from cluster.rules import StrictMiddleware
from det_keras.config import RESERVED_VARIABLES
from det_keras.home import Home
from det_keras.master import lifecycle, process
from det_keras.master.app import create_app
from det_keras.master.database.models import TrialRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import EmbeddedMaster, open_store
from det_keras.master.lifecycle import Exit, ExitedRun, Verdict, judge_exit
from det_keras.master.resources import LocalPool, local
from det_keras.master.resources.slots import find_slots
from det_keras.master.server.address import choose_address
from det_keras.master.server.http_server import bind, serve

_STOPPED_BY_SEARCH = "STOPPING_COMPLETED"


def _judge_by_code_first(run: ExitedRun, exit_: Exit) -> Verdict:
    """Return what the end of a run means there: the exit code is read before the early-exit report."""
    if run.is_invalid_hp and exit_.is_failure:
        run = dataclasses.replace(run, is_invalid_hp=False)
    return judge_exit(run, exit_)


def _in_containers(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    if shutil.which(argv[0], path=environment["PATH"]) is None:
        return list(argv)
    return [sys.executable, containers.__file__, *argv]


def main() -> int:
    """Run the double until a signal ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("home")
    parser.add_argument("--slots-per-agent", type=int, default=2)
    parser.add_argument("--slots", type=int, default=4)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    home = Home(Path(options.home)).create()
    storage = {"type": "shared_fs", "host_path": str(home.root / "storage")}
    Path(storage["host_path"]).mkdir(exist_ok=True)
    lock = process.hold(home)
    assert lock is not None
    lifecycle.judge_exit = _judge_by_code_first
    local._viewing = _in_containers
    os.environ["DOUBLE_SLOTS_PER_AGENT"] = str(options.slots_per_agent)
    with lock:
        notifier = Notifier()
        store = open_store(home, notifier)
        address = choose_address(None, None, None, None)
        sock = bind(address.host, None, ())
        slots = [dataclasses.replace(find_slots(1)[0], id=number) for number in range(options.slots)]
        inherited = {name: value for name, value in os.environ.items() if name not in RESERVED_VARIABLES}
        pool = LocalPool(home, slots, inherited, info_mounts=True)
        master = EmbeddedMaster(
            home,
            store,
            notifier,
            url=address.url(sock.getsockname()[1]),
            slots=slots,
            environment=inherited,
            pool=pool,
        )

        def is_stopped_by_search(allocation_id: str) -> bool:
            task_id = allocation_id.rpartition(".")[0]
            with store.reading() as session:
                state = session.scalar(select(TrialRow.state).where(TrialRow.task_id == task_id))
            return state == _STOPPED_BY_SEARCH

        app: Any = StrictMiddleware(
            create_app(master), storage, home.root / "violations.jsonl", is_stopped_by_search
        )
        return 0 if serve(app, sock, address, home, notifier) else 1


if __name__ == "__main__":
    sys.exit(main())
