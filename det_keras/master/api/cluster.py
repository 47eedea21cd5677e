"""Agents; previews of searches."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras import search
from det_keras.config import dump_yaml
from det_keras.master.serializers.cluster import agent_shape
from det_keras.master.server.calls import MasterDep, PageDep, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")


class PreviewBody(Message):
    """A config whose search is previewed."""

    config: dict[str, Any] = Field(default_factory=dict)


@router.get("/agents")
def agents(master: MasterDep, page: PageDep) -> Response:
    """List the agents: the nodes of the pool."""
    with master.store.reading() as session:
        live = allocations.live_allocations(session)
    shapes = [agent_shape(node, live, master.started_at) for node in master.pool.nodes]
    return reply(paged("agents", shapes, page, list))


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
