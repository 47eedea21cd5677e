"""The model registry: models, their versions and aliases, and what trials use of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.checkpoints.records import find_checkpoint
from det_keras.master.database.models import MetricRow, ModelRow, ModelVersionRow, UserRow, WorkspaceRow
from det_keras.master.errors import NotFoundError
from det_keras.master.registry import models, sources, versions
from det_keras.master.serializers.registry import model_shapes, version_shapes
from det_keras.master.serializers.trials import REPORT_COLUMNS, metrics_reports
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, choice, open_download, paged
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message

router = APIRouter(prefix="/api/v1")

_ORDERS = {
    "UNSPECIFIED": "id",
    "NAME": "name",
    "DESCRIPTION": "description",
    "CREATION_TIME": "creationTime",
    "LAST_UPDATED_TIME": "lastUpdatedTime",
    "NUM_VERSIONS": "numVersions",
    "WORKSPACE": "workspaceId",
}
_SOURCE_KINDS = ("UNSPECIFIED", *sources.KINDS)

KindQuery = Annotated[str, Query(alias="trialSourceInfoType", description="Why a trial uses it.")]
GroupQuery = Annotated[str, Query(alias="metricGroup", description="Only this group of metrics.")]


class DescribedBody(Message):
    """What users write about a model or a version; absent fields stay as they are."""

    name: str | None = None
    notes: str | None = None
    labels: list[str] | None = None
    metadata: dict[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields by the names of columns."""
        given = self.model_dump()
        given["meta"] = given.pop("metadata")
        return given


class ReadTexts(Message):
    """Texts of a model as the caller has read them."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None


class ModelBody(DescribedBody):
    """A model to create, or its changes."""

    description: str | None = None
    workspace_id: int = 0
    workspace_name: str = ""
    # Not in Determined's API: nothing is changed if one of these texts is another one by now.
    if_unchanged: ReadTexts | None = None


class VersionBody(DescribedBody):
    """The changes of a version."""

    comment: str | None = None


class NewVersionBody(VersionBody):
    """A checkpoint to register as the next version."""

    # As in the address.
    without_effect = frozenset({"modelName"})

    checkpoint_uuid: str
    # Not in Determined's API, as what follows.
    aliases: list[str] = Field(default_factory=list)
    # Creates the model if there is none of this name.
    create_model: bool = False


class AliasBody(Message):
    """The version that gets an alias."""

    version: int


class MoveBody(Message):
    """The destination of a model."""

    without_effect = frozenset({"modelName"})

    destination_workspace_id: int


class SourceInfo(Message):
    """What a trial uses."""

    trial_id: int
    checkpoint_uuid: str
    trial_source_info_type: str
    model_id: int | None = None
    model_version: int | None = None


class SourceBody(Message):
    """A report of what a trial uses."""

    trial_source_info: SourceInfo


@router.get("/models")
def listing(
    master: MasterDep,
    page: PageDep,
    name: Annotated[str, Query(description="Part of the name, in upper or lower case.")] = "",
    description: Annotated[str, Query(description="Part of the description.")] = "",
    model_id: Annotated[int, Query(alias="id", description="Only the model with this number.")] = 0,
    archived: Annotated[bool | None, Query(description="Only archived, or only other models.")] = None,
    labels: Annotated[list[str], Query(description="Only models with all these labels.")] = [],  # noqa: B006 - FastAPI copies it
    users: Annotated[list[str], Query(description="Only models of these users.")] = [],  # noqa: B006
    user_ids: Annotated[list[int], Query(alias="userIds")] = [],  # noqa: B006
    workspace_ids: Annotated[list[int], Query(alias="workspaceIds")] = [],  # noqa: B006
    workspace_names: Annotated[list[str], Query(alias="workspaceNames")] = [],  # noqa: B006
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List models."""
    order = _ORDERS[choice(sort_by, "SORT_BY_", list(_ORDERS))]
    query = select(ModelRow)
    for column, text in ((ModelRow.name, name), (ModelRow.description, description)):
        if text:
            query = query.where(func.lower(column).contains(text.lower(), autoescape=True))
    if model_id:
        query = query.where(ModelRow.id == model_id)
    if archived is not None:
        query = query.where(ModelRow.is_archived == archived)
    if users:
        of_users = select(UserRow.id).where(UserRow.username.in_([one.lower() for one in users]))
        query = query.where(ModelRow.owner_id.in_(of_users))
    if user_ids:
        query = query.where(ModelRow.owner_id.in_(user_ids))
    with master.store.reading() as session:
        places = [*workspace_ids, *_workspaces(session, workspace_names)]
        if places:
            query = query.where(ModelRow.workspace_id.in_(places))
        rows = [row for row in session.scalars(query) if set(labels) <= set(row.labels)]
        shapes = _sorted(model_shapes(session, rows), order, is_descending=bool(page.is_descending))
    return reply(paged("models", shapes, page, list))


