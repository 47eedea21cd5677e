"""`det project`: collections of experiments; `det experiment move`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_yes, confirm, positive
from det_keras.cli.commands.teams.workspace import find_workspace, print_projects
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("project", aliases=["p"], help="collections of experiments")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the projects of a workspace, or all")
    listing.add_argument("workspace", metavar="WORKSPACE", nargs="?")
    add_json(listing)
    listing.set_defaults(run=_list)
    creating = verbs.add_parser("create", help="create a project")
    _add_place(creating)
    _add_fields(creating)
    add_json(creating)
    creating.set_defaults(run=_create)
    describing = verbs.add_parser("describe", help="show a project with its experiments and notes")
    _add_place(describing)
    add_json(describing)
    describing.set_defaults(run=_describe)
    editing = verbs.add_parser("edit", help="change a project")
    _add_place(editing)
    editing.add_argument("--new-name", "--new_name", metavar="NAME", help="its new name")
    _add_fields(editing)
    editing.set_defaults(run=_edit)
    noting = verbs.add_parser("note", help="add a note to a project")
    _add_place(noting)
    noting.add_argument("title", metavar="TITLE")
    noting.add_argument("text", metavar="TEXT", help="Markdown")
    noting.set_defaults(run=_note)
    moving = verbs.add_parser("move", help="move a project to another workspace")
    _add_place(moving)
    moving.add_argument("destination", metavar="TO_WORKSPACE")
    moving.set_defaults(run=_move)
    for verb, text in (
        ("archive", "let a project take no further experiments"),
        ("unarchive", "let it take experiments again"),
    ):
        acting = verbs.add_parser(verb, help=text)
        _add_place(acting)
        acting.set_defaults(run=_act, verb=verb)
    deleting = verbs.add_parser("delete", help="delete a project with its experiments")
    _add_place(deleting)
    add_yes(deleting)
    deleting.set_defaults(run=_delete)


def add_experiment_verbs(verbs: Nouns) -> None:
    """Add the verb to `det experiment`."""
    moving = verbs.add_parser("move", help="move an experiment to another project")
    moving.add_argument("experiment_id", metavar="N", type=positive)
    _add_place(moving)
    moving.set_defaults(run=_take)


def _add_place(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workspace", metavar="WORKSPACE")
    parser.add_argument("project", metavar="PROJECT")


def _add_fields(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--description", metavar="TEXT")
    parser.add_argument(
        "--key", metavar="KEY", help="up to five letters and digits; made of the name by default"
    )


def _find(session: Session, args: argparse.Namespace) -> dict[str, Any]:
    workspace = find_workspace(session, args.workspace)
    projects = session.api.workspaces.projects(workspace["id"])
    found = next((one for one in projects if one["name"] == args.project), None)
    if found is None:
        known = ", ".join(repr(one["name"]) for one in projects) or "none"
        raise DetError(f"The workspace {args.workspace!r} has no project {args.project!r}. It has: {known}.")
    return found


def _fields(args: argparse.Namespace) -> dict[str, str]:
    given = {"description": args.description, "key": args.key}
    return {name: value for name, value in given.items() if value is not None}


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        workspace_id = 0 if args.workspace is None else find_workspace(session, args.workspace)["id"]
        found = session.api.workspaces.projects(workspace_id)
    if args.json:
        render.print_json(found)
    else:
        print_projects(found)
    return 0


def _create(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        workspace = find_workspace(session, args.workspace)
        made = session.api.projects.create(workspace["id"], args.project, **_fields(args))
    if args.json:
        render.print_json(made)
    else:
        print(f"Created the project {args.project!r} ({made['key']}).")
        print(f"Use it in configs: workspace: {args.workspace}, project: {args.project}")
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = _find(session, args)
        experiments = session.api.experiments.all(projectId=found["id"], limit=-1)
    if args.json:
        render.print_json({**found, "experiments": experiments})
        return 0
    state = ", archived" if found["archived"] else ""
    print(render.printable(f"Project {found['name']!r} ({found['key']}) of {found['username']}{state}"))
    if found["description"]:
        print(render.printable(found["description"]))
    for note in found["notes"]:
        print(render.printable(f"\n{note['name']}\n{note['contents']}"))
    rows = [
        [str(one["id"]), one["name"], one["state"].removeprefix("STATE_").lower(), one["username"]]
        for one in experiments
    ]
    render.print_table(["ID>", "Experiment", "State", "Owner"], rows)
    return 0


def _edit(args: argparse.Namespace, settings: Settings) -> int:
    changes = _fields(args) | ({} if args.new_name is None else {"name": args.new_name})
    if not changes:
        raise DetError("Nothing to change: give --new-name, --description or --key.")
    with open_session(settings) as session:
        changed = session.api.projects.change(_find(session, args)["id"], changes)
    print(f"Changed the project {changed['name']!r}.")
    return 0


def _note(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.projects.add_note(_find(session, args)["id"], args.title, args.text)
    print(f"Added the note {args.title!r} to the project {args.project!r}.")
    return 0


def _move(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        project = _find(session, args)
        session.api.projects.move(project["id"], find_workspace(session, args.destination)["id"])
    print(f"Moved the project {args.project!r} to the workspace {args.destination!r}.")
    return 0


def _act(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.projects.act(_find(session, args)["id"], args.verb)
    print(f"{'Archived' if args.verb == 'archive' else 'Unarchived'} the project {args.project!r}.")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = _find(session, args)
        question = (
            f"Delete the project {args.project!r} with {found['numExperiments']} experiments, their checkpoints and "
            "logs?"
        )
        if not confirm(question, yes=args.yes):
            raise DetError("Nothing was deleted.")
        is_done = session.api.projects.delete(found["id"])
    print(
        f"Deleted the project {args.project!r}."
        if is_done
        else f"The project {args.project!r} is being deleted."
    )
    return 0


def _take(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.projects.take(_find(session, args)["id"], args.experiment_id)
    print(f"Moved experiment {args.experiment_id} to the project {args.project!r}.")
    return 0
