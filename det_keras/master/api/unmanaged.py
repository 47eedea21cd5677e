"""Unmanaged trials, whose scripts users start themselves: create, start, heartbeat and end.

Runs of other trackers are such trials too. They arrive in parts, by calls that Determined's API does not have.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from pydantic import Field
from starlette.responses import Response

from det_keras.master.checkpoints.records import latest_checkpoint
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import ExperimentRow
from det_keras.master.database.store import Transaction
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments import importing
from det_keras.master.experiments.importing import ImportedEnd, ImportedPart
from det_keras.master.experiments.unmanaged import UnmanagedController
from det_keras.master.reports.columns import Columns
from det_keras.master.serializers.trials import TRIAL_STATES, trial_shapes
from det_keras.master.server.calls import CallerDep, MasterDep, body, choice
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message, from_timestamp
from det_keras.protocol.imports import FLOATS, INTEGERS, MOST_FOUND, MOST_REPORTS, ROWS, unpacked

router = APIRouter(prefix="/api/v1")

_MOST_PART_BYTES = 16 << 20
# Of 8 bytes each, in base64.
_LONGEST_COLUMN = 11 * MOST_REPORTS
_Id = Annotated[str, Field(min_length=1, max_length=255)]


class CreateBody(Message):
    """An unmanaged trial to create."""

    without_effect = frozenset({"unmanaged"})

    experiment_id: int
    hparams: dict[str, Any] = Field(default_factory=dict)


class PutBody(Message):
    """An unmanaged trial to create or find, under an id chosen by its script."""

    create_trial_request: CreateBody
    external_trial_id: str = Field(min_length=1, max_length=255)


class StartBody(Message):
    """The beginning of a run."""

    resume: bool = False


class PatchBody(Message):
    """A heartbeat, or the state with which a trial ended."""

    state: str | None = None


class FindBody(Message):
    """The external ids of runs."""

    external_ids: list[_Id] = Field(default_factory=list, max_length=MOST_FOUND)


class ColumnBody(Message):
    """The values of a metric: base64 of floats of 8 bytes; and the rows that have one, of integers of 4 bytes."""

    values: Annotated[str, Field(max_length=_LONGEST_COLUMN)]
    rows: Annotated[str, Field(max_length=_LONGEST_COLUMN)] | None = None


class ColumnsBody(Message):
    """Reports of one group, as columns: base64 of integers of 8 bytes.

    The steps are ascending, each once. The times are in microseconds since 1970.
    """

    group: str
    steps: Annotated[str, Field(max_length=_LONGEST_COLUMN)]
    times: Annotated[str, Field(max_length=_LONGEST_COLUMN)]
    metrics: dict[str, ColumnBody] = Field(default_factory=dict)


class EndBody(Message):
    """The state of a run, in its last part."""

    state: str
    end_time: str | None = None
    fingerprint: Annotated[str, Field(min_length=1, max_length=255)]
    labels: list[Annotated[str, Field(min_length=1, max_length=255)]] = Field(
        default_factory=list, max_length=1000
    )


class PartBody(Message):
    """A part of a run."""

    config: str
    hparams: dict[str, Any] = Field(default_factory=dict)
    start_time: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    reports: list[ColumnsBody] = Field(default_factory=list)
    end: EndBody | None = None


@router.post("/trials")
def create(master: MasterDep, request: Annotated[CreateBody, body(CreateBody)]) -> Response:
    """Create a trial."""
    return _created(master, request, None)


@router.put("/trials")
def put(master: MasterDep, request: Annotated[PutBody, body(PutBody)]) -> Response:
    """Create a trial, or return the one with this external id."""
    return _created(master, request.create_trial_request, request.external_trial_id)


@router.post("/trials/{trial_id}/start")
def start(master: MasterDep, trial_id: int, request: Annotated[StartBody, body(StartBody)]) -> Response:
    """Begin the next run of a trial, and return where it can resume."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        _controller(tx, find_experiment(tx, trial.experiment_id)).start_run(trial)
        latest = latest_checkpoint(tx, trial_id) if request.resume else None
        return reply(
            {
                "trialRunId": trial.run_id,
                "latestCheckpoint": None if latest is None else latest.uuid,
                "stepsCompleted": 0 if latest is None else latest.steps_completed,
            }
        )


