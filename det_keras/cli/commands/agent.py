"""`det agent` and `det slot`: the machines on which the master runs tasks, and who uses them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from det_keras.cli import render
from det_keras.cli.arguments import add_json
from det_keras.cli.session import open_session
from det_keras.connection.settings import Settings

if TYPE_CHECKING:
    from det_keras.cli.arguments import Nouns
    from det_keras.client import Session


def add_parsers(nouns: Nouns) -> None:
    """Add the nouns and their verbs to the command line."""
    machines = nouns.add_parser("agent", help="show the machines that run trials and jobs")
    listing = machines.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "list", aliases=["ls"], help="list the machines"
    )
    add_json(listing)
    listing.set_defaults(run=_list_agents)
    slots = nouns.add_parser("slot", help="show the slots of the machines, and what runs on them")
    listing = slots.add_subparsers(title="commands", metavar="COMMAND", required=True).add_parser(
        "list", aliases=["ls"], help="list the slots"
    )
    add_json(listing)
    listing.set_defaults(run=_list_slots)


def _list_agents(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        agents = session.api.accounts.agents()
    if args.json:
        render.print_json(agents)
        return 0
    rows = [
        [
            agent["id"],
            ", ".join(agent.get("addresses") or []),
            str(len(agent["slots"])),
            str(sum(1 for slot in agent["slots"].values() if slot.get("container"))),
        ]
        for agent in agents
    ]
    render.print_table(["Machine", "Address", "Slots", "In use"], rows)
    return 0


def _list_slots(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        agents = session.api.accounts.agents()
        users = _users_of_slots(session)
    rows = [
        {
            "agent": agent["id"],
            "slot": int(slot["device"]["id"]),
            "type": slot["device"]["type"].removeprefix("TYPE_"),
            "brand": slot["device"].get("brand") or "",
            "task": users.get((slot.get("container") or {}).get("id"), ""),
        }
        for agent in agents
        for slot in agent["slots"].values()
    ]
    rows.sort(key=lambda row: (row["agent"], row["slot"]))
    if args.json:
        render.print_json(rows)
        return 0
    texts = [
        [row["agent"], str(row["slot"]), row["type"], row["brand"], row["task"] or "free"] for row in rows
    ]
    render.print_table(["Machine", "Slot", "Type", "Device", "Used by"], texts)
    return 0


def _users_of_slots(session: Session) -> dict[Any, str]:
    """Return the name of the task in each container."""
    return {
        resources["containerId"]: summary["name"]
        for summary in session.api.tasks.summaries()
        for resources in summary["resources"]
    }
