"""The page of webhooks, and of what was sent to them."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

router = APIRouter(include_in_schema=False)

_DELIVERIES = 20


@router.get("/webhooks")
async def webhooks(request: Request) -> Response:
    """List the webhooks that the caller may see, and what was sent to those that the caller may change."""
    rest = Rest(request)
    found, workspaces = await asyncio.gather(rest.get("/webhooks"), rest.get("/workspaces"))
    shown = found["webhooks"]
    sent = await asyncio.gather(*(_sent(rest, webhook) for webhook in shown))
    return await page(
        request,
        "webhooks.html",
        webhooks=[{**webhook, "sent": of_it} for webhook, of_it in zip(shown, sent, strict=True)],
        workspaces={workspace["id"]: workspace["name"] for workspace in workspaces["workspaces"]},
    )


async def _sent(rest: Rest, webhook: dict[str, Any]) -> dict[str, Any] | None:
    if not webhook["mayChange"]:
        return None
    return await rest.get(f"/webhooks/{webhook['id']}/deliveries", limit=_DELIVERIES)
