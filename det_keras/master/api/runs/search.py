"""Searches of runs and of experiments with Determined's filters, and what is done with many runs at once."""

from __future__ import annotations

import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.database.models import ExperimentRow, ProjectRow, TrialRow, WorkspaceRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.experiments import runs
from det_keras.master.serializers.experiments import LIST_COLUMNS, listed_experiments
from det_keras.master.serializers.trials import trial_shapes
from det_keras.master.server.calls import MasterDep, Page, body, paged
from det_keras.master.server.responses import reply
from det_keras.master.table import searches
from det_keras.master.table.experiments import ExperimentNames
from det_keras.master.table.followed import in_parts
from det_keras.master.table.trials import TrialNames
from det_keras.master.tasks.scheduling import POOL
from det_keras.master.wire import Message
from det_keras.protocol.states import named

router = APIRouter(prefix="/api/v1")

_LIMIT = 100
_LONGEST_FILTER = 100_000
_Filter = Annotated[str, Field(max_length=_LONGEST_FILTER)]


class SearchBody(Message):
    """What is searched: all of it if nothing is said."""

    project_id: int = 0
    offset: int = 0
    limit: int = 0
    sort: Annotated[str, Field(max_length=1000)] = ""
    filter: _Filter = ""


class RunsBody(Message):
    """The runs with which something is done: those with these numbers, or all that a filter finds."""

    run_ids: list[int] = Field(default_factory=list)
    project_id: int = 0
    filter: _Filter = ""
    # To move them.
    source_project_id: int = 0
    destination_project_id: int = 0
    skip_multitrial: bool = False


@router.post("/runs")
def search_runs(master: MasterDep, request: Annotated[SearchBody, body(SearchBody)]) -> Response:
    """Search runs, which are trials, by a filter in Determined's form; the newest are first unless `sort` is given."""
    ids = _found_runs(master, request.filter, request.sort, request.project_id)
    return reply(paged("runs", ids, _page(request), lambda part: _runs(master, list(part)), _LIMIT))


@router.post("/runs/{verb}")
def act(master: MasterDep, verb: str, request: Annotated[RunsBody, body(RunsBody)]) -> Response:
    """Kill, pause, resume, archive, unarchive, delete or move runs; one at which it fails holds back no other."""
    project_id = request.source_project_id if verb == "move" else request.project_id
    if verb == "move":
        action = runs.moved_to(request.destination_project_id, skips_searches=request.skip_multitrial)
    elif verb in runs.ACTIONS:
        action = runs.ACTIONS[verb]
    else:
        names = ", ".join(sorted([*runs.ACTIONS, "move"]))
        raise InvalidArgumentError(f"Runs have no action {verb!r}: {names}.")
    chosen = request.run_ids
    if request.filter:
        chosen = _found_runs(master, request.filter, "", project_id)
    results = runs.apply_to_each(master.store, chosen, project_id, action)
    return reply({"results": [{"id": number, "error": error} for number, error in results]})


@router.post("/experiments-search")
def search_experiments(master: MasterDep, request: Annotated[SearchBody, body(SearchBody)]) -> Response:
    """Search experiments by a filter in Determined's form; the newest are first unless `sort` is given."""
    return _experiments(master, request)


@router.get("/experiments-search")
def experiments_by_address(
    master: MasterDep,
    project_id: Annotated[int, Query(alias="projectId")] = 0,
    offset: int = 0,
    limit: int = 0,
    sort: Annotated[str, Query(max_length=1000)] = "",
    filter_text: Annotated[str, Query(alias="filter", max_length=_LONGEST_FILTER)] = "",
) -> Response:
    """Search experiments as `POST /experiments-search` does."""
    return _experiments(
        master, SearchBody(project_id=project_id, offset=offset, limit=limit, sort=sort, filter=filter_text)
    )


def _page(request: SearchBody) -> Page:
    return Page(request.offset, max(request.limit, -2), None)


def _found_runs(master: EmbeddedMaster, filter_text: str, sort: str, project_id: int) -> list[int]:
    search = searches.parse(filter_text, sort)
    rows = master.trial_rows.read()
    if project_id:
        rows = [row for row in rows if row.experiment.project_id == project_id]
    columns = searches.searched_runs(TrialNames(rows, master.trial_rows))
    return [row.id for row in columns.found(rows, search)]


