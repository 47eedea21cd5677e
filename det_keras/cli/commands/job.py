"""`det job`: run commands on slots that are not trials, such as inference."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_overrides, add_raw, add_template, positive, with_template
from det_keras.cli.following import logs
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_job, templates_of
from det_keras.cli.submission.files import capture_submission, check_requirements, conceal_secrets, read_files
from det_keras.cli.submission.jobs import jobs_of
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

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
    add_template(running)
    running.add_argument("-d", "--detach", action="store_true", help="print the id and do not follow the job")
    running.set_defaults(run=_run)
    listing = verbs.add_parser("list", aliases=["ls"], help="list jobs")
    add_json(listing)
    listing.set_defaults(run=_list)
    reading = verbs.add_parser("logs", help="print the log")
    reading.add_argument("job_id", metavar="ID", help="the id, or its beginning")
    reading.add_argument("-f", "--follow", action="store_true", help="follow the log until the job ends")
    add_raw(reading)
    logs.add_filters(reading, has_allocations=True)
    reading.set_defaults(run=_logs)
    killing = verbs.add_parser("kill", help="end a job at once")
    killing.add_argument("job_id", metavar="ID", help="the id, or its beginning")
    killing.set_defaults(run=_kill)
    queue = verbs.add_parser("queue", help="list the experiments and jobs that run or wait for slots")
    add_json(queue)
    queue.set_defaults(run=_queue)
    updating = verbs.add_parser("update", help="change the place of an experiment or a job in the queue")
    updating.add_argument(
        "job_id", metavar="JOB", help="its id as `det job queue` shows it, or its beginning"
    )
    change = updating.add_mutually_exclusive_group(required=True)
    change.add_argument("-p", "--priority", type=positive, help="1 to 99; smaller runs first")
    change.add_argument(
        "-w", "--weight", type=float, help="with the scheduler fair_share: its share of the slots"
    )
    change.add_argument("--ahead-of", metavar="JOB", help="move it before this one, of the same priority")
    change.add_argument("--behind-of", metavar="JOB", help="move it behind this one, of the same priority")
    updating.set_defaults(run=_update)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    # The files are read before a master is started, as for experiments.
    file = read_job(args.config_file, with_template(args.overrides, args.template), templates_of(settings))
    capture = capture_submission(args.context_directory)
    directory = args.context_directory
    files = () if directory is None else conceal_secrets(read_files(directory), file.raw).entries
    check_requirements(file.config.environment, files)
    # The REST API expects numbers here, but text for experiments.
    entries = [{**entry, "mtime": int(entry["mtime"])} for entry in files]
    with open_session(settings) as session:
        job_id = jobs_of(session).create(file, entries, capture)
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
    code, status = jobs_of(session).ending(job_id)
    if code == 0:
        return 0
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
            display.state_text(job["state"]),
            job.get("exitStatus") or "-",
            display.time_text(job["startTime"]),
            job["username"],
        ]
        for job in jobs
    ]
    render.print_table(["UUID", "Description", "State", "Exit", "Started", "Owner"], rows)
    return 0


def _logs(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        log = logs.chosen(session.api.task_logs(_whole_id(session, args.job_id)), args)
        logs.print_log(log, follow=args.follow, is_raw=args.raw)
    return 0


def _kill(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        job_id = _whole_id(session, args.job_id)
        jobs_of(session).kill(job_id)
    print(f"Killed job {job_id}")
    return 0


def _queue(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        entries = session.api.jobs.queue()
    if args.json:
        render.print_json(entries)
        return 0
    rows = [
        [
            str(place),
            entry["jobId"],
            entry["type"].removeprefix("TYPE_").lower(),
            entry["name"] if entry["type"] != "TYPE_EXPERIMENT" else f"{entry['name']} ({entry['entityId']})",
            str(entry.get("priority")),
            f"{entry.get('weight', 1):g}",
            f"{entry['allocatedSlots']}/{entry['requestedSlots']}",
            display.state_text(entry["summary"]["state"]),
            entry.get("waitReason") or "-",
        ]
        for place, entry in enumerate(entries)
    ]
    names = ["#", "Job", "Type", "Name", "Priority", "Weight", "Slots used/each", "State", "Waiting"]
    render.print_table(names, rows)
    return 0


def _update(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        known = [str(entry["jobId"]) for entry in session.api.jobs.queue()]
        job_id = _queued_id(known, args.job_id)
        changes = {"priority": args.priority, "weight": args.weight}
        for name, value in (("aheadOf", args.ahead_of), ("behindOf", args.behind_of)):
            changes[name] = None if value is None else _queued_id(known, value)
        session.api.jobs.update(
            job_id, **{name: value for name, value in changes.items() if value is not None}
        )
    print(f"Updated job {job_id}")
    return 0


def _queued_id(known: list[str], beginning: str) -> str:
    found = [job_id for job_id in known if job_id.startswith(beginning)]
    if len(found) != 1:
        how_many = "No job" if not found else f"{len(found)} jobs"
        raise DetError(
            f"{how_many} in the queue with an id that begins with {beginning!r}. See `det job queue`."
        )
    return found[0]


def _whole_id(session: Session, beginning: str) -> str:
    """Return the id of the only job whose id begins with `beginning`."""
    if len(beginning) == _FULL_ID:
        return beginning
    found = [str(job["id"]) for job in jobs_of(session).all() if job["id"].startswith(beginning)]
    if len(found) != 1:
        how_many = "No job" if not found else f"{len(found)} jobs"
        raise DetError(f"{how_many} found whose id begins with {beginning!r}. `det job list` shows all.")
    return found[0]