@router.get("/model/labels")
def label_names(master: MasterDep, workspace_id: Annotated[int, Query(alias="workspaceId")] = 0) -> Response:
    """List the labels of all models, the most frequent first."""
    query = select(ModelRow.labels)
    if workspace_id:
        query = query.where(ModelRow.workspace_id == workspace_id)
    with master.store.reading() as session:
        counts = Counter(label for found in session.scalars(query) for label in found)
    return reply({"labels": sorted(counts, key=lambda label: (-counts[label], label))})


@router.post("/models")
def create(master: MasterDep, caller: CallerDep, request: Annotated[ModelBody, body(ModelBody)]) -> Response:
    """Create a model."""
    workspace = (request.workspace_id, request.workspace_name)
    with master.store.writing() as tx:
        row = models.create(tx, caller, request.name or "", request.fields(), workspace)
        return reply({"model": model_shapes(tx, [row])[0]})


@router.get("/models/{model}")
def detail(master: MasterDep, model: str) -> Response:
    """Describe a model, by its name or its number."""
    with master.store.reading() as session:
        return reply({"model": model_shapes(session, [models.find_model(session, model)])[0]})


@router.patch("/models/{model}")
def change(
    master: MasterDep, caller: CallerDep, model: str, request: Annotated[ModelBody, body(ModelBody)]
) -> Response:
    """Change a model, or move it to another workspace."""
    with master.store.writing() as tx:
        row = models.change(tx, model, request.fields())
        if request.workspace_id or request.workspace_name:
            models.move(tx, caller, str(row.id), (request.workspace_id, request.workspace_name))
        tx.flush()
        return reply({"model": model_shapes(tx, [row])[0]})


@router.delete("/models/{model}")
def delete(master: MasterDep, caller: CallerDep, model: str) -> Response:
    """Delete a model with its versions; their checkpoints stay."""
    with master.store.writing() as tx:
        models.delete(tx, caller, model)
    return reply()


@router.post("/models/{model}/archive")
def archive(master: MasterDep, caller: CallerDep, model: str) -> Response:
    """Archive a model, which takes no changes then."""
    with master.store.writing() as tx:
        models.archive(tx, caller, model, archived=True)
    return reply()


@router.post("/models/{model}/unarchive")
def unarchive(master: MasterDep, caller: CallerDep, model: str) -> Response:
    """Unarchive a model."""
    with master.store.writing() as tx:
        models.archive(tx, caller, model, archived=False)
    return reply()


@router.post("/models/{model}/move")
def move(
    master: MasterDep, caller: CallerDep, model: str, request: Annotated[MoveBody, body(MoveBody)]
) -> Response:
    """Move a model to another workspace."""
    with master.store.writing() as tx:
        models.move(tx, caller, model, (request.destination_workspace_id, ""))
    return reply()


@router.get("/models/{model}/versions")
def list_versions(
    master: MasterDep,
    page: PageDep,
    model: str,
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_UNSPECIFIED",
) -> Response:
    """List the versions of a model, newest first by default."""
    # Versions are created in the order of their numbers.
    choice(sort_by, "SORT_BY_", ("UNSPECIFIED", "VERSION", "CREATION_TIME"))
    with master.store.reading() as session:
        row = models.find_model(session, model)
        found = versions.versions_of(session, row)
        if page.is_descending is not False:
            found.reverse()
        listed = paged("modelVersions", found, page, lambda part: version_shapes(session, row, part))
        return reply({"model": model_shapes(session, [row])[0], **listed})


@router.post("/models/{model}/versions")
def register(
    master: MasterDep, caller: CallerDep, model: str, request: Annotated[NewVersionBody, body(NewVersionBody)]
) -> Response:
    """Register a checkpoint as the next version; one that is a version already is returned as it is."""
    with master.store.writing() as tx:
        row, version = versions.register(
            tx,
            caller,
            model,
            request.checkpoint_uuid,
            request.fields(),
            creates_model=request.create_model,
        )
        return reply({"modelVersion": version_shapes(tx, row, [version])[0]})


@router.get("/models/{model}/versions/{version}")
def version_detail(master: MasterDep, model: str, version: int) -> Response:
    """Describe a version."""
    with master.store.reading() as session:
        return reply({"modelVersion": _version(session, *versions.find_version(session, model, version))})


@router.patch("/models/{model}/versions/{version}")
def change_version(
    master: MasterDep, model: str, version: int, request: Annotated[VersionBody, body(VersionBody)]
) -> Response:
    """Change what is written about a version."""
    with master.store.writing() as tx:
        found = versions.change(tx, model, version, request.fields())
        return reply({"modelVersion": _version(tx, *found)})


@router.delete("/models/{model}/versions/{version}")
def delete_version(master: MasterDep, caller: CallerDep, model: str, version: int) -> Response:
    """Delete a version; its checkpoint stays."""
    with master.store.writing() as tx:
        versions.delete(tx, caller, model, version)
    return reply()


