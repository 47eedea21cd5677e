"""`det webhook`: addresses to which the master sends events."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from det_keras import display
from det_keras.cli import render
from det_keras.cli.arguments import add_json, positive
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings
from det_keras.errors import DetError

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session

_STATES = ("ACTIVE", "PAUSED", "COMPLETED", "CANCELED", "ERROR")
_DELIVERIES = 20


def add_parsers(nouns: Nouns) -> None:
    """Add the noun and its verbs to the command line."""
    parser = nouns.add_parser("webhook", help="addresses to which the master sends events")
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    creating = verbs.add_parser("create", help="create a webhook")
    creating.add_argument("url", metavar="URL", help="http:// or https:// address of the receiver")
    creating.add_argument(
        "--on-state",
        action="append",
        default=[],
        metavar="STATE",
        choices=_STATES,
        help="when an experiment gets this state: " + ", ".join(_STATES) + "; may be repeated",
    )
    creating.add_argument(
        "--on-log",
        action="append",
        default=[],
        metavar="REGEX",
        help="when a line of a task's log matches, once for each task; may be repeated",
    )
    creating.add_argument("--on-alert", action="store_true", help="when a script calls `context.alert`")
    creating.add_argument("--slack", action="store_true", help="send messages in Slack's form")
    creating.add_argument("--name", metavar="NAME", default="", help="by which configs may name it")
    creating.add_argument(
        "-w", "--workspace", metavar="WORKSPACE", help="only of this workspace (default: of all)"
    )
    creating.add_argument(
        "--specific", action="store_true", help="only of experiments whose configs name it; needs --workspace"
    )
    creating.set_defaults(run=_create)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the webhooks")
    add_json(listing)
    listing.set_defaults(run=_list)
    describing = _numbered(verbs, "describe", "show a webhook")
    add_json(describing)
    describing.set_defaults(run=_describe)
    editing = _numbered(verbs, "edit", "send to another address")
    editing.add_argument("--url", metavar="URL", required=True)
    editing.set_defaults(run=_edit)
    _numbered(verbs, "test", "send a test event, and say what came back").set_defaults(run=_test)
    _numbered(verbs, "delete", "delete a webhook, with what was not sent yet").set_defaults(run=_delete)
    sent = _numbered(verbs, "deliveries", "show what was sent, with the answers, and what waits")
    sent.add_argument(
        "-n", "--limit", metavar="N", type=positive, default=_DELIVERIES, help="the most; default 20"
    )
    add_json(sent)
    sent.set_defaults(run=_deliveries)


def _numbered(verbs: Nouns, name: str, text: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("webhook_id", metavar="ID", type=positive)
    return parser


def _create(args: argparse.Namespace, settings: Settings) -> int:
    from det_keras.cli.commands.teams.workspace import find_workspace

    triggers: list[dict[str, Any]] = [
        _trigger("EXPERIMENT_STATE_CHANGE", state=state) for state in args.on_state
    ]
    triggers += [_trigger("TASK_LOG", regex=regex) for regex in args.on_log]
    triggers += [_trigger("CUSTOM")] if args.on_alert else []
    if not triggers:
        raise DetError("Say when it is told: --on-state STATE, --on-log REGEX or --on-alert.")
    with open_session(settings) as session:
        workspace_id = None if args.workspace is None else find_workspace(session, args.workspace)["id"]
        made = session.api.webhooks.create(
            {
                "name": args.name,
                "url": args.url,
                "webhookType": "WEBHOOK_TYPE_SLACK" if args.slack else "WEBHOOK_TYPE_DEFAULT",
                "mode": "WEBHOOK_MODE_SPECIFIC" if args.specific else "WEBHOOK_MODE_WORKSPACE",
                "workspaceId": workspace_id,
                "triggers": triggers,
            }
        )
    print(f"Created webhook {made['id']}. `det webhook test {made['id']}` sends a test event.")
    return 0


def _trigger(kind: str, **condition: str) -> dict[str, Any]:
    return {"triggerType": f"TRIGGER_TYPE_{kind}", "condition": condition}


def _list(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = session.api.webhooks.all()
        names = _workspace_names(session)
    if args.json:
        render.print_json(found)
        return 0
    rows = [
        [str(each["id"]), each["name"], each["url"], names.get(each["workspaceId"] or 0, "all"), _told(each)]
        for each in found
    ]
    render.print_table(["ID>", "Name", "URL", "Workspace", "Told of"], rows)
    return 0


def _describe(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        found = _find(session, args.webhook_id)
        names = _workspace_names(session)
    if args.json:
        render.print_json(found)
        return 0
    render.print_facts(
        {
            "Webhook": f"{found['id']} {found['name']}".strip(),
            "URL": found["url"],
            "Form": found["webhookType"].removeprefix("WEBHOOK_TYPE_").lower(),
            "Workspace": names.get(found["workspaceId"] or 0, "all"),
            "Experiments": "those that name it" if found["mode"].endswith("SPECIFIC") else "all",
            "Told of": _told(found),
        }
    )
    return 0


def _edit(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.webhooks.change(args.webhook_id, args.url)
    print(f"Changed webhook {args.webhook_id}.")
    return 0


def _test(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.webhooks.test(args.webhook_id)
    print(f"The receiver of webhook {args.webhook_id} has accepted a test event.")
    return 0


def _delete(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.webhooks.delete(args.webhook_id)
    print(f"Deleted webhook {args.webhook_id}.")
    return 0


def _deliveries(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        if session.api.accounts.is_determined():
            raise DetError("Only a master of det_keras shows what was sent to a webhook.")
        found = session.api.webhooks.deliveries(args.webhook_id, args.limit)
    if args.json:
        render.print_json(found)
        return 0
    rows = [
        [
            display.time_text(each["madeAt"]),
            each["about"],
            each["state"].lower(),
            str(each["attempts"]),
            display.time_text(each["dueAt"]) if each["dueAt"] else "",
            str(each["status"] or ""),
            each["answer"].strip().split("\n")[0],
        ]
        for each in found
    ]
    render.print_table(["Time", "Of", "State", "Attempts>", "Next attempt", "Status>", "Answer"], rows)
    return 0


def _find(session: Session, webhook_id: int) -> dict[str, Any]:
    found = next((each for each in session.api.webhooks.all() if each["id"] == webhook_id), None)
    if found is None:
        raise DetError(f"There is no webhook {webhook_id} that you may see. `det webhook list` shows them.")
    return found


def _workspace_names(session: Session) -> dict[int, str]:
    return {each["id"]: each["name"] for each in session.api.workspaces.all()}


def _told(webhook: Mapping[str, Any]) -> str:
    return display.triggers_text(webhook["triggers"] or ())