def _experiments(master: EmbeddedMaster, request: SearchBody) -> Response:
    search = searches.parse(request.filter, request.sort)
    rows = master.experiment_rows.read()
    if request.project_id:
        rows = [row for row in rows if row.shape["projectId"] == request.project_id]
    found = searches.searched_experiments(ExperimentNames(rows)).found(rows, search)
    ids = [row.id for row in found]
    return reply(paged("experiments", ids, _page(request), lambda part: _listed(master, list(part)), _LIMIT))


def _listed(master: EmbeddedMaster, ids: list[int]) -> list[dict[str, Any]]:
    """Return experiments in this order, each with its best trial."""
    found: dict[int, dict[str, Any]] = {}
    with master.store.reading() as session:
        for part in in_parts(ids):
            query = select(*LIST_COLUMNS).where(ExperimentRow.id.in_(part))
            for listed in listed_experiments(session, session.connection().execute(query).all()):
                found[listed.row.id] = json.loads(listed.to_json())
        best = {shape["bestTrialId"] for shape in found.values() if shape.get("bestTrialId")}
        trials = {shape["id"]: shape for shape in trial_shapes(session, _trials(session, list(best)))}
    return [
        {"experiment": found[number], "bestTrial": trials.get(found[number].get("bestTrialId"))}
        for number in ids
        # It may have been deleted meanwhile.
        if number in found
    ]


def _trials(session: Session, ids: list[int]) -> list[TrialRow]:
    return [
        row
        for part in in_parts(ids)
        for row in session.scalars(select(TrialRow).where(TrialRow.id.in_(part)))
    ]


def _runs(master: EmbeddedMaster, ids: list[int]) -> list[dict[str, Any]]:
    """Return runs in this order."""
    with master.store.reading() as session:
        rows = _trials(session, ids)
        shapes = {shape["id"]: shape for shape in trial_shapes(session, rows)}
        experiments: dict[int, tuple[ExperimentRow, ProjectRow, WorkspaceRow]] = {}
        for part in in_parts(list({row.experiment_id for row in rows})):
            query = (
                select(ExperimentRow, ProjectRow, WorkspaceRow)
                .join(ProjectRow, ProjectRow.id == ExperimentRow.project_id)
                .join(WorkspaceRow, WorkspaceRow.id == ProjectRow.workspace_id)
            )
            for experiment, project, workspace in session.execute(query.where(ExperimentRow.id.in_(part))):
                experiments[experiment.id] = experiment, project, workspace
        with_search = {number: runs.is_of_search(session, one) for number, (one, *_) in experiments.items()}
    known = {
        row.id: _run(row, shapes[row.id], *experiments[row.experiment_id], with_search[row.experiment_id])
        for row in rows
    }
    return [known[number] for number in ids if number in known]


def _run(
    row: TrialRow,
    shape: dict[str, Any],
    experiment: ExperimentRow,
    project: ProjectRow,
    workspace: WorkspaceRow,
    is_multitrial: bool,
) -> dict[str, Any]:
    """Return a `FlatRun`."""
    searcher = experiment.config["searcher"]
    return {
        "id": row.id,
        "startTime": shape["startTime"],
        "endTime": shape["endTime"],
        "state": named(row.state),
        "labels": list(experiment.labels),
        "checkpointSize": shape["totalCheckpointSize"],
        "checkpointCount": shape["checkpointCount"],
        "searcherMetricValue": row.searcher_metric_value,
        "externalRunId": row.external_id,
        "hyperparameters": row.hparams,
        "summaryMetrics": row.summary_metrics,
        "userId": experiment.owner_id,
        "duration": int(shape["wallClockTime"] or 0),
        "projectId": project.id,
        "projectName": project.name,
        "workspaceId": workspace.id,
        "workspaceName": workspace.name,
        "parentArchived": project.is_archived or workspace.is_archived,
        "archived": experiment.archived,
        "localId": f"{project.key}-{row.id}",
        "metadata": row.run_metadata,
        "logPolicyMatched": row.log_policy_matched,
        "experiment": {
            "id": experiment.id,
            "name": experiment.name,
            "description": experiment.description,
            "searcherType": searcher["name"],
            "searcherMetric": searcher["metric"],
            "forkedFrom": experiment.parent_id,
            "externalExperimentId": experiment.external_id,
            "resourcePool": POOL,
            "progress": experiment.progress,
            "isMultitrial": is_multitrial,
            "unmanaged": experiment.is_unmanaged,
        },
    }
