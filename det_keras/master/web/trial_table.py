"""The page with the table of all trials, and the same table as a file."""

from __future__ import annotations

from dataclasses import replace

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from det_keras.master.api.trial_table import QuestionDep
from det_keras.master.server.calls import MasterDep, open_download
from det_keras.master.table.csv_text import csv_text
from det_keras.master.table.query import answer
from det_keras.master.web.rendering import page

router = APIRouter(include_in_schema=False)


@router.get("/trials")
async def table(request: Request) -> Response:
    """Show the table; its script asks for the rows, by the address of the page."""
    return await page(request, "trials.html")


@router.get("/trials.csv", dependencies=[Depends(open_download)])
async def csv_file(master: MasterDep, question: QuestionDep) -> Response:
    """Return all rows of the table as CSV; the parameters are those of the page."""
    found = await anyio.to_thread.run_sync(answer, master.trial_rows, replace(question, limit=None))
    text = await anyio.to_thread.run_sync(csv_text, found)
    headers = {"Content-Disposition": 'attachment; filename="trials.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)
