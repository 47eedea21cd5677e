"""The page of workspaces and their projects."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from det_keras.master.web.rendering import page
from det_keras.master.web.rest import Rest

router = APIRouter(include_in_schema=False)


@router.get("/projects")
async def projects(request: Request) -> Response:
    """List the projects of each workspace, those that the caller pinned first."""
    rest = Rest(request)
    listed, every = await asyncio.gather(rest.get("/workspaces"), rest.get("/workspaces/0/projects"))
    workspaces = sorted(listed["workspaces"], key=lambda one: (not one["pinned"], one["archived"]))
    of_each = {
        one["id"]: [project for project in every["projects"] if project["workspaceId"] == one["id"]]
        for one in workspaces
    }
    return await page(request, "projects.html", workspaces=workspaces, projects=of_each)
