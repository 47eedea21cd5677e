"""`det agent` and `det slot`: the machines on which the master runs tasks, who uses them, and which are out of use."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
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
    machines = nouns.add_parser("agent", help="the machines that run trials and jobs")
    verbs = machines.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the machines")
    add_json(listing)
    listing.set_defaults(run=_list_agents)
    for verb, text in (("disable", "give machines to no task"), ("enable", "give machines to tasks again")):
        parser = verbs.add_parser(verb, help=text)
        which = parser.add_mutually_exclusive_group(required=True)
        which.add_argument("agent", nargs="?", metavar="MACHINE")
        which.add_argument("--all", action="store_true", help="all machines")
        if verb == "disable":
            _add_drain(parser)
        parser.set_defaults(run=_use_agents, is_used=verb == "enable", drain=False)
    slots = nouns.add_parser("slot", help="the slots of the machines, and what runs on them")
    verbs = slots.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listing = verbs.add_parser("list", aliases=["ls"], help="list the slots")
    add_json(listing)
    listing.set_defaults(run=_list_slots)
    for verb, text in (("disable", "give a slot to no task"), ("enable", "give a slot to tasks again")):
        parser = verbs.add_parser(verb, help=text)
        parser.add_argument("agent", metavar="MACHINE")
        parser.add_argument("slot", type=int, metavar="SLOT")
        if verb == "disable":
            _add_drain(parser)
        parser.set_defaults(run=_use_slot, is_used=verb == "enable", drain=False)


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--drain", action="store_true", help="let what runs there continue to its end")


def _use_agents(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        names = [one["id"] for one in session.api.accounts.agents()] if args.all else [args.agent]
        for name in sorted(names):
            session.api.accounts.set_use(name, is_used=args.is_used, drain=args.drain)
            print(f"{'Enabled' if args.is_used else 'Disabled'} machine {name}")
        if args.drain:
            _print_draining(session, names)
    return 0


def _use_slot(args: argparse.Namespace, settings: Settings) -> int:
    with open_session(settings) as session:
        session.api.accounts.set_use(args.agent, args.slot, is_used=args.is_used, drain=args.drain)
    print(f"{'Enabled' if args.is_used else 'Disabled'} slot {args.slot} of machine {args.agent}")
    return 0


def _print_draining(session: Session, names: Collection[str]) -> None:
    """Print the tasks that still run on machines."""
    found = [
        summary["name"]
        for summary in session.api.tasks.summaries()
        if any(name in names for resources in summary["resources"] for name in resources["agentDevices"])
    ]
    print(f"Still running there: {', '.join(found)}" if found else "Nothing runs there.")


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
            _use(agent),
        ]
        for agent in agents
    ]
    render.print_table(["Machine", "Address", "Slots", "In use", "State"], rows)
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
            "enabled": slot.get("enabled", True),
            "draining": slot.get("draining", False),
        }
        for agent in agents
        for slot in agent["slots"].values()
    ]
    rows.sort(key=lambda row: (row["agent"], row["slot"]))
    if args.json:
        render.print_json(rows)
        return 0
    texts = [
        [row["agent"], str(row["slot"]), row["type"], row["brand"], row["task"] or "free", _use(row)]
        for row in rows
    ]
    render.print_table(["Machine", "Slot", "Type", "Device", "Used by", "State"], texts)
    return 0


def _use(shape: Mapping[str, Any]) -> str:
    """Return whether tasks are given a machine or slot."""
    if shape.get("enabled", True):
        return "enabled"
    return "draining" if shape.get("draining") else "disabled"


def _users_of_slots(session: Session) -> dict[Any, str]:
    """Return the name of the task in each container."""
    return {
        resources["containerId"]: summary["name"]
        for summary in session.api.tasks.summaries()
        for resources in summary["resources"]
    }
