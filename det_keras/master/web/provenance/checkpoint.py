"""The page of a checkpoint: its files, where they are, how it was trained, and the lines that load it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from det_keras.display import flat_hparams
from det_keras.master.server.browser import wants_page
from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest
from det_keras.master.web.teams.audit import last_changes

_MODEL_FILE = "model.keras"


class _PageRoute(APIRoute):
    """A route for browsers only: at the same address, programs download the checkpoint."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the route serves a request."""
        if scope["type"] != "http" or not wants_page(scope):
            return Match.NONE, {}
        return super().matches(scope)


router = APIRouter(include_in_schema=False, route_class=_PageRoute)


@router.get("/checkpoints/{uuid}")
async def checkpoint(request: Request, uuid: str) -> Response:
    """Show a checkpoint."""
    rest = Rest(request)
    answer, stored, changes = await asyncio.gather(
        rest.get(f"/checkpoints/{uuid}"),
        rest.get(f"/checkpoints/{uuid}/files"),
        last_changes(rest, "checkpoint", uuid),
    )
    shown = answer["checkpoint"]
    training = shown["training"]
    return await page(
        request,
        "checkpoint.html",
        checkpoint=shown,
        stored=stored,
        changes=changes,
        lines=loading_lines(shown),
        metrics=_metrics(training),
        hparams=list(flat_hparams(training["hparams"])),
        experiment_name=training["experimentConfig"].get("name") or "",
    )


def loading_lines(checkpoint: Mapping[str, Any]) -> list[str]:
    """Return the lines of a script that load the model of a checkpoint; empty if it contains none.

    Args:
        checkpoint: as in the REST API.
    """
    if _MODEL_FILE not in checkpoint["resources"]:
        return []
    uuid = checkpoint["uuid"]
    return [
        "import det_keras as det",
        f'model = det.keras.init().load_checkpoint_model(checkpoint_uuid="{uuid}")',
    ]


def _metrics(training: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return group, name and value of each metric that was reported at the batch of a checkpoint."""
    groups = (("validation", "validationMetrics"), ("training", "trainingMetrics"))
    return [
        (group, name, value)
        for group, key in groups
        for name, value in sorted((training[key]["avgMetrics"] or {}).items())
    ]