@router.get("/models/{model}/aliases/{alias}")
def aliased(master: MasterDep, model: str, alias: str) -> Response:
    """Describe the version that has an alias; `latest` is the newest one."""
    with master.store.reading() as session:
        return reply({"modelVersion": _version(session, *versions.find_by_alias(session, model, alias))})


@router.put("/models/{model}/aliases/{alias}")
def set_alias(
    master: MasterDep, model: str, alias: str, request: Annotated[AliasBody, body(AliasBody)]
) -> Response:
    """Give a version an alias, which the other versions of the model lose."""
    with master.store.writing() as tx:
        found = versions.set_alias(tx, model, alias, request.version)
        tx.flush()
        return reply({"modelVersion": _version(tx, *found)})


@router.delete("/models/{model}/aliases/{alias}")
def remove_alias(master: MasterDep, model: str, alias: str) -> Response:
    """Remove an alias."""
    with master.store.writing() as tx:
        versions.remove_alias(tx, model, alias)
    return reply()


@router.post("/trial-source-info")
def report_source(master: MasterDep, request: Annotated[SourceBody, body(SourceBody)]) -> Response:
    """Record which checkpoint, or which version of a model, a trial uses."""
    info = request.trial_source_info
    kind = choice(info.trial_source_info_type, "TRIAL_SOURCE_INFO_TYPE_", _SOURCE_KINDS)
    version = (info.model_id, info.model_version) if info.model_id and info.model_version else None
    with master.store.writing() as tx:
        sources.report(tx, info.trial_id, info.checkpoint_uuid, kind, version)
    return reply({"trialId": info.trial_id, "checkpointUuid": info.checkpoint_uuid})


@router.get("/models/{model}/versions/{version}/metrics", dependencies=[Depends(open_download)])
def version_metrics(
    master: MasterDep,
    model: str,
    version: int,
    group: GroupQuery = "",
    kind: KindQuery = "TRIAL_SOURCE_INFO_TYPE_UNSPECIFIED",
) -> Response:
    """List the reports of the trials that use a version."""
    wanted = _kind(kind)
    with master.store.reading() as session:
        row, found = versions.find_version(session, model, version)
        trial_ids = sources.users_of_version(session, row.id, found.version, wanted)
        return _reports(session, trial_ids, group)


@router.get("/checkpoints/{uuid}/metrics", dependencies=[Depends(open_download)])
def checkpoint_metrics(
    master: MasterDep,
    uuid: str,
    group: GroupQuery = "",
    kind: KindQuery = "TRIAL_SOURCE_INFO_TYPE_UNSPECIFIED",
) -> Response:
    """List the reports of the trials that use a checkpoint."""
    wanted = _kind(kind)
    with master.store.reading() as session:
        found = find_checkpoint(session, uuid)
        return _reports(session, sources.users_of_checkpoint(session, found.uuid, wanted), group)


def _kind(text: str) -> str | None:
    kind = choice(text, "TRIAL_SOURCE_INFO_TYPE_", _SOURCE_KINDS)
    return None if kind == _SOURCE_KINDS[0] else kind


def _workspaces(session: Session, names: Sequence[str]) -> list[int]:
    found = session.execute(select(WorkspaceRow.name, WorkspaceRow.id).where(WorkspaceRow.name.in_(names)))
    numbers = {str(name): int(number) for name, number in found}
    for name in names:
        if name not in numbers:
            raise NotFoundError(f"workspace {name!r} not found")
    return list(numbers.values())


def _version(session: Session, model: ModelRow, row: ModelVersionRow) -> dict[str, Any]:
    return version_shapes(session, model, [row])[0]


def _sorted(shapes: list[dict[str, Any]], order: str, *, is_descending: bool) -> list[dict[str, Any]]:
    def key(shape: dict[str, Any]) -> tuple[Any, int]:
        value = shape[order]
        return (value.lower() if isinstance(value, str) else value), shape["id"]

    return sorted(shapes, key=key, reverse=is_descending)


def _reports(session: Session, trial_ids: Sequence[int], group: str) -> Response:
    """Return all reports of trials, in the form of the stream of metrics."""
    parts = []
    for trial_id in trial_ids:
        live = (MetricRow.trial_id == trial_id) & MetricRow.archived.is_(False)
        live &= MetricRow.total_batches.is_not(None)
        groups = [group] if group else session.scalars(select(MetricRow.group).where(live).distinct()).all()
        for name in sorted(groups):
            query = select(*REPORT_COLUMNS).where(live, MetricRow.group == name)
            rows = session.execute(query.order_by(MetricRow.total_batches, MetricRow.id)).all()
            if rows:
                parts.append(metrics_reports(trial_id, name, rows))
    text = ",".join(parts)
    return Response(f'{{"metrics":[{text}]}}', media_type="application/json")
