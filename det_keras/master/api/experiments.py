"""Experiments: create, list, change state, change and delete."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Path, Query
from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.config import hide_secrets
from det_keras.master.checkpoints.verification import verification_shape
from det_keras.master.database.context_store import FileEntries
from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import ExperimentRow, TrialRow, UserRow, VerificationRow
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.experiments.base import Controller
from det_keras.master.experiments.experiments import Draft
from det_keras.master.experiments.finding import Wanted, also_shown, find_experiments
from det_keras.master.experiments.reporting import controller_of
from det_keras.master.serializers.experiments import (
    EXPERIMENT_STATES,
    LIST_COLUMNS,
    experiment_shape,
    listed_experiments,
    validated_shape,
)
from det_keras.master.serializers.trials import trial_shapes
from det_keras.master.server.bodies import MOST_FILE_BYTES
from det_keras.master.server.calls import CallerDep, MasterDep, PageDep, body, choice, choices, paged
from det_keras.master.server.responses import list_reply, reply
from det_keras.master.wire import Message
from det_keras.protocol import states
from det_keras.protocol.metrics import number
from det_keras.protocol.states import QUEUED, SCHEDULED, bare, named

router = APIRouter(prefix="/api/v1")

# The states that a list may show for rows with the stored state ACTIVE.
_SHOWN_ACTIVE = frozenset({"ACTIVE", "QUEUED", "PULLING", "STARTING", "RUNNING"})
_LIST_LIMIT = 100
# A statement may have about 30,000 parameters.
_IDS_PER_QUERY = 10_000
_LONGEST_EXTERNAL_ID = 255
_LONGEST_NAME = 1000
_MOST_LABELS = 1000

_Label = Annotated[str, Field(max_length=255)]

T = TypeVar("T")

_Key = Callable[[Any, dict[str, Any]], Any]
_EXPERIMENT_KEYS: dict[str, _Key] = {
    "ID": lambda row, shape: row.id,
    "DESCRIPTION": lambda row, shape: row.description,
    "NAME": lambda row, shape: row.name,
    "START_TIME": lambda row, shape: row.start_time,
    "END_TIME": lambda row, shape: shape["endTime"] or "",
    "STATE": lambda row, shape: shape["state"],
    "NUM_TRIALS": lambda row, shape: shape["numTrials"],
    "PROGRESS": lambda row, shape: row.progress,
    "USER": lambda row, shape: shape["username"],
    "FORKED_FROM": lambda row, shape: row.parent_id or 0,
    "RESOURCE_POOL": lambda row, shape: 0,
    "PROJECT_ID": lambda row, shape: row.project_id,
    "CHECKPOINT_SIZE": lambda row, shape: int(shape["checkpointSize"]),
    "CHECKPOINT_COUNT": lambda row, shape: shape["checkpointCount"],
    "SEARCHER_METRIC_VAL": lambda row, shape: shape["bestTrialSearcherMetric"],
}
_LATEST = "LATEST_VALIDATION_METRIC"
_TRIAL_KEYS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "ID": lambda shape: shape["id"],
    "START_TIME": lambda shape: shape["startTime"],
    "END_TIME": lambda shape: shape["endTime"] or "",
    "STATE": lambda shape: shape["state"],
    "BEST_VALIDATION_METRIC": lambda shape: shape["searcherMetricValue"],
    "BATCHES_PROCESSED": lambda shape: shape["totalBatchesProcessed"],
    "DURATION": lambda shape: shape["wallClockTime"],
    "RESTARTS": lambda shape: shape["restarts"],
    "CHECKPOINT_SIZE": lambda shape: int(shape["totalCheckpointSize"]),
    "LOG_RETENTION_DAYS": lambda shape: 0,
}


class CreateBody(Message):
    """An experiment to create."""

    config: str
    model_definition: FileEntries
    activate: bool = True
    validate_only: bool = False
    parent_id: int | None = None
    project_id: int | None = None
    template: str | None = None
    unmanaged: bool = False
    provenance: dict[str, Any] = Field(default_factory=dict)


class ContinueBody(Message):
    """An ended experiment to continue."""

    id: int
    override_config: str = ""


class ResourceChanges(Message):
    """Changes of an experiment's resources."""

    max_slots: int | None = None
    weight: float | None = None
    priority: int | None = None


class StorageChanges(Message):
    """Changes of an experiment's retention policy."""

    save_experiment_best: int | None = None
    save_trial_best: int | None = None
    save_trial_latest: int | None = None


class ReadTexts(Message):
    """The texts of an experiment that a client has read before it changed them."""

    name: str | None = None
    description: str | None = None
    notes: str | None = None


