"""Checkpoints: report, list, describe, download and delete."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Annotated, Any, cast

from fastapi import APIRouter, Depends, Query, Request
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response, StreamingResponse

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError
from det_keras.master.checkpoints import orphans
from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.checkpoints.retention import Retention
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import CheckpointRow, TrialRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import ApiError, InvalidArgumentError, NotFoundError
from det_keras.master.registry.versions import refuse_registered
from det_keras.master.serializers.checkpoints import checkpoint_shapes, doomed_shape
from det_keras.master.server.calls import (
    MasterDep,
    Page,
    PageDep,
    body,
    choice,
    choices,
    open_download,
    paged,
)
from det_keras.master.server.responses import error_reply, reply
from det_keras.master.wire import Message, from_timestamp
from det_keras.protocol.metrics import rank
from det_keras.protocol.states import COMPLETED, named
from det_keras.storage.manifest import MANIFEST_NAME

router = APIRouter()

_STATES = ("UNSPECIFIED", "ACTIVE", "COMPLETED", "ERROR", "DELETED", "PARTIALLY_DELETED")
_SORTS = ("UNSPECIFIED", "UUID", "TRIAL_ID", "BATCH_NUMBER", "END_TIME", "STATE", "SEARCHER_METRIC")
_ARCHIVES = {
    "application/gzip": "w:gz",
    "application/x-gtar": "w",
    "application/x-tar": "w",
    "application/zip": "zip",
}
_CHUNK_BYTES = 1 << 20
# A checkpoint is reported with the names of all of its files.
_MOST_LIST_BYTES = 16 << 20

StatesQuery = Annotated[list[str], Query(description="Only checkpoints in these states; empty for all.")]
SortQuery = Annotated[str, Query(alias="sortByAttr", description="Such as `SORT_BY_BATCH_NUMBER`.")]
MetricSortQuery = Annotated[
    str, Query(alias="sortByMetric", description="Sort by this validation metric, best first by default.")
]


class ReportBody(Message):
    """A checkpoint whose files are stored."""

    without_effect = frozenset({"training"})

    uuid: str
    task_id: str
    allocation_id: str = ""
    storage_id: int | None = None
    state: str = named(COMPLETED)
    report_time: str | None = None
    resources: dict[str, int] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)


class ResourcesLeft(Message):
    """The remaining files."""

    resources: dict[str, int] = Field(default_factory=dict)


class CheckpointPatch(Message):
    """Changes of one checkpoint."""

    uuid: str
    resources: ResourcesLeft | None = None


class PatchBody(Message):
    """Changes of checkpoints."""

    checkpoints: list[CheckpointPatch] = Field(default_factory=list)


class CheckpointMetadata(Message):
    """The new metadata of a checkpoint."""

    # Clients of Determined send the whole checkpoint; only its metadata can be changed.
    without_effect = frozenset(
        {"allocationId", "reportTime", "resources", "state", "storageId", "taskId", "training", "uuid"}
    )

    metadata: dict[str, Any] = Field(default_factory=dict)


class MetadataBody(Message):
    """New metadata."""

    checkpoint: CheckpointMetadata = Field(default_factory=CheckpointMetadata)


class DeleteBody(Message):
    """Checkpoints to delete, or files of them."""

    checkpoint_uuids: list[str] = Field(default_factory=list)
    checkpoint_globs: list[str] = Field(default_factory=list)


class OrphansBody(Message):
    """A search for what unfinished checkpoints left."""

    min_age_s: float = Field(default=24 * 3600.0, ge=0.0, allow_inf_nan=False)
    dry_run: bool = True


class _UnsupportedError(ApiError):
    status, code, reason = 415, 3, "InvalidArgument"


@router.post("/api/v1/checkpoints")
def report(
    master: MasterDep, request: Annotated[ReportBody, body(ReportBody, most_bytes=_MOST_LIST_BYTES)]
) -> Response:
    """Record a checkpoint."""
    if choice(request.state, "STATE_", _STATES) not in ("COMPLETED", "UNSPECIFIED"):
        raise InvalidArgumentError(f"Only complete checkpoints can be reported, received {request.state!r}.")
    sent = checkpoints.CheckpointReport(
        uuid=request.uuid,
        task_id=request.task_id,
        allocation_id=request.allocation_id,
        storage_id=request.storage_id,
        resources=request.resources,
        metadata=request.metadata,
        time=None if request.report_time is None else from_timestamp(request.report_time),
    )
    with master.store.writing() as tx:
        checkpoints.report_checkpoint(tx, sent)
    return reply()


@router.patch("/api/v1/checkpoints")
def patch(
    master: MasterDep, request: Annotated[PatchBody, body(PatchBody, most_bytes=_MOST_LIST_BYTES)]
) -> Response:
    """Record that files of checkpoints were deleted."""
    with master.store.writing() as tx:
        for change in request.checkpoints:
            row = checkpoints.find_checkpoint(tx, change.uuid)
            if change.resources is not None:
                checkpoints.replace_resources(row, change.resources.resources)
    return reply()


@router.delete("/api/v1/checkpoints")
def delete(
    master: MasterDep, request: Annotated[DeleteBody, body(DeleteBody, most_bytes=_MOST_LIST_BYTES)]
) -> Response:
    """Delete all files of checkpoints, in the background."""
    with master.store.writing() as tx:
        refuse_registered(tx, request.checkpoint_uuids, "Nothing was deleted")
        checkpoints.request_deletion(tx, request.checkpoint_uuids, ["**/*"])
    return reply()


@router.post("/api/v1/checkpoints/rm")
def remove_files(
    master: MasterDep, request: Annotated[DeleteBody, body(DeleteBody, most_bytes=_MOST_LIST_BYTES)]
) -> Response:
    """Delete some files of checkpoints, in the background."""
    with master.store.writing() as tx:
        if request.checkpoint_globs:
            refuse_registered(tx, request.checkpoint_uuids, "Nothing was deleted")
        checkpoints.request_deletion(tx, request.checkpoint_uuids, request.checkpoint_globs)
    return reply()


@router.post("/api/v1/checkpoints/orphans")
def remove_orphans(master: MasterDep, request: Annotated[OrphansBody, body(OrphansBody)]) -> Response:
    """Find what killed tasks left in all storages of experiments, and remove it unless it is a dry run."""
    with master.store.reading() as session:
        sections = orphans.known_storages(session, master.default_storage)
    cluster_id = master.identity.cluster_id
    swept = orphans.sweep(master.store, sections, cluster_id, request.min_age_s, dry_run=request.dry_run)
    return reply(
        {
            "orphans": [
                {"name": o.name, "uuid": o.uuid, "sizeBytes": str(o.size_bytes), "ageS": o.age_s}
                for o in swept.orphans
            ],
            "problems": swept.problems,
        }
    )


@router.get("/api/v1/checkpoints/{uuid}")
def detail(master: MasterDep, uuid: str) -> Response:
    """Describe a checkpoint."""
    return reply({"checkpoint": _detail(master, uuid)})


@router.get("/api/v1/checkpoints/{uuid}/files")
def files(master: MasterDep, uuid: str) -> Response:
    """List the files of a checkpoint with their digests, and its place in the storage.

    `problem` says why the digests are unknown, such as a storage that cannot be read.
    """
    with master.store.reading() as session:
        row = checkpoints.find_checkpoint(session, uuid)
        section = checkpoints.storage_section(session, row)
    found = _stored_files(section, row)
    return reply({"storageType": section["type"], **found})


@router.post("/api/v1/checkpoints/{uuid}/metadata")
def replace_metadata(
    master: MasterDep, uuid: str, request: Annotated[MetadataBody, body(MetadataBody)]
) -> Response:
    """Replace the metadata of a checkpoint."""
    with master.store.writing() as tx:
        checkpoints.find_checkpoint(tx, uuid).meta = request.checkpoint.metadata
    return reply({"checkpoint": _detail(master, uuid)})


@router.get("/api/v1/experiments/{experiment_id}/checkpoints")
def of_experiment(
    master: MasterDep,
    experiment_id: int,
    page: PageDep,
    states: StatesQuery = [],  # noqa: B006 - FastAPI copies it
    sort_by: SortQuery = "",
    sort_by_metric: MetricSortQuery = "",
) -> Response:
    """List the checkpoints of an experiment."""
    with master.store.reading() as session:
        find_experiment(session, experiment_id)
        query = select(TrialRow.id).where(TrialRow.experiment_id == experiment_id)
        trial_ids = session.scalars(query).all()
        return _listing(session, experiment_id, trial_ids, states, sort_by, sort_by_metric, page)


@router.get("/api/v1/trials/{trial_id}/checkpoints")
def of_trial(
    master: MasterDep,
    trial_id: int,
    page: PageDep,
    states: StatesQuery = [],  # noqa: B006
    sort_by: SortQuery = "",
    sort_by_metric: MetricSortQuery = "",
) -> Response:
    """List the checkpoints of a trial."""
    with master.store.reading() as session:
        trial = find_trial(session, trial_id)
        return _listing(session, trial.experiment_id, [trial_id], states, sort_by, sort_by_metric, page)


@router.get("/experiments/{experiment_id}/preview_gc")
def preview_pruning(
    master: MasterDep,
    experiment_id: int,
    experiment_best: Annotated[
        int,
        Query(alias="save_experiment_best", ge=0, description="Best checkpoints of the experiment to keep."),
    ] = 0,
    trial_best: Annotated[
        int, Query(alias="save_trial_best", ge=0, description="Best checkpoints of each trial to keep.")
    ] = 1,
    trial_latest: Annotated[
        int, Query(alias="save_trial_latest", ge=0, description="Latest checkpoints of each trial to keep.")
    ] = 1,
) -> Response:
    """List the checkpoints that a retention policy would delete."""
    retention = Retention(experiment_best, trial_best, trial_latest)
    with master.store.reading() as session:
        experiment = find_experiment(session, experiment_id)
        uuids = checkpoints.superfluous(session, experiment, retention)
        found = select(CheckpointRow).where(CheckpointRow.uuid.in_(uuids))
        rows = session.scalars(found.order_by(CheckpointRow.uuid)).all()
        return reply(
            {
                "checkpoints": [doomed_shape(shape) for shape in checkpoint_shapes(session, rows)],
                "metric_name": config_of(experiment).searcher.metric,
            }
        )


@router.get("/checkpoints/{uuid}", dependencies=[Depends(open_download)])
def download(master: MasterDep, request: Request, uuid: str) -> Response:
    """Return the files of a checkpoint as one archive, of the kind in the Accept header."""
    accepted = request.headers.get("accept", "").split(",")[0].split(";")[0].strip()
    mode = _ARCHIVES.get(accepted)
    if mode is None:
        wanted = ", ".join(_ARCHIVES)
        return error_reply(request.url.path, _UnsupportedError(f"`Accept` must be one of {wanted}."))
    return archive_reply(master, uuid, accepted)


def archive_reply(master: EmbeddedMaster, uuid: str, media_type: str) -> Response:
    """Return the files of a checkpoint as one archive.

    Args:
        master: the master that has the checkpoint.
        uuid: UUID of the checkpoint.
        media_type: kind of the archive, such as ``application/zip``.

    Raises:
        NotFoundError: the checkpoint does not exist, or its files were deleted.
    """
    mode = _ARCHIVES[media_type]
    with master.store.reading() as session:
        row = checkpoints.find_checkpoint(session, uuid)
        section = checkpoints.storage_section(session, row)
    if row.state not in (checkpoints.COMPLETED, checkpoints.PARTIALLY_DELETED):
        raise NotFoundError(f"checkpoint '{uuid}' is {row.state}")
    try:
        place = storage.from_config(section)
        with place.raw_path(row.uuid) as directory:
            # Only the listed files: the directory also contains files of the storage itself.
            archive = _archived(directory, sorted(place.list_files(row.uuid)), mode)
    except (CheckpointError, ConfigError, OSError) as error:
        raise NotFoundError(str(error)) from error
    return StreamingResponse(_chunks(archive), media_type=media_type)


def _detail(master: EmbeddedMaster, uuid: str) -> dict[str, Any]:
    with master.store.reading() as session:
        (shape,) = checkpoint_shapes(session, [checkpoints.find_checkpoint(session, uuid)])
        return shape


def _stored_files(section: Mapping[str, Any], row: CheckpointRow) -> dict[str, Any]:
    location, manifest, problem = "", b"", ""
    hashes: dict[str, Any] = {}
    try:
        place = storage.from_config(section)
        location = place.location(row.uuid)
        if row.state in (checkpoints.COMPLETED, checkpoints.PARTIALLY_DELETED):
            manifest = place.manifest(row.uuid)
            hashes = {name: entry["sha256"] for name, entry in json.loads(manifest)["files"].items()}
    except (CheckpointError, ConfigError, OSError) as error:
        problem = str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        problem = "The manifest cannot be read."
    digest = hashlib.sha256(manifest).hexdigest() if manifest else None
    return {
        "location": location,
        "manifestSha256": digest,
        "problem": problem,
        "files": [
            {"path": path, "size": str(size), "sha256": digest if path == MANIFEST_NAME else hashes.get(path)}
            for path, size in sorted(row.resources.items())
            if not path.endswith("/")
        ],
    }


def _listing(
    session: Session,
    experiment_id: int,
    trial_ids: Sequence[int],
    states: Sequence[str],
    sort_by: str,
    metric: str,
    page: Page,
) -> Response:
    query = select(CheckpointRow).where(CheckpointRow.trial_id.in_(trial_ids))
    wanted = choices(states, "STATE_", _STATES)
    if wanted:
        query = query.where(CheckpointRow.state.in_(wanted))
    shapes = checkpoint_shapes(session, session.scalars(query.order_by(CheckpointRow.uuid)).all())
    name = choice(sort_by or "SORT_BY_UNSPECIFIED", "SORT_BY_", _SORTS)
    if metric or name == "SEARCHER_METRIC":
        smaller_is_better = config_of(find_experiment(session, experiment_id)).searcher.smaller_is_better
        _sort_by_metric(shapes, metric, page.is_descending, smaller_is_better=smaller_is_better)
    else:
        shapes.sort(key=lambda shape: _sort_key(shape, name), reverse=bool(page.is_descending))
    return reply(paged("checkpoints", shapes, page, list))


def _sort_key(shape: dict[str, Any], name: str) -> Any:
    steps = shape["metadata"]["steps_completed"]
    keys: dict[str, Any] = {
        "UUID": (shape["uuid"],),
        "BATCH_NUMBER": (steps, shape["reportTime"]),
        "END_TIME": (shape["reportTime"],),
        "STATE": (shape["state"], shape["uuid"]),
    }
    return keys.get(name, (shape["training"]["trialId"], steps))


def _sort_by_metric(
    shapes: list[dict[str, Any]], metric: str, is_descending: bool | None, *, smaller_is_better: bool
) -> None:
    """Sort by a validation metric: best first if no order is given; checkpoints without the metric last."""
    descending = (not smaller_is_better) if is_descending is None else is_descending

    def key(shape: dict[str, Any]) -> tuple[tuple[bool, float], int]:
        training = shape["training"]
        value = (
            training["validationMetrics"]["avgMetrics"].get(metric) if metric else training["searcherMetric"]
        )
        return rank(value, smaller_is_better=not descending), training["trialId"]

    shapes.sort(key=key)


def _archived(directory: Path, names: Sequence[str], mode: str) -> IO[bytes]:
    """Return an archive of files below `directory` as a temporary file, deleted when it is closed."""
    file = cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115 - closed when it is sent
    if mode == "zip":
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name in names:
                archive.write(directory / name, name)
    else:
        with tarfile.open(fileobj=file, mode=mode) as tar:  # type: ignore[call-overload]  # one of two literals
            for name in names:
                tar.add(directory / name, name, recursive=False)
    file.seek(0, os.SEEK_SET)
    return file


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with contextlib.closing(file):
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
