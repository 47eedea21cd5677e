"""`det job`: run commands on slots that are not trials, such as inference."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_overrides
from det_keras.cli.following import logs
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_job
from det_keras.cli.submission.files import read_files
from det_keras.cli.submission.jobs import jobs_of
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

__all__ = ["add_parsers"]

_INTERRUPTED = 130
_FULL_ID = 36


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("job", help="run commands that are not trials, such as inference")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    running = verbs.add_parser("run", help="run a job and print its output; exits with its exit code")
    running.add_argument("config_file", metavar="CONFIG", help="YAML file that describes the job")
    running.add_argument(
        "context_directory",
        metavar="CONTEXT_DIR",
        nargs="?",
        help="directory with the script (default: none)",
    )
    add_overrides(running)
    running.add_argument("-d", "--detach", action="store_true", help="print the id and do not follow the job")
    running.set_defaults(run=_run)
    listing = verbs.add_parser("list", aliases=["ls"], help="list jobs")
    add_json(listing)
    listing.set_defaults(run=_list)
    reading = verbs.add_parser("logs", help="print the log")
    reading.add_argument("job_id", metavar="ID", help="the id, or its beginning")
    reading.add_argument("-f", "--follow", action="store_true", help="follow the log until the job ends")
    reading.set_defaults(run=_logs)
    killing = verbs.add_parser("kill", help="end a job at once")
    killing.add_argument("job_id", metavar="ID", help="the id, or its beginning")
    killing.set_defaults(run=_kill)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    # The files are read before a master is started, as for experiments.
    file = read_job(args.config_file, args.overrides)
    files = read_files(args.context_directory).entries if args.context_directory is not None else ()
    # The REST API expects numbers here, but text for experiments.
    entries = [{**entry, "mtime": int(entry["mtime"])} for entry in files]
    with open_session(settings) as session:
        job_id = jobs_of(session).create(file, entries)
        print(f"Created job {job_id}")
        sys.stdout.flush()
        return 0 if args.detach else _watch(session, job_id)


def _watch(session: Session, job_id: str) -> int:
    try:
        logs.print_log(session.api.task_logs(job_id), follow=True)
    except KeyboardInterrupt:
        print(
            f"Job {job_id} continues. Follow it again with `det job logs -f {job_id}`, "
            f"or end it with `det job kill {job_id}`.",
            file=sys.stderr,
        )
        return _INTERRUPTED
    allocations = session.api.tasks.get(job_id)["allocations"]
    code = allocations[-1].get("statusCode") if allocations else None
    if code == 0:
        return 0
    status = jobs_of(session).exit_status(job_id)
    print(f"Job {job_id} failed: {render.printable(status or 'it did not end by itself')}", file=sys.stderr)
    # Death by signal N is 128 + N, as shells report it.
    return 1 if code is None else (128 - code if code < 0 else code)


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        jobs = jobs_of(session).all()
    if args.json:
        render.print_json(jobs)
        return 0
    rows = [
        [
            job["id"],
            job["description"],
            render.state_text(job["state"]),
            job.get("exitStatus") or "-",
            render.time_text(job["startTime"]),
            job["username"],
        ]
        for job in jobs
    ]
    render.print_table(["UUID", "Description", "State", "Exit", "Started", "Owner"], rows)
    return 0


def _logs(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        log = session.api.task_logs(_whole_id(session, args.job_id))
        logs.print_log(log, follow=args.follow)
    return 0


def _kill(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        job_id = _whole_id(session, args.job_id)
        jobs_of(session).kill(job_id)
    print(f"Killed job {job_id}")
    return 0


def _whole_id(session: Session, beginning: str) -> str:
    """Return the id of the only job whose id begins with `beginning`."""
    if len(beginning) == _FULL_ID:
        return beginning
    found = [str(job["id"]) for job in jobs_of(session).all() if job["id"].startswith(beginning)]
    if len(found) != 1:
        how_many = "No job" if not found else f"{len(found)} jobs"
        raise DetError(f"{how_many} found whose id begins with {beginning!r}. `det job list` shows all.")
    return found[0]
