"""`det workspace`: collections of projects."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_yes, confirm
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

_NAME = "name"


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("workspace", aliases=["w"], help="collections of projects")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the workspaces")
    add_json(listing)
    listing.set_defaults(run=_list)
    creating = verbs.add_parser("create", help="create a workspace")
    creating.add_argument(_NAME, metavar="WORKSPACE")
    _add_storage(creating)
    add_json(creating)
    creating.set_defaults(run=_create)
    describing = verbs.add_parser("describe", help="show a workspace with its projects")
    describing.add_argument(_NAME, metavar="WORKSPACE")
    add_json(describing)
    describing.set_defaults(run=_describe)
    editing = verbs.add_parser("edit", help="rename a workspace, or change where it stores checkpoints")
    editing.add_argument(_NAME, metavar="WORKSPACE")
    editing.add_argument("--name", dest="new_name", metavar="NAME", help="its new name")
    _add_storage(editing)
    editing.set_defaults(run=_edit)
    for verb, text in (
        ("archive", "let a workspace take no further experiments"),
        ("unarchive", "let it take experiments again"),
        ("pin", "pin a workspace"),
        ("unpin", "unpin a workspace"),
    ):
        acting = verbs.add_parser(verb, help=text)
        acting.add_argument(_NAME, metavar="WORKSPACE")
        acting.set_defaults(run=_act, verb=verb)
    deleting = verbs.add_parser("delete", help="delete a workspace with its projects and experiments")
    deleting.add_argument(_NAME, metavar="WORKSPACE")
    add_yes(deleting)
    deleting.set_defaults(run=_delete)


def find_workspace(session: Session, name: str) -> dict[str, Any]:
    """Return the workspace with a name.

    Raises:
        DetError: there is none; the error names those that exist.
    """
    found = session.api.workspaces.named(name)
    if found is None:
        known = ", ".join(repr(one["name"]) for one in session.api.workspaces.all())
        raise DetError(f"There is no workspace {name!r}. Known ones: {known}.")
    return found


def print_projects(projects: list[dict[str, Any]]) -> None:
    """Print a table of projects."""
    rows = [
        [
            str(one["id"]),
            one["name"],
            one["key"],
            str(one["numExperiments"]),
            one["username"],
            "archived" if one["archived"] else "",
            one["description"],
        ]
        for one in projects
    ]
    render.print_table(["ID>", "Project", "Key", "Experiments>", "Owner", "", "Description"], rows)


def _add_storage(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint-storage-config-file",
        metavar="FILE",
        type=Path,
        help="a YAML or JSON file with the `checkpoint_storage` of its experiments; an empty one returns to the "
        "master's default",
    )


def _storage(args: argparse.Namespace) -> dict[str, Any]:
    if args.checkpoint_storage_config_file is None:
        return {}
    from det_keras.config import load_yaml

    path = args.checkpoint_storage_config_file
    try:
        text = path.read_text()
    except OSError as error:
        raise DetError(f"{path} cannot be read: {error.strerror}.") from None
    return {"checkpointStorageConfig": load_yaml(text, may_be_empty=True)}


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.workspaces.all()
    if args.json:
        render.print_json(found)
        return 0
    rows = [
        [
            str(one["id"]),
            one["name"],
            str(one["numProjects"]),
            str(one["numExperiments"]),
            one["username"],
            " ".join(word for word in ("pinned", "archived") if one[word]),
        ]
        for one in found
    ]
    render.print_table(["ID>", "Workspace", "Projects>", "Experiments>", "Owner", ""], rows)
    return 0


def _create(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        made = session.api.workspaces.create(args.name, **_storage(args))
    if args.json:
        render.print_json(made)
    else:
        print(f"Created the workspace {args.name!r}.")
        print(f"Add a project: det project create {args.name!r} PROJECT")
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = find_workspace(session, args.name)
        projects = session.api.workspaces.projects(found["id"])
    if args.json:
        render.print_json({**found, "projects": projects})
        return 0
    state = ", archived" if found["archived"] else ""
    print(render.printable(f"Workspace {found['name']!r} of {found['username']}{state}"))
    if found.get("checkpointStorageConfig"):
        storage = ", ".join(f"{name}={value}" for name, value in found["checkpointStorageConfig"].items())
        print(render.printable(f"Checkpoints: {storage}"))
    print_projects(projects)
    return 0


def _edit(args: argparse.Namespace, settings: Settings) -> int:
    changes = _storage(args) | ({} if args.new_name is None else {"name": args.new_name})
    if not changes:
        raise DetError("Nothing to change: give --name or --checkpoint-storage-config-file.")
    with open_session(settings) as session:
        changed = session.api.workspaces.change(find_workspace(session, args.name)["id"], changes)
    print(f"Changed the workspace {changed['name']!r}.")
    return 0


def _act(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.workspaces.act(find_workspace(session, args.name)["id"], args.verb)
    done = {"archive": "Archived", "unarchive": "Unarchived", "pin": "Pinned", "unpin": "Unpinned"}[args.verb]
    print(f"{done} the workspace {args.name!r}.")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = find_workspace(session, args.name)
        question = (
            f"Delete the workspace {args.name!r} with {found['numProjects']} projects and "
            f"{found['numExperiments']} experiments, their checkpoints and logs?"
        )
        if not confirm(question, yes=args.yes):
            raise DetError("Nothing was deleted.")
        is_done = session.api.workspaces.delete(found["id"])
    print(
        f"Deleted the workspace {args.name!r}."
        if is_done
        else f"The workspace {args.name!r} is being deleted."
    )
    return 0
