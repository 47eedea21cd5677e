"""``python -m det_keras.master --home DIR [--port N] ...``: run the master of a data root."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

from det_keras.config import RESERVED_VARIABLES
from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.launch.fork_server import Inheritance
from det_keras.master import log_file, process
from det_keras.master.accounts.audit import KEPT_DAYS
from det_keras.master.app import create_app
from det_keras.master.checkpoints.verification import DEFAULTS, ONCE
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.embedded import EmbeddedMaster, open_store
from det_keras.master.resources.slots import find_slots
from det_keras.master.server.address import Address, choose_address
from det_keras.master.server.capacity import Capacity, raise_file_limit
from det_keras.master.server.http_server import bind, serve
from det_keras.master.tasks import allocations
from det_keras.master.tasks.scheduling import POLICIES, Policy, make_policy
from det_keras.master.teams.outgoing import Networks

_PREFERRED_PORT = 8080


def main() -> int:
    """Run the master until a signal ends it."""
    options = _parser().parse_args()
    # All that the master writes is private. Tasks keep the umask of the account.
    umask = os.umask(0o077)
    home = Home(Path(options.home).absolute())
    log_file.set_up(home.master_log)
    for noisy in ("alembic", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # Its warnings are about requests that are not HTTP: any client could fill the disk with them.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    # Before the server runs and after it has ended, a signal ends the process with exit code 0.
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    try:
        address = choose_address(
            options.host, options.tls_cert, options.tls_key, os.environ.get("DET_MASTER_CERT_FILE")
        )
        return _run(home, address, options, umask)
    except DetError as error:
        return _complain(str(error))


def _run(home: Home, address: Address, options: argparse.Namespace, umask: int) -> int:
    policy = _policy(options.scheduler, preemption=options.preemption)
    files = raise_file_limit()
    capacity = Capacity.of(files.master)
    home.create()
    lock = process.hold(home)
    if lock is None:
        running = process.find(home)
        where = (
            "It is still starting." if running is None else f"It is at {running.url} (process {running.pid})."
        )
        return _complain(f"A master already runs for {home.root}. {where}")
    with lock:
        # A killed master leaves its file behind, which names a process that no longer exists.
        is_after_crash = home.master_file.exists()
        home.master_file.unlink(missing_ok=True)
        # Bind a requested port before the database is created: if the port is taken, no database is left behind.
        asked = None if options.port is None else bind(address.host, options.port, ())
        notifier = Notifier()
        # A signal stops the server as a user's would: calls are answered, threads end.
        store = open_store(
            home,
            notifier,
            on_lost=lambda: os.kill(os.getpid(), signal.SIGTERM),
            is_after_crash=is_after_crash,
        )
        sock = asked or bind(address.host, None, _preferred_ports(store))
        master = EmbeddedMaster(
            home,
            store,
            notifier,
            url=address.url(sock.getsockname()[1]),
            slots=find_slots(options.slots),
            environment=_inherited(),
            cert_file=address.trusted,
            info_mounts=options.info_mounts,
            ray=options.ray,
            advertise=options.advertise,
            policy=policy,
            shared_links=options.shared_links,
            verify_resume=options.verify_resume,
            audit_days=options.audit_days,
            webhook_networks=options.webhook_networks,
            inheritance=Inheritance(umask, files.task),
            log_retention_days=options.log_retention_days,
        )
        master.connect()
        served = serve(create_app(master, capacity), sock, address, home, notifier, capacity)
        return 0 if served and not store.is_lost else 1


def _policy(name: str, *, preemption: bool) -> Policy:
    try:
        return make_policy(name, preemption=preemption)
    except ValueError as error:
        raise DetError(str(error)) from None


def _preferred_ports(store: Store) -> list[int]:
    """Return the ports to try: the port that running tasks were given, then the usual one."""
    with store.reading() as session:
        urls = [row.master_url for row in allocations.live_allocations(session)]
    known = [port for url in urls if (port := urlsplit(url).port) is not None]
    return list(dict.fromkeys([*known, _PREFERRED_PORT]))


def _inherited() -> dict[str, str]:
    """Return the environment for tasks, without the variables of a task that started this master, and its database."""
    hidden = {*RESERVED_VARIABLES, "DET_KERAS_DB"}
    return {name: value for name, value in os.environ.items() if name not in hidden}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m det_keras.master", description="Run the master of a data root."
    )
    parser.add_argument("--home", default=str(Home.from_environment().root), help="the data root")
    parser.add_argument(
        "--port", type=int, help=f"where to listen; default {_PREFERRED_PORT}, or a free port"
    )
    parser.add_argument("--host", help="the address to listen on; default 127.0.0.1, others need TLS")
    parser.add_argument("--tls-cert", help="PEM file with the certificate")
    parser.add_argument("--tls-key", help="PEM file with the key; default: the certificate's file")
    parser.add_argument(
        "--slots",
        type=_count,
        default=os.environ.get("DET_KERAS_SLOTS"),
        help="how many slots tasks may use; default: the GPUs, or one per core",
    )
    parser.add_argument(
        "--info-mounts",
        action="store_true",
        help="run tasks in mount namespaces with the info files of Determined's own package",
    )
    parser.add_argument(
        "--ray",
        default=os.environ.get("DET_KERAS_RAY") or None,
        help="the Ray cluster on which tasks run: auto, HOST:PORT or ray://HOST:PORT; default: this machine",
    )
    parser.add_argument("--advertise", help="the URL under which tasks reach the master; default: its own")
    parser.add_argument(
        "--log-retention-days",
        type=_count,
        help="days that logs are kept whose configs do not say; default: for ever",
    )
    parser.add_argument(
        "--scheduler",
        default=os.environ.get("DET_KERAS_SCHEDULER") or POLICIES[0],
        metavar="{" + ",".join(POLICIES) + "}",
        help="who gets slots: a smaller priority first, or each experiment in proportion to its weight",
    )
    parser.add_argument(
        "--preemption",
        action="store_true",
        default=os.environ.get("DET_KERAS_PREEMPTION", "") not in ("", "0"),
        help="with `--scheduler priority`: stop running trials for tasks of a smaller priority number",
    )
    parser.add_argument(
        "--shared-links",
        action="store_true",
        help="serve reports without a login to those who have a link that the owner of the experiment made",
    )
    parser.add_argument(
        "--verify-resume",
        choices=DEFAULTS,
        default=os.environ.get("DET_KERAS_VERIFY_RESUME") or ONCE,
        help="when a copy of an experiment's first trial resumes and is compared, if the config does not say",
    )
    parser.add_argument(
        "--audit-days",
        type=_count,
        metavar="DAYS",
        default=os.environ.get("DET_KERAS_AUDIT_DAYS") or KEPT_DAYS,
        help="how long the record of who changed what keeps an entry; 0 for ever",
    )
    parser.add_argument(
        "--webhook-networks",
        type=Networks.parse,
        metavar="NETWORKS",
        default=os.environ.get("DET_KERAS_WEBHOOK_NETWORKS") or "",
        help="networks besides the public ones where webhooks may be, such as 127.0.0.0/8,10.1.0.0/16",
    )
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, received {text}")
    return count


def _leave(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _complain(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return process.REFUSED


if __name__ == "__main__":
    sys.exit(main())
