"""The page with the table of all trials, the data of the table of experiments, and both as files."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from det_keras.master.api.trial_table import (
    AmongDep,
    ExperimentsDep,
    LimitDep,
    OffsetDep,
    QuestionDep,
    shape_of,
)
from det_keras.master.server.calls import MasterDep, open_download
from det_keras.master.server.responses import reply
from det_keras.master.table.csv_text import csv_text
from det_keras.master.table.query import Table
from det_keras.master.table.trials import trial_table
from det_keras.master.web.rendering import page

router = APIRouter(include_in_schema=False)
_ArchivedDep = Annotated[bool, Query()]


@router.get("/trials")
async def trials(request: Request) -> Response:
    """Show the table; its script asks for the rows, by the address of the page."""
    return await page(request, "trials.html")


@router.get("/trials.csv", dependencies=[Depends(open_download)])
async def trials_as_csv(master: MasterDep, question: QuestionDep, among: AmongDep) -> Response:
    """Return all rows of the table as CSV; the parameters are those of the call for a part of it."""
    question = replace(question, limit=None)
    return await _file(
        await anyio.to_thread.run_sync(trial_table, master.trial_rows, question, among), "trials"
    )


@router.get("/tables/experiments")
def experiments(
    master: MasterDep,
    question: QuestionDep,
    among: ExperimentsDep,
    archived: _ArchivedDep = False,
    offset: OffsetDep = 0,
    limit: LimitDep = 100,
) -> Response:
    """Return a part of the table of experiments, with the labels and the descriptions that belong to names."""
    question = replace(question, is_archived=archived, offset=offset, limit=limit)
    found = master.experiment_rows.table(question, among)
    shown = [row.shape for row in master.experiment_rows.of(found.ids)]
    return reply(
        {
            **shape_of(found),
            "ids": found.ids,
            "labels": [shape["labels"] for shape in shown],
            "descriptions": [shape["description"] for shape in shown],
        }
    )


@router.get("/experiments.csv", dependencies=[Depends(open_download)])
async def experiments_as_csv(
    master: MasterDep, question: QuestionDep, among: ExperimentsDep, archived: _ArchivedDep = False
) -> Response:
    """Return all rows of the table of experiments as CSV."""
    question = replace(question, is_archived=archived, limit=None)
    return await _file(
        await anyio.to_thread.run_sync(master.experiment_rows.table, question, among), "experiments"
    )


async def _file(found: Table, name: str) -> Response:
    text = await anyio.to_thread.run_sync(csv_text, found)
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)
