"""One history, from its plan to the judgement of the oracle."""

from __future__ import annotations

import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_histories.clients import Client, settle
from fault_histories.faults import Faults
from fault_histories.journal import Journal
from fault_histories.oracle import Evidence, judge
from fault_histories.plan import Plan
from fault_histories.world import MasterServer, World

__all__ = ["Result", "run_history"]

# The longest history: far more than any takes on a busy machine.
_LIMIT_S = 120.0
# Checkpoints of ended tasks may still be reported for two minutes, and the search for others comes once an hour.
_LATER_S = 2 * 3600.0
_LAST_PROCESS_S = 20.0


@dataclass
class Result:
    """What came of a history.

    Attributes:
        seed: of its plan.
        took_s: how long it took.
        faults: what failed, by kind.
        acknowledged: how many requests of clients were.
        violations: what the oracle found; empty if all is well.
        evidence: what the oracle judged, if it came to that.
        kept: the folder with its data root, if there are violations.
    """

    seed: str
    took_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    violations: list[str] = field(default_factory=list)
    evidence: Evidence | None = None
    kept: Path | None = None


def run_history(
    plan: Plan, folder: Path, template: Path, masters: MasterServer, *, keeps: bool = False
) -> Result:
    """Run a history in a new folder, and judge it.

    Args:
        plan: the history.
        folder: the folder, deleted if all is well.
        template: a data root that saw its first start.
        masters: forks masters.
        keeps: keep the data root even if all is well.
    """
    started = time.monotonic()
    result = Result(plan.seed)
    folder.mkdir(parents=True)
    world = World(folder, template, plan, masters)
    try:
        result.evidence = evidence = _run(plan, world, result)
        result.violations += [*world.findings, *judge(evidence)]
    except Exception:
        result.violations.append(f"The history could not be run: {traceback.format_exc()}")
    finally:
        if result.violations or keeps:
            kept = world.keep()
            result.kept = folder
            if result.evidence is not None:
                result.evidence = replace(result.evidence, home=kept)
        world.close()
        if result.kept is None:
            shutil.rmtree(folder, ignore_errors=True)
    result.took_s = time.monotonic() - started
    return result


def _run(plan: Plan, world: World, result: Result) -> Evidence:
    deadline = time.monotonic() + _LIMIT_S
    journal = Journal()
    assert world.start(), "The first start fails."
    clients = [
        Client(world, plan, actions, journal, lambda: time.monotonic() > deadline) for actions in plan.clients
    ]
    faults = Faults(world, plan.faults, lambda: _is_quiet(world, clients, deadline))
    for thread in (*clients, faults):
        thread.start()
    faults.join()
    world.proxy.heal()
    for client in clients:
        client.join(max(1.0, deadline - time.monotonic()))
        if client.is_alive():
            world.findings.append("A client waits forever.")
    stuck = settle(world, lambda: time.monotonic() > deadline)
    world.findings += [f"Stuck: {what}." for what in stuck]
    _collect_garbage(world)
    world.stop()
    _wait_for_processes(world)
    result.faults = faults.counts + world.proxy.counts
    result.acknowledged = journal.acknowledged
    return Evidence(
        plan=plan,
        journal=journal,
        home=world.home,
        notes=world.notes,
        killed_supervisors=frozenset(faults.killed_supervisors),
        was_full=faults.was_full,
        errors=tuple(world.proxy.errors),
    )


def _is_quiet(world: World, clients: list[Client], deadline: float) -> bool:
    """Return whether no client is left and no task runs."""
    if time.monotonic() > deadline:
        return True
    if any(client.is_alive() for client in clients) or world.supervisors():
        return False
    # Between two tasks there is none for an instant.
    time.sleep(0.3)
    return not world.supervisors()


def _collect_garbage(world: World) -> None:
    """Let the master delete what killed tasks left, as it would some hours later."""
    world.start_forked()
    world.pass_time(_LATER_S)
    with world.session(by_proxy=False) as session:
        swept = session.api.checkpoints.remove_orphans(0.0, dry_run=False)
        world.findings += [f"The storage cannot be swept: {problem}" for problem in swept.get("problems", [])]


def _wait_for_processes(world: World) -> None:
    deadline = time.monotonic() + _LAST_PROCESS_S
    while left := list(world.processes()):
        if time.monotonic() > deadline:
            world.findings += [f"Process {one.pid} is left: {_shown(one.cmdline)}." for one in left]
            return
        time.sleep(0.02)


def _shown(command: Callable[[], list[str]]) -> str:
    try:
        return " ".join(command())
    except Exception as error:
        return str(error)
