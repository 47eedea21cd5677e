"""Calls of training processes: start, metrics, progress, state, and the lengths that the search gives."""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from det_keras.master.checkpoints import records as checkpoints
from det_keras.master.database.lookups import config_of, find_experiment, find_trial
from det_keras.master.database.models import ExperimentRow, TrialRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import ApiError, InvalidArgumentError, NotFoundError
from det_keras.master.experiments.reporting import controller_of, report_metrics
from det_keras.master.reports import metrics
from det_keras.master.server.calls import MasterDep, body
from det_keras.master.server.responses import reply
from det_keras.master.wire import Message, encode_json, from_timestamp, parse_message
from det_keras.protocol import states
from det_keras.protocol.metrics import MOST_TOGETHER, TRAINING, VALIDATION, number

logger = logging.getLogger(__name__)
router = APIRouter(prefix="/api/v1")

_MOST_METADATA_BYTES = 1 << 20
_MOST_REPORT_BYTES = 16 << 20


class StartBody(Message):
    """A run that is about to report."""

    run_id: int
    checkpoint_storage: dict[str, Any] | None = None


class MetricValues(Message):
    """The values of a report."""

    avg_metrics: dict[str, Any] = Field(default_factory=dict)
    batch_metrics: list[Any] | None = None


class TrialMetrics(Message):
    """The trial, run and batch of a report, and its values."""

    trial_id: int | None = None
    trial_run_id: int
    steps_completed: int | None = None
    report_time: str | None = None
    metrics: MetricValues = Field(default_factory=MetricValues)


class MetricsBody(Message):
    """A report of metrics."""

    group: str = ""
    metrics: TrialMetrics


class ManyMetricsBody(Message):
    """Reports of metrics, in their order."""

    reports: list[MetricsBody] = Field(max_length=MOST_TOGETHER)


class OldMetricsBody(Message):
    """A report in the form of old clients: flat, or nested as in the current form."""

    without_effect = frozenset({"reportTime", "trialId"})

    trial_run_id: int
    steps_completed: int = 0
    metrics: dict[str, Any] = Field(default_factory=dict)
    batch_metrics: list[Any] | None = None


class ProgressBody(Message):
    """The progress of a trial."""

    progress: float | None = None
    is_raw: bool = False


class StateBody(Message):
    """The activity of a trial."""

    state: str = ""


class EarlyExitBody(Message):
    """The reason for which a trial ends early."""

    reason: str = ""


class RunMetadataBody(Message):
    """Metadata that a user stores with a run."""

    metadata: dict[str, Any] = Field(default_factory=dict)


class OperationBody(Message):
    """The length that was reached."""

    length: int


class CompletedBody(Message):
    """The end of an operation."""

    op: OperationBody
    searcher_metric: Any = None


@router.post("/runs/start")
def start_run(master: MasterDep, request: Annotated[StartBody, body(StartBody)]) -> Response:
    """Register the storage that a run will use; every rank and every start calls it."""
    with master.store.writing() as tx:
        if tx.get(TrialRow, request.run_id) is None:
            raise NotFoundError(f"run '{request.run_id}' not found")
        section = request.checkpoint_storage
        return reply({"storageId": None if section is None else checkpoints.register_storage(tx, section)})


@router.post("/trials/{trial_id}/metrics")
async def report(
    master: MasterDep,
    trial_id: int,
    request: Annotated[MetricsBody, body(MetricsBody, most_bytes=_MOST_REPORT_BYTES)],
) -> Response:
    """Store a report of any group."""
    (error,) = await master.report_batcher.take([_report(trial_id, request)])
    if error is not None:
        raise error
    return reply()


@router.post("/trials/{trial_id}/metrics/together")
async def report_together(
    master: MasterDep,
    trial_id: int,
    request: Annotated[ManyMetricsBody, body(ManyMetricsBody, most_bytes=_MOST_REPORT_BYTES)],
) -> Response:
    """Store reports of any group in their order; return why some were not stored. Not in Determined's API."""
    errors = await master.report_batcher.take([_report(trial_id, sent) for sent in request.reports])
    failed = []
    for index, error in enumerate(errors):
        if error is None:
            continue
        if not isinstance(error, ApiError):
            logger.error("A report could not be stored.", exc_info=error)
        status = error.status if isinstance(error, ApiError) else ApiError.status
        failed.append({"index": index, "status": status, "message": str(error)})
    return reply({"failed": failed})


@router.post("/trials/{trial_id}/training_metrics")
def report_training(
    master: MasterDep,
    trial_id: int,
    request: Annotated[OldMetricsBody, body(OldMetricsBody, most_bytes=_MOST_REPORT_BYTES)],
) -> Response:
    """Store a report of an old client."""
    _store_report(master, _modern(trial_id, TRAINING, request))
    return reply()


@router.post("/trials/{trial_id}/validation_metrics")
def report_validation(
    master: MasterDep,
    trial_id: int,
    request: Annotated[OldMetricsBody, body(OldMetricsBody, most_bytes=_MOST_REPORT_BYTES)],
) -> Response:
    """Store a report of an old client."""
    _store_report(master, _modern(trial_id, VALIDATION, request))
    return reply()


