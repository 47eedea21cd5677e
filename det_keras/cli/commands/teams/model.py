"""`det model`: the model registry."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, add_yes, confirm
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session
    from det_keras.protocol.registry import ModelReference

_SORTS = ("name", "description", "creation_time", "last_updated_time", "num_versions", "workspace")


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("model", aliases=["m"], help="the model registry")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the models")
    listing.add_argument(
        "-w", "--workspace-names", metavar="NAME[,NAME]", help="only the models in these workspaces"
    )
    listing.add_argument("--label", metavar="LABEL", action="append", default=[], help="only models with it")
    listing.add_argument("--archived", action="store_true", help="only archived models")
    listing.add_argument("--sort-by", choices=_SORTS, default="last_updated_time")
    listing.add_argument("--order-by", choices=("asc", "desc"), default="asc")
    add_json(listing)
    listing.set_defaults(run=_list)
    creating = verbs.add_parser("create", help="create a model")
    creating.add_argument("name", metavar="NAME")
    creating.add_argument("-w", "--workspace", "--workspace-name", metavar="WORKSPACE", help="its workspace")
    creating.add_argument("--description", metavar="TEXT")
    creating.add_argument("--label", metavar="LABEL", action="append", default=[])
    add_json(creating)
    creating.set_defaults(run=_create)
    registering = verbs.add_parser("register-version", help="register a checkpoint as the next version")
    registering.add_argument("name", metavar="NAME")
    registering.add_argument("uuid", metavar="UUID", help="the checkpoint")
    registering.add_argument(
        "--alias",
        metavar="ALIAS",
        action="append",
        default=[],
        help="an alias of the version, such as champion",
    )
    registering.add_argument("--comment", metavar="TEXT", help="a sentence about the version")
    add_json(registering)
    registering.set_defaults(run=_register)
    describing = verbs.add_parser("describe", help="show a model and one of its versions")
    _add_reference(describing, "a model, or a version of it; of a model, the newest version is shown")
    describing.add_argument("--version", metavar="N", type=int, help="show this version")
    add_json(describing)
    describing.set_defaults(run=_describe)
    versions = verbs.add_parser("list-versions", help="list the versions of a model")
    versions.add_argument("name", metavar="NAME")
    add_json(versions)
    versions.set_defaults(run=_list_versions)
    getting = verbs.add_parser("download", help="download the checkpoint of a version")
    _add_reference(getting, "a version")
    getting.add_argument("-o", "--output-dir", metavar="DIR", help="target (default: checkpoints/UUID)")
    getting.set_defaults(run=_download)
    aliasing = verbs.add_parser("alias", help="give a version an alias, or remove one")
    _add_reference(aliasing, "the version")
    aliasing.add_argument("alias", metavar="ALIAS", help="such as champion; other versions lose it")
    aliasing.add_argument("--remove", action="store_true", help="remove the alias from the version")
    aliasing.set_defaults(run=_alias)
    labelling = verbs.add_parser("label", help="add labels to a model, or remove some")
    labelling.add_argument("name", metavar="NAME")
    labelling.add_argument("labels", metavar="LABEL", nargs="+")
    labelling.add_argument("--remove", action="store_true", help="remove them")
    labelling.set_defaults(run=_label)
    noting = verbs.add_parser("metadata", help="set values in the metadata of a model, or remove some")
    noting.add_argument("name", metavar="NAME")
    noting.add_argument("values", metavar="KEY[=VALUE]", nargs="+", help="a value is JSON, or text")
    noting.add_argument("--remove", action="store_true", help="remove these keys")
    noting.set_defaults(run=_metadata)
    editing = verbs.add_parser("edit", help="rename a model, or describe it anew")
    editing.add_argument("name", metavar="NAME")
    editing.add_argument("--new-name", metavar="NAME")
    editing.add_argument("--description", metavar="TEXT")
    editing.set_defaults(run=_edit)
    moving = verbs.add_parser("move", help="move a model to another workspace")
    moving.add_argument("name", metavar="NAME")
    moving.add_argument("-w", "--workspace", "--workspace-name", metavar="WORKSPACE", required=True)
    moving.set_defaults(run=_move)
    for verb, text in (
        ("archive", "let a model take no changes and no versions"),
        ("unarchive", "let it take changes again"),
    ):
        acting = verbs.add_parser(verb, help=text)
        acting.add_argument("name", metavar="NAME")
        acting.set_defaults(run=_act, verb=verb)
    deleting = verbs.add_parser("delete", help="delete a model, or a version of it; checkpoints stay")
    _add_reference(deleting, "a model with all its versions, or one version such as digits:3")
    add_yes(deleting)
    deleting.set_defaults(run=_delete)


def _add_reference(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("model", metavar="NAME[:N|@ALIAS]", help=text)


def find_version(session: Session, text: str) -> dict[str, Any]:
    """Return the version that a reference such as ``digits@champion`` names.

    Raises:
        DetError: it is malformed, or the model has no version.
        MasterError: there is no such version.
    """
    reference = _reference(text)
    version = session.api.models.version(reference)
    if version is None:
        raise DetError(f"Model {reference.name!r} has no version yet.")
    return version


def _reference(text: str) -> ModelReference:
    # Imported here: `det --help` does not need it.
    from det_keras.protocol.registry import ModelReference

    try:
        return ModelReference.parse(text)
    except ValueError as error:
        raise DetError(str(error)) from None


def _list(args: argparse.Namespace, settings: Settings) -> int:
    names = args.workspace_names.split(",") if args.workspace_names else None
    with open_session(settings) as session:
        found = session.api.models.all(
            sortBy=f"SORT_BY_{args.sort_by.upper()}",
            orderBy=f"ORDER_BY_{args.order_by.upper()}",
            workspaceNames=names,
            labels=args.label or None,
            archived=str(args.archived).lower(),
        )
        workspaces = {one["id"]: one["name"] for one in session.api.workspaces.all()}
    if args.json:
        render.print_json(found)
        return 0
    rows = [
        [
            one["name"],
            display.number_text(one["numVersions"]),
            _aliases_text(one),
            ", ".join(one.get("labels") or ()),
            workspaces.get(one["workspaceId"], str(one["workspaceId"])),
            one["username"],
            display.time_text(one["lastUpdatedTime"]),
        ]
        for one in found
    ]
    render.print_table(["Model", "Versions>", "Aliases", "Labels", "Workspace", "Owner", "Changed"], rows)
    return 0


def _create(args: argparse.Namespace, settings: Settings) -> int:
    fields = {"description": args.description, "workspaceName": args.workspace, "labels": args.label or None}
    with open_session(settings) as session:
        given = {key: value for key, value in fields.items() if value is not None}
        model = session.api.models.create(args.name, given)
    if args.json:
        render.print_json(model)
    else:
        print(f"Created model {model['name']}")
    return 0


def _register(args: argparse.Namespace, settings: Settings) -> int:
    fields = {key: value for key, value in (("comment", args.comment), ("aliases", args.alias)) if value}
    with open_session(settings) as session:
        if args.alias:
            _check_aliases(session)
        version = session.api.models.register(args.name, args.uuid, fields)
        # A checkpoint that was a version before is returned as it was.
        for alias in set(args.alias) - set(version.get("aliases") or ()):
            session.api.models.set_alias(args.name, alias, version["version"])
            version["aliases"] = sorted({*version["aliases"], alias})
    if args.json:
        render.print_json(version)
    else:
        aliases = f", {', '.join(version['aliases'])}" if version.get("aliases") else ""
        print(
            f"Checkpoint {args.uuid} is version {version['version']} of {version['model']['name']}{aliases}"
        )
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    reference = _reference(args.model)
    if args.version is not None:
        reference = replace(reference, version=args.version)
    with open_session(settings) as session:
        model = session.api.models.get(reference.name)
        version = session.api.models.version(reference)
    if args.json:
        render.print_json({"model": model, "modelVersion": version})
        return 0
    render.print_facts(
        {
            "Model": model["name"],
            "Description": model.get("description") or "-",
            "Aliases": _aliases_text(model) or "-",
            "Labels": ", ".join(model.get("labels") or ()) or "-",
            "Metadata": json.dumps(model.get("metadata") or {}),
            "Owner": model["username"],
            "Created": display.time_text(model["creationTime"]),
            "Changed": display.time_text(model["lastUpdatedTime"]),
            "State": "archived" if model.get("archived") else "open",
        }
    )
    if version is not None:
        print()
        _print_versions([version])
    return 0


def _list_versions(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.models.versions(args.name)
    if args.json:
        render.print_json(found)
    else:
        _print_versions(found)
    return 0


def _download(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.cli.download import default_target
    from det_keras.connection.checkpoint_files import download

    with open_session(settings) as session:
        record = find_version(session, args.model)["checkpoint"]
        target = Path(args.output_dir) if args.output_dir else default_target(record["uuid"])
        print(download(session, record, target))
    return 0


def _alias(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        _check_aliases(session)
        version = find_version(session, args.model)
        name, number = version["model"]["name"], version["version"]
        if not args.remove:
            session.api.models.set_alias(name, args.alias, number)
        elif args.alias in version["aliases"]:
            session.api.models.remove_alias(name, args.alias)
        else:
            raise DetError(f"Version {number} of {name} has no alias {args.alias!r}.")
    verb = "no longer" if args.remove else "now"
    print(f"{name}@{args.alias} is {verb} version {number}")
    return 0


def _label(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        before = session.api.models.get(args.name).get("labels") or []
        given = set(args.labels)
        kept = [label for label in before if label not in given]
        labels = kept if args.remove else list(dict.fromkeys([*before, *args.labels]))
        session.api.models.change(args.name, {"labels": labels})
    print(f"Labels of {args.name}: {', '.join(labels) or 'none'}")
    return 0


def _metadata(args: argparse.Namespace, settings: Settings) -> int:
    pairs = [entry.partition("=") for entry in args.values]
    if not args.remove and any(not mark for _, mark, _ in pairs):
        raise DetError(
            "Write `KEY=VALUE`, such as `accuracy=0.9` or `reviewed=true`; or `KEY` with --remove."
        )
    with open_session(settings) as session:
        metadata = dict(session.api.models.get(args.name).get("metadata") or {})
        for key, _, value in pairs:
            if args.remove:
                metadata.pop(key, None)
            else:
                metadata[key] = _value(value)
        session.api.models.change(args.name, {"metadata": metadata})
    print(f"Metadata of {args.name}: {json.dumps(metadata)}")
    return 0


def _edit(args: argparse.Namespace, settings: Settings) -> int:
    changes = {"name": args.new_name, "description": args.description}
    given = {key: value for key, value in changes.items() if value is not None}
    if not given:
        raise DetError("Nothing to change: give --new-name or --description.")
    with open_session(settings) as session:
        model = session.api.models.change(args.name, given)
    print(f"Changed model {model['name']}")
    return 0


def _move(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.models.change(args.name, {"workspaceName": args.workspace})
    print(f"Moved model {args.name} to workspace {args.workspace}")
    return 0


def _act(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.models.act(args.name, args.verb)
    print(f"{args.verb.capitalize()}d model {args.name}")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        api = session.api.models
        if ":" in args.model or "@" in args.model:
            version = find_version(session, args.model)
            what = f"version {version['version']} of {version['model']['name']}"
            if not confirm(f"Delete {what}? Its checkpoint stays.", yes=args.yes):
                raise DetError("Nothing was deleted.")
            api.delete_version(version["model"]["name"], version["version"])
        else:
            model = api.get(args.model)
            what = f"model {model['name']}"
            question = f"Delete {what} with its {model['numVersions']} versions? Their checkpoints stay."
            if not confirm(question, yes=args.yes):
                raise DetError("Nothing was deleted.")
            api.delete(args.model)
    print(f"Deleted {what}")
    return 0


def _print_versions(versions: list[dict[str, Any]]) -> None:
    rows = []
    for version in versions:
        checkpoint = version["checkpoint"]
        training = checkpoint["training"]
        rows.append(
            [
                str(version["version"]),
                ", ".join(version.get("aliases") or ()),
                str(training.get("experimentId") or "-"),
                str(training.get("trialId") or "-"),
                display.number_text((checkpoint.get("metadata") or {}).get("steps_completed")),
                display.metric_text(training.get("searcherMetric")),
                checkpoint["uuid"],
                version.get("username") or "",
                display.time_text(version["creationTime"]),
            ]
        )
    render.print_table(
        [
            "Version>",
            "Aliases",
            "Experiment>",
            "Trial>",
            "Batch>",
            "Metric>",
            "Checkpoint",
            "By",
            "Registered",
        ],
        rows,
    )


def _check_aliases(session: Session) -> None:
    """Check that the master knows aliases.

    Raises:
        DetError: it is a Determined master.
    """
    if session.api.accounts.is_determined():
        raise DetError(
            "A Determined master has no aliases. Use the numbers of versions, or labels of the model."
        )


def _aliases_text(model: dict[str, Any]) -> str:
    return ", ".join(f"{alias}: {number}" for alias, number in (model.get("aliases") or {}).items())


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
