"""`det master` and `det version`: facts about the master and this program."""

from __future__ import annotations

import argparse
import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_yes, confirm
from det_keras.cli.commands.teams import audit
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.display import size_text
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the nouns and their verbs to the command line."""
    parser = nouns.add_parser(
        "master", help="show facts about the master, copy its database, check it, back it up"
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    info = verbs.add_parser("info", help="show address, version, ids, and what its files occupy")
    add_json(info)
    info.set_defaults(run=_info)
    copying = verbs.add_parser("copy-database", help="copy the embedded master's database to an empty one")
    copying.add_argument(
        "--to", metavar="URL", required=True, help="`sqlite`, or a URL such as postgresql://user@host/name"
    )
    copying.set_defaults(run=_copy_database)
    backup = verbs.add_parser("backup", help="back up the embedded master, without checkpoints")
    backup.add_argument("file", metavar="FILE", type=Path, help="where to write it; must not exist")
    backup.set_defaults(run=_back_up)
    restoring = verbs.add_parser("restore", help="restore a backup into an empty data root (DET_KERAS_HOME)")
    restoring.add_argument("file", metavar="FILE", type=Path, help="the backup")
    restoring.set_defaults(run=_restore)
    checking = verbs.add_parser("check", help="check the embedded master's database, code and checkpoints")
    checking.set_defaults(run=_check)
    pruning = verbs.add_parser(
        "prune", help="show old logs, runs, environments and changes, and delete them if you wish"
    )
    pruning.add_argument(
        "--logs", type=_days, metavar="DAYS", help="log lines of trials and jobs that ended so many days ago"
    )
    pruning.add_argument(
        "--runs",
        type=_days,
        metavar="DAYS",
        help="runs without a master that did not change for so many days",
    )
    pruning.add_argument(
        "--audit",
        type=_days,
        metavar="DAYS",
        help="entries of the record of changes that are so many days old; for administrators",
    )
    pruning.add_argument("--environments", action="store_true", help="Python environments that no task uses")
    add_yes(pruning)
    pruning.set_defaults(run=_prune)
    audit.add_verb(verbs)
    version = nouns.add_parser("version", help="print the version of this program")
    version.set_defaults(run=_version)


def _info(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        info, usage = session.api.accounts.cluster(), session.api.accounts.usage()
        if args.json:
            render.print_json({**info, "usage": usage})
            return 0
        render.print_facts(
            {
                "Master": session.url,
                "Version of the API": info["version"],
                "Master ID": info["masterId"],
                "Cluster ID": info["clusterId"],
                "Cluster name": info["clusterName"] or "-",
            }
        )
        if usage:
            print()
            rows = [(one["kind"], size_text(one["bytes"]), one["place"], one["advice"]) for one in usage]
            render.print_table(("Files", "Size", "Where", "How they become fewer"), rows)
    return 0


def _copy_database(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master import process
    from det_keras.master.copying import copy_database

    copied = copy_database(settings.home, process.database_url(settings.home, os.environ), args.to)
    for table in copied:
        print(f"{table.name:<12} {table.rows:>10} rows  sha256 {table.digest}")
    shown = args.to if args.to == "sqlite" else "URL"
    print(
        "The copy has the same rows. The source is unchanged. "
        f"Use the copy with `det deploy local cluster-up --db {shown}`."
    )
    return 0


def _back_up(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master import process
    from det_keras.master.archive import back_up

    done = back_up(settings.home, process.database_url(settings.home, os.environ), args.file)
    content = "The database" if done.has_database else "The files of the data root"
    size = size_text(done.size_bytes)
    print(f"{content} and the code of experiments ({done.code_archives}) are in {args.file} ({size}).")
    if not done.has_database:
        print(
            "The database is not in it, because it is on a server: back it up with `pg_dump` before each backup."
        )
    print(f"Checkpoints are not in it. By default they are in {settings.home.checkpoints}.")
    return 0


def _restore(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master.archive import restore

    if restore(settings.home, args.file):
        print(f"Restored {settings.home.root}. Start the master with `det deploy local cluster-up`.")
    else:
        print(
            f"Restored {settings.home.root}, without the database. Restore that with `pg_restore`, "
            "and start the master with `det deploy local cluster-up`."
        )
    return 0


def _check(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.master import process
    from det_keras.master.integrity import check

    found = check(settings.home, process.database_url(settings.home, os.environ))
    for problem in found.problems:
        print(render.printable(problem))
    if found.problems:
        last = settings.home.last_backup
        backup = "" if last is None else f" The last backup is {last}."
        print(f"{len(found.problems)} problems were found in {settings.home.root}.{backup}")
        return 1
    print(
        f"No damage was found in {settings.home.root}: {found.rows} rows, the code of experiments "
        f"({found.code_archives}) and the files of {found.checkpoints} checkpoints are complete."
    )
    return 0


def _prune(args: argparse.Namespace, settings: Settings) -> int:
    wanted = {"logDays": args.logs, "runDays": args.runs, "environments": args.environments}
    if args.audit is not None:
        wanted["auditDays"] = args.audit
    is_named = args.environments or any(days is not None for days in (args.logs, args.runs, args.audit))
    if not is_named:
        wanted = {"logDays": 0, "runDays": 0, "environments": True}
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError("Only a master of det_keras can be pruned: a Determined master deletes by itself.")
        found = session.api.accounts.prune(**wanted, isDry=True)
        render.print_table(
            ("What may be deleted", "Number>", "Size>"),
            [(one["kind"], f"{one['count']:,}", size_text(one["bytes"])) for one in found],
        )
        if not is_named:
            print(
                "Nothing was deleted. Name what to delete: --logs DAYS, --runs DAYS, --environments, --audit DAYS."
            )
            return 0
        if not any(one["count"] for one in found):
            print("There is nothing to delete.")
            return 0
        if not confirm("Delete this for ever?", yes=args.yes):
            print("Nothing was deleted.")
            return 1
        deleted = session.api.accounts.prune(**wanted, isDry=False)
    size = size_text(sum(one["bytes"] for one in deleted))
    print(f"Deleted {size}." + (" The database uses their space again." if args.logs is not None else ""))
    return 0


def _days(text: str) -> int:
    with contextlib.suppress(ValueError):
        if int(text) >= 0:
            return int(text)
    raise argparse.ArgumentTypeError(f"must be a number of days, 0 or more, received {text!r}")


def _version(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.about import __version__

    print(f"det_keras {__version__}")
    return 0
