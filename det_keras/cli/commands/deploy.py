"""`det deploy local`: start and stop the embedded master."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO
from urllib.parse import urlsplit

from det_keras.cli.arguments import add_raw, positive
from det_keras.cli.render import write
from det_keras.cli.session import open_session
from det_keras.connection.masters import DEFAULT_USER
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.master.process import RunningMaster

# The master's modules are imported inside of the functions, so that `det --help` stays fast.

_LOG_PERIOD_S = 0.25


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("deploy", help="start and stop the embedded master")
    places = parser.add_subparsers(title="places", metavar="PLACE", required=True)
    verbs = places.add_parser("local", help="on this machine").add_subparsers(
        title="commands", metavar="COMMAND", required=True
    )
    starting = verbs.add_parser("cluster-up", help="start the master")
    starting.add_argument("--port", type=positive, help="its port (default: 8080, else a free port)")
    starting.add_argument(
        "--host", help="its address (default: 127.0.0.1; other addresses require a certificate)"
    )
    starting.add_argument("--tls-cert", metavar="FILE", help="its certificate, as PEM: it then uses HTTPS")
    starting.add_argument("--tls-key", metavar="FILE", help="the key of the certificate, as PEM")
    starting.add_argument("--slots", type=positive, help="number of slots (default: one per GPU or core)")
    starting.add_argument(
        "--info-mounts",
        action="store_true",
        help="give tasks the files in which Determined's own package looks for its trial "
        "(in a namespace, where sudo does not work)",
    )
    starting.add_argument(
        "--db",
        metavar="URL",
        help="its database: `sqlite`, or a URL such as postgresql://user@host/name (default: DET_KERAS_DB, else that "
        "of the last start)",
    )
    starting.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run trials and jobs on this Ray cluster: auto, HOST:PORT or ray://HOST:PORT (default: DET_KERAS_RAY, "
        "else this machine)",
    )
    starting.add_argument(
        "--advertise",
        metavar="URL",
        help="the address under which trials on other machines reach the master (default: its own)",
    )
    starting.add_argument(
        "--scheduler",
        choices=("priority", "fair_share"),
        help="who gets slots: a smaller `resources.priority` first, or each experiment in proportion to its "
        "`resources.weight` (default: DET_KERAS_SCHEDULER, else priority)",
    )
    starting.add_argument(
        "--preemption",
        action="store_true",
        help="with the scheduler priority: preempt running trials for tasks of a smaller priority number",
    )
    starting.add_argument(
        "--shared-links",
        action="store_true",
        help="let owners share reports of their experiments by links that need no login (`det experiment share`)",
    )
    starting.add_argument(
        "--log-retention-days",
        type=positive,
        metavar="DAYS",
        help="days that the logs of ended trials and jobs are kept whose configs do not say (default: for ever)",
    )
    starting.set_defaults(run=_up)
    stopping = verbs.add_parser("cluster-down", help="stop the master; trials continue unless killed")
    stopping.add_argument("--kill", action="store_true", help="kill the running trials and jobs as well")
    stopping.set_defaults(run=_down)
    reading = verbs.add_parser("logs", help="print the master's log")
    reading.add_argument("-f", "--follow", action="store_true", help="follow the log until interrupted")
    add_raw(reading)
    reading.set_defaults(run=_logs)
    credentials = verbs.add_parser(
        "credentials", help="print variables for another client, as shell commands"
    )
    credentials.add_argument(
        "--admin", action="store_true", help="of the administrator, who may create and change users"
    )
    credentials.set_defaults(run=_credentials)


def _up(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master import process

    running = process.find(settings.home)
    if running is not None:
        if args.port is not None and urlsplit(running.url).port != args.port:
            raise DetError(
                f"The embedded master already runs at {running.url}. "
                "Stop it first with `det deploy local cluster-down`."
            )
        if args.info_mounts and not process.remembered(settings.home).info_mounts:
            raise DetError(
                f"The embedded master already runs at {running.url}, without --info-mounts. "
                "Stop it first with `det deploy local cluster-down`."
            )
        if args.ray is not None and process.remembered(settings.home).ray != args.ray:
            raise DetError(
                f"The embedded master already runs at {running.url}, without --ray {args.ray}. "
                "Stop it first with `det deploy local cluster-down`."
            )
        known = process.remembered(settings.home)
        is_other = args.scheduler is not None and args.scheduler != (known.scheduler or "priority")
        if is_other or (args.preemption and not known.preemption):
            raise DetError(
                f"The embedded master already runs at {running.url}, with another --scheduler or --preemption. "
                "Stop it first with `det deploy local cluster-down`."
            )
        if args.shared_links and not known.shared_links:
            raise DetError(
                f"The embedded master already runs at {running.url}, without --shared-links. "
                "Stop it first with `det deploy local cluster-down`."
            )
        if args.log_retention_days not in (None, known.log_retention_days):
            raise DetError(
                f"The embedded master already runs at {running.url}, with other --log-retention-days. "
                "Stop it first with `det deploy local cluster-down`."
            )
        if args.db is not None and args.db != process.database_url(settings.home, {}):
            raise DetError(
                f"The embedded master already runs at {running.url}, on another database. "
                "Stop it first with `det deploy local cluster-down`."
            )
        print(f"The embedded master already runs at {running.url} (process {running.pid}).")
    else:
        trusted = None if settings.cert_file == "noverify" else settings.cert_file
        options = process.MasterOptions(
            args.host,
            args.port,
            args.tls_cert,
            args.tls_key,
            trusted,
            args.info_mounts,
            db=args.db,
            ray=args.ray or settings.ray,
            advertise=args.advertise,
            scheduler=args.scheduler,
            preemption=args.preemption,
            shared_links=args.shared_links,
            log_retention_days=args.log_retention_days,
        )
        slots = args.slots or settings.slots
        former = process.database_url(settings.home, {})
        running = process.start(settings.home, slots=slots, options=options)
        where = f"data in {settings.home.root}"
        print(f"Started the embedded master at {running.url} (process {running.pid}, {where}).")
        if former != process.database_url(settings.home, {}) and (
            former != "sqlite" or settings.home.database.exists()
        ):
            print(
                "This data root used another database before. `det master copy-database` copies what is in it."
            )
    _print_web_address(settings, running)
    return 0


def _print_web_address(settings: Settings, running: RunningMaster) -> None:
    """Print an address that logs a browser in, once. Other accounts of this machine cannot read the terminal."""
    with open_session(dataclasses.replace(settings, master=running.url)) as session:
        print(f"In a browser, once: {session.api.accounts.web_login_url()}")


def _down(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master import process

    stopped = process.stop(settings.home, kill_tasks=args.kill)
    process.forget(settings.home)
    if stopped is None:
        print("No embedded master is running.")
    else:
        print(f"Stopped the embedded master at {stopped.url}.")
    return 0


def _logs(args: argparse.Namespace, settings: Settings) -> int:
    path = settings.home.master_log
    if not path.exists():
        raise DetError(f"There is no log at {path}: no embedded master has been started yet.")
    _print_file(path, follow=args.follow, is_raw=args.raw)
    return 0


def _print_file(path: Path, *, follow: bool, is_raw: bool) -> None:
    is_rotated = True
    while is_rotated:
        with path.open(encoding="utf-8", errors="replace") as file:
            is_rotated = _print_to_end(file, path, follow=follow, is_raw=is_raw)


def _print_to_end(file: TextIO, path: Path, *, follow: bool, is_raw: bool) -> bool:
    """Print an open log, with `follow` as it grows; return whether there is a new file in its place."""
    while True:
        is_replaced = follow and _is_another(path, file)
        text = file.read()
        write(text, sys.stdout, is_raw=is_raw)
        sys.stdout.flush()
        if not text and (is_replaced or not follow):
            return is_replaced
        if not text:
            time.sleep(_LOG_PERIOD_S)


def _is_another(path: Path, file: TextIO) -> bool:
    try:
        return not os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        # It is being rotated.
        return False


def _credentials(args: argparse.Namespace, settings: Settings) -> int:
    running = _running(settings)
    user, path = DEFAULT_USER, settings.home.password_file
    if args.admin:
        user, path = "admin", settings.home.admin_password_file
    try:
        password = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise DetError(
            f"The first password of {user!r} was changed, and the new password is not stored: "
            f"set DET_MASTER={running.url} DET_USER={user} DET_PASS=..."
        ) from None
    except OSError as error:
        raise DetError(f"The password cannot be read at {path}: {error.strerror}.") from error
    # Imported here: no other command quotes for a shell.
    import shlex

    print(f"export DET_MASTER={shlex.quote(running.url)}")
    if running.cert_file is not None:
        print(f"export DET_MASTER_CERT_FILE={shlex.quote(running.cert_file)}")
    print(f"export DET_USER={user}")
    print(f"export DET_PASS={shlex.quote(password)}")
    return 0


def _running(settings: Settings) -> RunningMaster:
    from det_keras.master import process

    running = process.find(settings.home)
    if running is None:
        raise DetError("No embedded master is running. Start one with `det deploy local cluster-up`.")
    return running
