"""Agents and their slots, which administrators disable and enable; previews of searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras import search
from det_keras.config import dump_yaml
from det_keras.master.accounts.auth import Caller
from det_keras.master.accounts.users import find_user, require_admin
from det_keras.master.database.store import Transaction
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.resources import Node
from det_keras.master.serializers.cluster import agent_shape
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations, availability
from det_keras.master.tasks.availability import Availability
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")


class DisableBody(Message):
    """Whether what runs there continues to its end."""

    agent_id: str = ""
    slot_id: str = ""
    drain: bool = False


class PreviewBody(Message):
    """A config whose search is previewed."""

    without_effect = frozenset({"seed"})

    config: dict[str, Any] = Field(default_factory=dict)


@router.get("/agents")
def agents(master: MasterDep, page: PageDep) -> Response:
    """List the agents: the nodes of the pool."""
    return reply(paged("agents", _shapes(master, master.pool.nodes), page, list))


@router.get("/agents/{agent_id}")
def agent(master: MasterDep, agent_id: str) -> Response:
    """Describe an agent."""
    return reply({"agent": _agent(master, agent_id)})


@router.get("/agents/{agent_id}/slots")
def slots(master: MasterDep, agent_id: str) -> Response:
    """List the slots of an agent."""
    return reply({"slots": list(_agent(master, agent_id)["slots"].values())})


@router.get("/agents/{agent_id}/slots/{slot_id}")
def slot(master: MasterDep, agent_id: str, slot_id: int) -> Response:
    """Describe a slot."""
    return reply({"slot": _slot(master, agent_id, slot_id)})


@router.post("/agents/{agent_id}/enable")
def enable_agent(master: MasterDep, caller: CallerDep, agent_id: str) -> Response:
    """Give the slots of an agent to tasks again, but for those that were disabled by themselves."""
    with master.store.writing() as tx:
        availability.enable(tx, master.pool, agent_id, by=_admin(tx, caller))
    return reply({"agent": _agent(master, agent_id)})


@router.post("/agents/{agent_id}/disable")
def disable_agent(
    master: MasterDep, caller: CallerDep, agent_id: str, request: Annotated[DisableBody, body(DisableBody)]
) -> Response:
    """Give an agent to no task; stop what runs there, or with `drain` let it continue to its end."""
    with master.store.writing() as tx:
        by = _admin(tx, caller)
        availability.disable(tx, master.pool, agent_id, drains=request.drain, by=by)
    return reply({"agent": _agent(master, agent_id)})


@router.post("/agents/{agent_id}/slots/{slot_id}/enable")
def enable_slot(master: MasterDep, caller: CallerDep, agent_id: str, slot_id: int) -> Response:
    """Give a slot to tasks again, unless its agent is disabled."""
    with master.store.writing() as tx:
        availability.enable(tx, master.pool, agent_id, slot_id, by=_admin(tx, caller))
    return reply({"slot": _slot(master, agent_id, slot_id)})


@router.post("/agents/{agent_id}/slots/{slot_id}/disable")
def disable_slot(
    master: MasterDep,
    caller: CallerDep,
    agent_id: str,
    slot_id: int,
    request: Annotated[DisableBody, body(DisableBody)],
) -> Response:
    """Give a slot to no task; stop what runs on it, or with `drain` let it continue to its end."""
    with master.store.writing() as tx:
        by = _admin(tx, caller)
        availability.disable(tx, master.pool, agent_id, slot_id, drains=request.drain, by=by)
    return reply({"slot": _slot(master, agent_id, slot_id)})


@router.get("/notebooks")
def notebooks(page: PageDep) -> Response:
    """List notebooks: always none."""
    return reply(paged("notebooks", [], page, list))


@router.get("/shells")
def shells(page: PageDep) -> Response:
    """List shells: always none."""
    return reply(paged("shells", [], page, list))


@router.post("/preview-hp-search")
def preview(master: MasterDep, request: Annotated[PreviewBody, body(PreviewBody)]) -> Response:
    """Return the trials that a search would run."""
    config = master.experiments.load(dump_yaml(request.config)).config
    found = search.preview(config, master.pool.slot_count)
    unit = {"maxLength": not found.endings, "name": found.unit, "value": found.full_length or 0}
    endings = [(count, {**unit, "value": length}) for length, count in found.endings.items()]
    trials = [{"count": count, "unit": unit} for count, unit in endings or [(found.trials, unit)]]
    summary = {"config": config.searcher.to_dict(), "trials": trials, "simulation": _simulation(found)}
    return reply({"summary": summary})


def _admin(tx: Transaction, caller: Caller) -> str:
    """Return the name of the caller, an administrator."""
    require_admin(tx, caller, "disable or enable slots")
    return find_user(tx, caller.user_id).username


def _shapes(master: EmbeddedMaster, nodes: Sequence[Node]) -> list[dict[str, Any]]:
    with master.store.reading() as session:
        live, known = allocations.live_allocations(session), Availability.read(session)
    return [agent_shape(node, live, known, master.started_at) for node in nodes]


def _agent(master: EmbeddedMaster, agent_id: str) -> dict[str, Any]:
    return _shapes(master, [availability.find_node(master.pool, agent_id)])[0]


def _slot(master: EmbeddedMaster, agent_id: str, slot_id: int) -> dict[str, Any]:
    number = availability.find_slot(master.pool, agent_id, slot_id)
    shape: dict[str, Any] = _agent(master, agent_id)["slots"][str(number)]
    return shape


def _simulation(found: search.Preview) -> dict[str, Any] | None:
    run = found.simulated
    if run is None:
        return None
    endings = [
        {"count": count, "unit": {"maxLength": False, "name": found.unit, "value": length}}
        for length, count in run.endings().items()
    ]
    return {
        "trials": endings,
        "totalLength": run.total_length,
        "mostAtOnce": run.most_at_once,
        "time": run.time,
    }
