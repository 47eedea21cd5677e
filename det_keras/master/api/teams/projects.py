"""Projects: create, list, change, move, archive and delete; their notes, and what is done with their experiments."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import Select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.database.lookups import find_experiment
from det_keras.master.database.models import ExperimentRow, ProjectRow
from det_keras.master.database.store import Transaction
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments import bulk
from det_keras.master.experiments.finding import Wanted, find_experiments
from det_keras.master.serializers.experiments import EXPERIMENT_STATES
from det_keras.master.serializers.teams import project_shapes
from det_keras.master.server.calls import CallerDep, MasterDep, Page, body, choice, choices, paged
from det_keras.master.server.responses import reply
from det_keras.master.tasks.log_retention import retain_experiment
from det_keras.master.teams import placing, projects
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")

_MOST_NOTES = 1000
_ORDERS = {
    "UNSPECIFIED": "id",
    "ID": "id",
    "CREATION_TIME": "id",
    "NAME": "name",
    "DESCRIPTION": "description",
    "LAST_EXPERIMENT_START_TIME": "lastExperimentStartedAt",
}


class ProjectBody(Message):
    """A project to create, or its changes; absent fields stay as they are."""

    name: str | None = None
    description: str | None = None
    key: str | None = None


class MoveBody(Message):
    """The destination of a project."""

    destination_workspace_id: int


class Note(Message):
    """A note about a project."""

    name: Annotated[str, Field(max_length=1000)] = ""
    contents: str = ""


class NotesBody(Message):
    """All notes about a project."""

    notes: Annotated[list[Note], Field(max_length=_MOST_NOTES)] = Field(default_factory=list)


class Filters(Message):
    """Which experiments of a project are meant."""

    name: str = ""
    description: str = ""
    labels: list[str] = Field(default_factory=list)
    archived: bool | None = None
    states: list[str] = Field(default_factory=list)
    user_ids: list[int] = Field(default_factory=list)
    excluded_experiment_ids: list[int] = Field(default_factory=list)


class BulkBody(Message):
    """The experiments with which something is done: by number, or all that filters find."""

    experiment_ids: list[int] = Field(default_factory=list)
    filters: Filters | None = None
    destination_project_id: int = 0


class RetainManyBody(BulkBody):
    """The experiments, and for how many days their logs are kept."""

    num_days: int


class MoveExperimentBody(Message):
    """The destination of an experiment."""

    destination_project_id: int


@router.post("/workspaces/{workspace_id}/projects")
def create(
    master: MasterDep,
    caller: CallerDep,
    workspace_id: int,
    request: Annotated[ProjectBody, body(ProjectBody)],
) -> Response:
    """Create a project in a workspace."""
    with master.store.writing() as tx:
        row = projects.create(
            tx,
            caller.user_id,
            workspace_id,
            request.name or "",
            description=request.description or "",
            key=request.key or "",
        )
        project_id = row.id
    return reply({"project": _detail(master, project_id)})


@router.get("/projects/key/{key}")
def by_key(master: MasterDep, key: str) -> Response:
    """Describe the project with a key."""
    with master.store.reading() as session:
        return reply({"project": project_shapes(session, [projects.find_by_key(session, key)])[0]})


@router.get("/projects/{project_id}")
def detail(master: MasterDep, project_id: int) -> Response:
    """Describe a project."""
    return reply({"project": _detail(master, project_id)})


@router.patch("/projects/{project_id}")
def change(
    master: MasterDep, caller: CallerDep, project_id: int, request: Annotated[ProjectBody, body(ProjectBody)]
) -> Response:
    """Change the name, the description or the key of a project."""
    with master.store.writing() as tx:
        projects.change(tx, caller, project_id, request.model_dump())
    return reply({"project": _detail(master, project_id)})


@router.delete("/projects/{project_id}")
def delete(master: MasterDep, caller: CallerDep, project_id: int) -> Response:
    """Delete a project with its experiments, in the background if it has any."""
    with master.store.writing() as tx:
        is_done = bulk.delete_project(tx, caller, project_id)
    return reply({"completed": is_done})


@router.post("/projects/{project_id}/archive")
def archive(master: MasterDep, caller: CallerDep, project_id: int) -> Response:
    """Archive a project, which takes no experiments then."""
    with master.store.writing() as tx:
        projects.archive(tx, caller, project_id, archived=True)
    return reply()


@router.post("/projects/{project_id}/unarchive")
def unarchive(master: MasterDep, caller: CallerDep, project_id: int) -> Response:
    """Unarchive a project."""
    with master.store.writing() as tx:
        projects.archive(tx, caller, project_id, archived=False)
    return reply()


@router.post("/projects/{project_id}/move")
def move(
    master: MasterDep, caller: CallerDep, project_id: int, request: Annotated[MoveBody, body(MoveBody)]
) -> Response:
    """Move a project to another workspace."""
    with master.store.writing() as tx:
        projects.move(tx, caller, project_id, request.destination_workspace_id)
    return reply()


@router.post("/projects/{project_id}/notes")
def add_note(master: MasterDep, project_id: int, request: Annotated[Note, body(Note)]) -> Response:
    """Add a note."""
    with master.store.writing() as tx:
        before = projects.find_project(tx, project_id).notes
        if len(before) >= _MOST_NOTES:
            raise InvalidArgumentError(f"A project may have {_MOST_NOTES} notes. Delete one first.")
        return reply({"notes": projects.set_notes(tx, project_id, [*before, request.model_dump()])})


@router.put("/projects/{project_id}/notes")
def set_notes(master: MasterDep, project_id: int, request: Annotated[NotesBody, body(NotesBody)]) -> Response:
    """Replace all notes."""
    with master.store.writing() as tx:
        notes = [note.model_dump() for note in request.notes]
        return reply({"notes": projects.set_notes(tx, project_id, notes)})


@router.post("/experiments/{experiment_id}/move")
def move_experiment(
    master: MasterDep, experiment_id: int, request: Annotated[MoveExperimentBody, body(MoveExperimentBody)]
) -> Response:
    """Move an experiment to another project."""
    with master.store.writing() as tx:
        placing.move(tx, find_experiment(tx, experiment_id), request.destination_project_id)
    return reply()


@router.post("/projects/{project_id}/experiments/{verb}")
def act(
    master: MasterDep, project_id: int, verb: str, request: Annotated[BulkBody, body(BulkBody)]
) -> Response:
    """Do something with experiments of a project, of any with 0; one at which it fails holds back no other."""
    return _acted(master, project_id, request, _action(verb, request))


def _acted(master: EmbeddedMaster, project_id: int, request: BulkBody, action: bulk.Action) -> Response:
    def in_project(tx: Transaction, row: ExperimentRow) -> None:
        if project_id and row.project_id != project_id:
            raise FailedPreconditionError(f"experiment '{row.id}' is not in project {project_id}")
        action(tx, row)

    with master.store.reading() as session:
        if project_id:
            projects.find_project(session, project_id)
        chosen = _chosen(session, project_id, request)
    results = bulk.apply_to_each(master.store, chosen, in_project)
    return reply({"results": [{"id": number, "error": error} for number, error in results]})


@router.put("/projects/{project_id}/experiments/retain_logs")
def retain_logs(
    master: MasterDep, project_id: int, request: Annotated[RetainManyBody, body(RetainManyBody)]
) -> Response:
    """Say for how many days the logs of experiments of a project are kept after their ends; -1 for ever."""
    return _acted(master, project_id, request, lambda tx, row: retain_experiment(tx, row, request.num_days))


def listed_projects(
    session: Session, query: Select[ProjectRow], page: Page, sort_by: str, archived: bool | None
) -> dict[str, Any]:
    """Return a page of the projects that a query finds.

    Args:
        session: to read with.
        query: finds them.
        page: the requested part.
        sort_by: with or without the prefix ``SORT_BY_``.
        archived: only archived, or only other ones; None for both.

    Raises:
        InvalidArgumentError: the order is unknown.
    """
    order = _ORDERS[choice(sort_by, "SORT_BY_", list(_ORDERS))]
    shapes = project_shapes(session, session.scalars(query.order_by(ProjectRow.id)).all())
    shapes = [shape for shape in shapes if archived in (None, shape["archived"])]
    shapes.sort(key=lambda shape: (shape[order] or "", shape["id"]), reverse=bool(page.is_descending))
    return paged("projects", shapes, page, list)


def _action(verb: str, request: BulkBody) -> bulk.Action:
    if verb == "move":
        return lambda tx, row: placing.move(tx, row, request.destination_project_id)
    if verb not in bulk.ACTIONS:
        names = ", ".join(sorted([*bulk.ACTIONS, "move"]))
        raise InvalidArgumentError(f"Experiments have no action {verb!r}: {names}.")
    return bulk.ACTIONS[verb]


def _chosen(session: Session, project_id: int, request: BulkBody) -> list[int]:
    """Return the numbers of the experiments that a request means."""
    filters = request.filters
    if filters is None:
        return request.experiment_ids
    wanted = Wanted(
        name=filters.name,
        description=filters.description,
        labels=filters.labels,
        is_archived=filters.archived,
        states=choices(filters.states, "STATE_", EXPERIMENT_STATES),
        user_ids=filters.user_ids,
        project_id=project_id,
        excluded=filters.excluded_experiment_ids,
    )
    return find_experiments(session, wanted)


def _detail(master: EmbeddedMaster, project_id: int) -> dict[str, Any]:
    with master.store.reading() as session:
        return project_shapes(session, [projects.find_project(session, project_id)])[0]
