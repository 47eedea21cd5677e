"""`det template`: parts of configs under a name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras.cli import render
from det_keras.cli.arguments import add_json
from det_keras.cli.session import open_session
from det_keras.cli.submission.config_file import read_changes
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("template", aliases=["tpl"], help="parts of configs under a name")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the templates")
    add_json(listing)
    listing.set_defaults(run=_list)
    creating = verbs.add_parser("create", help="create a template")
    _add_file(creating)
    creating.add_argument("-w", "--workspace", metavar="WORKSPACE", help="its workspace")
    creating.set_defaults(run=_create)
    setting = verbs.add_parser("set", help="create a template, or replace the config of one")
    _add_file(setting)
    setting.set_defaults(run=_set)
    describing = verbs.add_parser("describe", help="print the config of a template")
    describing.add_argument("name", metavar="NAME")
    describing.set_defaults(run=_describe)
    removing = verbs.add_parser("remove", aliases=["rm"], help="delete a template")
    removing.add_argument("name", metavar="NAME")
    removing.set_defaults(run=_remove)


def _add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("template_file", metavar="FILE", help="YAML file with a part of a config")


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.templates.all()
        names = {one["id"]: one["name"] for one in session.api.workspaces.all()}
    if args.json:
        render.print_json(found)
    else:
        rows = [[one["name"], names.get(one["workspaceId"], ""), ", ".join(one["config"])] for one in found]
        render.print_table(["Template", "Workspace", "Sets"], rows)
    return 0


def _create(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.cli.commands.teams.workspace import find_workspace

    config = _config(args)
    with open_session(settings) as session:
        workspace_id = 0 if args.workspace is None else find_workspace(session, args.workspace)["id"]
        session.api.templates.create(args.name, config, workspace_id)
    print(f"Created template {args.name}")
    return 0


def _set(args: argparse.Namespace, settings: Settings) -> int:
    config = _config(args)
    with open_session(settings) as session:
        session.api.templates.put(args.name, config)
    print(f"Set template {args.name}")
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.config import dump_yaml

    with open_session(settings) as session:
        print(dump_yaml(session.api.templates.get(args.name)["config"]), end="")
    return 0


def _remove(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.templates.delete(args.name)
    print(f"Removed template {args.name}")
    return 0


def _config(args: argparse.Namespace) -> dict[str, Any]:
    return read_changes(args.template_file, ())