class PatchBody(Message):
    """Changes of an experiment; absent fields stay as they are."""

    name: Annotated[str, Field(max_length=_LONGEST_NAME)] | None = None
    description: str | None = None
    labels: Annotated[list[_Label], Field(max_length=_MOST_LABELS)] | None = None
    notes: str | None = None
    resources: ResourceChanges | None = None
    checkpoint_storage: StorageChanges | None = None
    # Not in Determined's API: nothing is changed if one of these texts is another one by now.
    if_unchanged: ReadTexts | None = None


@router.post("/experiments")
def create(
    master: MasterDep,
    caller: CallerDep,
    request: Annotated[CreateBody, body(CreateBody, most_bytes=MOST_FILE_BYTES)],
) -> Response:
    """Create an experiment, or only validate it."""
    if request.validate_only:
        return _validated(master, caller.user_id, request)
    if request.unmanaged:
        return _created_unmanaged(master, caller.user_id, request, None)
    draft = Draft(
        request.config,
        request.model_definition,
        request.activate,
        request.parent_id,
        request.provenance,
        request.project_id,
        request.template,
    )
    experiment_id, notices = master.experiments.create(caller.user_id, draft)
    return reply({**_detail(master, experiment_id), "warnings": [], "notices": list(notices)})


@router.post("/experiments/continue")
def continue_(master: MasterDep, request: Annotated[ContinueBody, body(ContinueBody)]) -> Response:
    """Continue an experiment that has ended."""
    notices = master.experiments.continue_(request.id, request.override_config)
    shape = _detail(master, request.id)["experiment"]
    return reply({"experiment": shape, "warnings": [], "notices": list(notices)})


@router.put("/experiments/by-external-id/{external_id:path}")
def put(
    master: MasterDep,
    caller: CallerDep,
    external_id: Annotated[str, Path(max_length=_LONGEST_EXTERNAL_ID)],
    request: Annotated[CreateBody, body(CreateBody, most_bytes=MOST_FILE_BYTES)],
) -> Response:
    """Create an unmanaged experiment, or return the one with this external id."""
    if not request.unmanaged:
        raise InvalidArgumentError("Only unmanaged experiments have external ids.")
    return _created_unmanaged(master, caller.user_id, request, external_id)


@router.get("/experiments")
def listing(
    master: MasterDep,
    page: PageDep,
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_ID",
    archived: Annotated[bool | None, Query(description="Only archived, or only other, experiments.")] = None,
    users: Annotated[list[str], Query(description="Only experiments of users with these names.")] = [],  # noqa: B006 - FastAPI copies it
    user_ids: Annotated[
        list[int], Query(alias="userIds", description="Only experiments of users with these numbers.")
    ] = [],  # noqa: B006
    states: Annotated[
        list[str], Query(description="Only experiments in these states, such as `STATE_ACTIVE`.")
    ] = [],  # noqa: B006
    labels: Annotated[list[str], Query(description="Only experiments with all of these.")] = [],  # noqa: B006
    name: Annotated[str, Query(description="Part of the name, in upper or lower case.")] = "",
    description: Annotated[str, Query(description="Part of the description, in upper or lower case.")] = "",
    project_id: Annotated[int, Query(alias="projectId", description="Only experiments of this project.")] = 0,
    included: Annotated[
        list[int], Query(alias="experimentIdFilter.incl", description="Only these ids.")
    ] = [],  # noqa: B006
    excluded: Annotated[
        list[int], Query(alias="experimentIdFilter.notIn", description="Without these ids.")
    ] = [],  # noqa: B006
    above: Annotated[
        int | None, Query(alias="experimentIdFilter.gt", description="Only ids above it.")
    ] = None,
    at_least: Annotated[
        int | None, Query(alias="experimentIdFilter.gte", description="Only this id and above.")
    ] = None,
    below: Annotated[
        int | None, Query(alias="experimentIdFilter.lt", description="Only ids below it.")
    ] = None,
    at_most: Annotated[
        int | None, Query(alias="experimentIdFilter.lte", description="Only this id and below.")
    ] = None,
) -> Response:
    """List experiments."""
    shown = choices(states, "STATE_", EXPERIMENT_STATES)
    bounds = [bound for bound in (at_least, None if above is None else above + 1) if bound is not None]
    ends = [bound for bound in (at_most, None if below is None else below - 1) if bound is not None]
    wanted = Wanted(
        name=name,
        description=description,
        labels=labels,
        is_archived=archived,
        states=shown,
        users=users,
        user_ids=user_ids,
        project_id=project_id,
        included=included,
        excluded=excluded,
        least=max(bounds, default=None),
        most=min(ends, default=None),
    )
    with master.store.reading() as session:
        ids = find_experiments(session, wanted)
        order = _sort_name(sort_by, _EXPERIMENT_KEYS)
        if order == "ID" and not shown:
            # The page is chosen by id first, so that only its experiments are read completely.
            ids.sort(reverse=bool(page.is_descending))
            present = functools.partial(_texts, session)
            return list_reply(paged("experiments", ids, page, present, _LIST_LIMIT))
        rows = _rows(session, ids)
        pairs = list(zip(rows, listed_experiments(session, rows), strict=True))
    key = _EXPERIMENT_KEYS[order]
    as_shown = also_shown(shown)
    pairs = [pair for pair in pairs if not shown or bare(pair[1].shape["state"]) in as_shown]
    pairs = _sorted(
        pairs,
        lambda pair: key(pair[0], pair[1].shape),
        lambda pair: pair[0].id,
        is_descending=bool(page.is_descending),
    )
    return list_reply(
        paged("experiments", pairs, page, lambda part: [shown.to_json() for _, shown in part], _LIST_LIMIT)
    )


