"""The pages of the model registry: the list of models, and each model with its versions side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.errors import DetError
from det_keras.master.errors import ApiError
from det_keras.master.web.provenance.record import shown_record
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest
from det_keras.master.web.teams.audit import last_changes

router = APIRouter(include_in_schema=False)

# Versions side by side; older ones are in `det model list-versions`.
_MOST_VERSIONS = 50
_MOST_METRICS = 12


@router.get("/models")
async def models(request: Request, archived: bool = False) -> Response:
    """List models, those that were changed last first.

    Args:
        request: the page's request.
        archived: whether to list archived models instead.
    """
    rest = Rest(request)
    order = {"sortBy": "SORT_BY_LAST_UPDATED_TIME", "orderBy": "ORDER_BY_DESC"}
    listed, workspaces = await asyncio.gather(
        rest.get("/models", archived=str(archived).lower(), **order), rest.get("/workspaces")
    )
    names = {one["id"]: one["name"] for one in workspaces["workspaces"]}
    return await page(request, "registry.html", models=listed["models"], workspaces=names, archived=archived)


@router.get("/models/{name}")
async def model(request: Request, name: str) -> Response:
    """Show a model: its versions with their metrics, where each comes from, and the lines that load it."""
    rest = Rest(request)
    answer, listed = await asyncio.gather(
        rest.get(f"/models/{name}"),
        rest.get(f"/models/{name}/versions", limit=_MOST_VERSIONS, orderBy="ORDER_BY_DESC"),
    )
    versions = listed["modelVersions"]
    commits, changes = await asyncio.gather(
        _commits(rest, [one["checkpoint"]["training"]["experimentId"] for one in versions]),
        last_changes(rest, "model", answer["model"]["id"]),
    )
    return await page(
        request,
        "registered.html",
        model=answer["model"],
        versions=versions,
        total=listed["pagination"]["total"],
        metrics=_metrics(versions),
        commits=commits,
        changes=changes,
        lines=loading_lines(answer["model"]),
    )


def loading_lines(model: Mapping[str, Any]) -> list[str]:
    """Return the lines of a script that load a model: by its first alias, else its newest version.

    Args:
        model: as in the REST API.
    """
    alias = next(iter(model["aliases"]), None)
    reference = model["name"] if alias is None else f"{model['name']}@{alias}"
    return [
        "import det_keras as det",
        f"model = det.keras.init().load_checkpoint_model(model={reference!r})",
    ]


def _metrics(versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the validation metrics that versions have, those of the newest first."""
    names: dict[str, None] = {}
    for version in versions:
        names |= dict.fromkeys(version["checkpoint"]["training"]["validationMetrics"]["avgMetrics"] or {})
    return list(names)[:_MOST_METRICS]


async def _commits(rest: Rest, experiment_ids: Sequence[int]) -> dict[int, str]:
    """Return the commit of the code of each experiment of which one is known."""

    async def commit(number: int) -> str:
        try:
            record = (await rest.get(f"/experiments/{number}/provenance"))["provenance"]
        except (ApiError, DetError):
            return ""
        shown = shown_record(record)
        return "" if shown is None else dict(shown.facts).get("Commit", "")

    numbers = sorted(set(experiment_ids))
    found = await asyncio.gather(*map(commit, numbers))
    return {number: text for number, text in zip(numbers, found, strict=True) if text}