@router.patch("/trials/{trial_id}")
def hear(master: MasterDep, trial_id: int, request: Annotated[PatchBody, body(PatchBody)]) -> Response:
    """Record a heartbeat of a trial's script, or how it ended."""
    state = None if request.state is None else choice(request.state, "STATE_", TRIAL_STATES)
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        _controller(tx, find_experiment(tx, trial.experiment_id)).heard(trial, state)
    return _described(master, trial_id)


@router.post("/imports/find")
def find_imported(master: MasterDep, request: Annotated[FindBody, body(FindBody)]) -> Response:
    """Return the experiments of the runs that were imported, completely or in part."""
    with master.store.reading() as session:
        known = importing.find(session, request.external_ids)
    return reply(
        {
            "runs": [
                {"externalId": name, "experimentId": experiment, "trialId": trial, "fingerprint": fingerprint}
                for name, (experiment, trial, fingerprint) in known.items()
            ]
        }
    )


@router.put("/imports/{external_id:path}")
def put_imported(
    master: MasterDep,
    caller: CallerDep,
    external_id: Annotated[str, Path(min_length=1, max_length=255)],
    request: Annotated[PartBody, body(PartBody, most_bytes=_MOST_PART_BYTES)],
) -> Response:
    """Store a part of a run; the first one creates its experiment."""
    part = _part(request)
    experiments = master.experiments
    loaded = experiments.load_unmanaged(request.config)
    with master.store.writing() as tx:
        experiment_id = experiments.find_unmanaged(tx, external_id)
        is_new = experiment_id is None
        if experiment_id is None:
            experiment_id = experiments.add_unmanaged(tx, caller.user_id, loaded, external_id)
        result = importing.store_part(tx, caller.user_id, experiment_id, part, is_new=is_new)
    return reply(
        {
            "experimentId": experiment_id,
            "trialId": result.trial_id,
            "added": result.stored.added,
            "changed": result.stored.changed,
            "hasChanged": result.has_changed,
        }
    )


def _created(master: EmbeddedMaster, request: CreateBody, external_id: str | None) -> Response:
    with master.store.writing() as tx:
        experiment = find_experiment(tx, request.experiment_id)
        trial_id = _controller(tx, experiment).create_trial(request.hparams, external_id).id
    return _described(master, trial_id)


def _described(master: EmbeddedMaster, trial_id: int) -> Response:
    with master.store.reading() as session:
        (shape,) = trial_shapes(session, [find_trial(session, trial_id)])
    return reply({"trial": shape})


def _controller(tx: Transaction, experiment: ExperimentRow) -> UnmanagedController:
    if not experiment.is_unmanaged:
        raise FailedPreconditionError(
            f"The master runs experiment {experiment.id}; only experiments created with `unmanaged` accept this call."
        )
    return UnmanagedController(tx, experiment)


def _part(request: PartBody) -> ImportedPart:
    end = None
    if request.end is not None:
        sent = request.end
        time = None if sent.end_time is None else from_timestamp(sent.end_time)
        state = choice(sent.state, "STATE_", sorted(importing.STATES))
        end = ImportedEnd(state, time, sent.fingerprint, sent.labels)
    return ImportedPart(
        started=from_timestamp(request.start_time),
        hparams=request.hparams,
        reports=[_columns(sent) for sent in request.reports],
        end=end,
        source=request.metadata,
    )


def _columns(sent: ColumnsBody) -> Columns:
    def array(name: str, text: str, kind: str) -> Any:
        try:
            return unpacked(text, kind)
        except ValueError as error:
            raise InvalidArgumentError(f"The column `{name}` cannot be read: {error}.") from None

    metrics = {
        name: (
            array(name, column.values, FLOATS),
            None if column.rows is None else array(name, column.rows, ROWS),
        )
        for name, column in sent.metrics.items()
    }
    steps, times = array("steps", sent.steps, INTEGERS), array("times", sent.times, INTEGERS)
    return Columns(sent.group, steps, times, metrics)