@router.post("/trials/{trial_id}/progress")
def report_progress(
    master: MasterDep, trial_id: int, request: Annotated[ProgressBody, body(ProgressBody)]
) -> Response:
    """Record a trial's progress."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        # `isRaw` is the current form, a fraction. Without it, the value is in the unit of the searcher.
        controller_of(tx, find_experiment(tx, trial.experiment_id)).progressed(
            trial, request.progress or 0.0, is_fraction=request.is_raw
        )
    return reply()


@router.post("/trials/{trial_id}/runner/metadata")
def report_state(
    master: MasterDep, trial_id: int, request: Annotated[StateBody, body(StateBody)]
) -> Response:
    """Record a trial's current activity."""
    with master.store.writing() as tx:
        find_trial(tx, trial_id).runner_state = request.state
    return reply()


@router.post("/trials/{trial_id}/early_exit")
def early_exit(
    master: MasterDep, trial_id: int, request: Annotated[EarlyExitBody, body(EarlyExitBody)]
) -> Response:
    """Record that a trial rejects its hyperparameters."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        controller_of(tx, _unfinished_experiment(tx, trial)).early_exit(trial, request.reason)
    return reply()


@router.get("/runs/{run_id}/metadata")
def run_metadata(master: MasterDep, run_id: int) -> Response:
    """Return the metadata of a run."""
    with master.store.reading() as session:
        return reply({"metadata": find_trial(session, run_id).run_metadata})


@router.post("/runs/{run_id}/metadata")
def replace_run_metadata(
    master: MasterDep, run_id: int, request: Annotated[RunMetadataBody, body(RunMetadataBody)]
) -> Response:
    """Replace the metadata of a run."""
    size = len(json.dumps(request.metadata))
    if size > _MOST_METADATA_BYTES:
        raise InvalidArgumentError(f"Metadata may have {_MOST_METADATA_BYTES} bytes, received {size}.")
    with master.store.writing() as tx:
        find_trial(tx, run_id).run_metadata = request.metadata
    return reply({"metadata": request.metadata})


@router.get("/trials/{trial_id}/searcher/operation")
def current_operation(master: MasterDep, trial_id: int) -> Response:
    """Return the length that a trial has to reach; 404 if the search gives no lengths."""
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        operation = controller_of(tx, _unfinished_experiment(tx, trial)).operation(trial)
    if operation is None:
        raise NotFoundError(f"The search gives trial {trial_id} no length.")
    target = {"requestId": trial.request_id, "length": str(operation.length)}
    return reply({"op": {"validateAfter": target}, "completed": operation.completed})


@router.post("/trials/{trial_id}/searcher/completed_operation")
def complete_operation(
    master: MasterDep, trial_id: int, request: Annotated[CompletedBody, body(CompletedBody)]
) -> Response:
    """Record that a trial has reached its length."""
    value = number(request.searcher_metric)
    if value is None:
        raise InvalidArgumentError(
            f"`searcherMetric` must be a number, received {request.searcher_metric!r}."
        )
    with master.store.writing() as tx:
        trial = find_trial(tx, trial_id)
        experiment = _unfinished_experiment(tx, trial)
        named = {config_of(experiment).searcher.metric: value}
        controller_of(tx, experiment).operation_completed(trial, request.op.length, value, named)
    return reply()


@router.get("/experiments/{experiment_id}/searcher/best_searcher_validation_metric")
def best_validation(master: MasterDep, experiment_id: int) -> Response:
    """Return the best validation metric; 404 if there is none, since clients expect a number."""
    with master.store.reading() as session:
        searcher = config_of(find_experiment(session, experiment_id)).searcher
        value = metrics.best_validation(session, experiment_id, smaller_is_better=searcher.smaller_is_better)
    if value is None:
        raise NotFoundError(f"experiment '{experiment_id}' has no validation yet")
    return reply({"metric": value})


def _report(trial_id: int, request: MetricsBody) -> metrics.Report:
    sent = request.metrics
    return metrics.Report(
        trial_id=trial_id,
        run_id=sent.trial_run_id,
        group=request.group,
        steps_completed=sent.steps_completed,
        metrics=sent.metrics.avg_metrics,
        batch_metrics=sent.metrics.batch_metrics,
        time=None if sent.report_time is None else from_timestamp(sent.report_time),
    )


def _store_report(master: MasterDep, sent: metrics.Report) -> None:
    with master.store.writing() as tx:
        report_metrics(tx, sent)


def _modern(trial_id: int, group: str, old: OldMetricsBody) -> metrics.Report:
    is_nested = "avgMetrics" in old.metrics or "avg_metrics" in old.metrics
    values = parse_message(MetricValues, encode_json(old.metrics) if is_nested else b"")
    return metrics.Report(
        trial_id=trial_id,
        run_id=old.trial_run_id,
        group=group,
        steps_completed=old.steps_completed,
        metrics=values.avg_metrics if is_nested else old.metrics,
        batch_metrics=values.batch_metrics if is_nested else old.batch_metrics,
    )


def _unfinished_experiment(tx: Transaction, trial: TrialRow) -> ExperimentRow:
    experiment = find_experiment(tx, trial.experiment_id)
    if experiment.state in states.TERMINAL:
        raise NotFoundError(f"experiment '{experiment.id}' not found")
    return experiment