@router.get("/experiments/{experiment_id}")
def detail(master: MasterDep, experiment_id: int) -> Response:
    """Describe an experiment."""
    return reply(_detail(master, experiment_id))


@router.get("/experiments/{experiment_id}/verification")
def verification(master: MasterDep, experiment_id: int) -> Response:
    """Return whether a copy of the first trial resumed exactly; null if none was requested."""
    with master.store.reading() as session:
        find_experiment(session, experiment_id)
        return reply({"verification": verification_shape(session.get(VerificationRow, experiment_id))})


@router.patch("/experiments/{experiment_id}")
def change(master: MasterDep, experiment_id: int, request: Annotated[PatchBody, body(PatchBody)]) -> Response:
    """Change an experiment's name, description, labels, notes, resources or number of kept checkpoints."""
    master.experiments.change(experiment_id, request.model_dump(exclude_none=True))
    return reply({"experiment": _detail(master, experiment_id)["experiment"]})


@router.delete("/experiments/{experiment_id}")
def delete(master: MasterDep, experiment_id: int) -> Response:
    """Delete an experiment, in the background."""
    master.experiments.delete(experiment_id)
    return reply()


@router.post("/experiments/{experiment_id}/activate")
def activate(master: MasterDep, experiment_id: int) -> Response:
    """Activate an experiment."""
    return _move(master, experiment_id, lambda controller: controller.activate())


@router.post("/experiments/{experiment_id}/pause")
def pause(master: MasterDep, experiment_id: int) -> Response:
    """Pause an experiment: its trials save checkpoints and stop."""
    return _move(master, experiment_id, lambda controller: controller.pause())


@router.post("/experiments/{experiment_id}/cancel")
def cancel(master: MasterDep, experiment_id: int) -> Response:
    """Cancel an experiment; its trials may save a last checkpoint."""
    return _move(master, experiment_id, lambda controller: controller.stop(states.STOPPING_CANCELED))


@router.post("/experiments/{experiment_id}/kill")
def kill(master: MasterDep, experiment_id: int) -> Response:
    """Kill an experiment."""
    return _move(master, experiment_id, lambda controller: controller.stop(states.STOPPING_KILLED))


@router.post("/experiments/{experiment_id}/archive")
def archive(master: MasterDep, experiment_id: int) -> Response:
    """Archive an experiment."""
    master.experiments.archive(experiment_id, archived=True)
    return reply()


@router.post("/experiments/{experiment_id}/unarchive")
def unarchive(master: MasterDep, experiment_id: int) -> Response:
    """Unarchive an experiment."""
    master.experiments.archive(experiment_id, archived=False)
    return reply()


@router.put("/experiments/{experiment_id}/labels/{label:path}")
def add_label(master: MasterDep, experiment_id: int, label: str) -> Response:
    """Add a label."""
    return _relabel(master, experiment_id, lambda labels: labels | {label})


@router.delete("/experiments/{experiment_id}/labels/{label:path}")
def remove_label(master: MasterDep, experiment_id: int, label: str) -> Response:
    """Remove a label."""
    return _relabel(master, experiment_id, lambda labels: labels - {label})


@router.get("/experiments/{experiment_id}/model_def")
def model_definition(master: MasterDep, experiment_id: int) -> Response:
    """Return an experiment's code."""
    with master.store.reading() as session:
        context = find_experiment(session, experiment_id).context
    return reply({"b64Tgz": master.bundles.encoded(context)})


@router.get("/experiments/{experiment_id}/trials")
def trials(
    master: MasterDep,
    experiment_id: int,
    page: PageDep,
    sort_by: Annotated[str, Query(alias="sortBy")] = "SORT_BY_ID",
    states: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """List the trials of an experiment."""
    shown = also_shown(choices(states, "STATE_", EXPERIMENT_STATES))
    with master.store.reading() as session:
        metric = config_of(find_experiment(session, experiment_id)).searcher.metric
        of_experiment = select(TrialRow).where(TrialRow.experiment_id == experiment_id)
        rows = session.scalars(of_experiment.order_by(TrialRow.id)).all()
        shapes = trial_shapes(session, rows)
    shapes = [shape for shape in shapes if not shown or bare(shape["state"]) in shown]
    keys = {**_TRIAL_KEYS, _LATEST: lambda shape: _latest(shape, metric)}
    key = keys[_sort_name(sort_by, keys)]
    shapes = _sorted(shapes, key, lambda shape: shape["id"], is_descending=bool(page.is_descending))
    return reply(paged("trials", shapes, page, list, _LIST_LIMIT))


def _rows(session: Session, ids: Sequence[int]) -> list[Any]:
    """Return the columns `LIST_COLUMNS` of experiments, in the order of `ids`."""
    found: dict[int, Any] = {}
    for start in range(0, len(ids), _IDS_PER_QUERY):
        wanted = ExperimentRow.id.in_(ids[start : start + _IDS_PER_QUERY])
        rows = session.connection().execute(select(*LIST_COLUMNS).where(wanted))
        found.update({row.id: row for row in rows.all()})
    return [found[experiment_id] for experiment_id in ids]


def _texts(session: Session, ids: Sequence[int]) -> list[bytes]:
    return [listed.to_json() for listed in listed_experiments(session, _rows(session, ids))]


def _detail(master: EmbeddedMaster, experiment_id: int) -> dict[str, Any]:
    with master.store.reading() as session:
        row = find_experiment(session, experiment_id)
        shape = experiment_shape(session, row)
    is_waiting = row.state == states.ACTIVE and shape["state"] == named(QUEUED)
    summary = {"jobsAhead": -1, "state": named(QUEUED) if is_waiting else named(SCHEDULED)}
    shape["waitReason"] = "" if row.state in states.TERMINAL else master.queue.wait_reason(row.job_id)
    return {
        "experiment": shape,
        "config": shape["config"],
        "jobSummary": None if row.state in states.TERMINAL else summary,
    }


def _validated(master: EmbeddedMaster, owner_id: int, request: CreateBody) -> Response:
    loaded, place = master.experiments.load_placed(
        request.config, request.project_id, request.parent_id, request.template
    )
    with master.store.reading() as session:
        owner = session.get(UserRow, owner_id)
        assert owner is not None
        text = hide_secrets(loaded.original)
        shape = validated_shape(session, loaded.config, text, owner, place.project_id)
    return reply(
        {"experiment": shape, "config": shape["config"], "warnings": [], "notices": list(loaded.notices)}
    )


def _created_unmanaged(
    master: EmbeddedMaster, owner_id: int, request: CreateBody, external_id: str | None
) -> Response:
    experiment_id, notices = master.experiments.create_unmanaged(
        owner_id, request.config, external_id, request.project_id
    )
    return reply({**_detail(master, experiment_id), "warnings": [], "notices": list(notices)})


def _move(
    master: EmbeddedMaster,
    experiment_id: int,
    action: Callable[[Controller], None],
) -> Response:
    with master.store.writing() as tx:
        action(controller_of(tx, find_experiment(tx, experiment_id)))
    return reply()


def _relabel(
    master: EmbeddedMaster, experiment_id: int, change_labels: Callable[[set[str]], set[str]]
) -> Response:
    return reply({"labels": master.experiments.relabel(experiment_id, change_labels)})


def _sort_name(value: str, known: dict[str, Any]) -> str:
    if value in ("", "SORT_BY_UNSPECIFIED"):
        return "ID"
    return choice(value, "SORT_BY_", list(known))


def _sorted(
    rows: Sequence[T], key: Callable[[T], Any], number_of: Callable[[T], int], *, is_descending: bool
) -> list[T]:
    """Return rows in order; rows without a value are last in both directions."""
    known = [row for row in rows if key(row) is not None]
    known.sort(key=lambda row: (key(row), number_of(row)), reverse=is_descending)
    return known + [row for row in rows if key(row) is None]


def _latest(shape: dict[str, Any], metric: str) -> float | None:
    """Return the searcher's metric of a trial's latest validation; None if it is missing or not finite."""
    latest = shape["latestValidation"]
    value = None if latest is None else number(latest["metrics"]["avgMetrics"].get(metric))
    return value if value is not None and math.isfinite(value) else None
