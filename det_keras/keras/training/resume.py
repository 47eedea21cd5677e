"""Finds the checkpoint from which training resumes."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from det_keras.config import Length
from det_keras.core import Context
from det_keras.core.backend import CheckpointRecord
from det_keras.core.checkpoint import DownloadMode
from det_keras.errors import CheckpointError, CheckpointMissingError
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.training.phase import PhaseRecord

logger = logging.getLogger(__name__)


@dataclass
class ResumePoint:
    """A verified checkpoint of this run.

    Attributes:
        record: the checkpoint as it was reported.
        restored: its training state.
        phases: the finished phases before the one it belongs to.
        phase_index: the `fit` call that it belongs to, from 0.
    """

    record: CheckpointRecord
    restored: RestoredState
    phases: list[PhaseRecord]
    phase_index: int


def find_resume_point(
    core: Context, stack: ExitStack, *, length: Length | None = None, skip_missing: bool = False
) -> ResumePoint | None:
    """Return the newest complete checkpoint of this run, None if there is none.

    A corrupt checkpoint is logged as an error and the next older one is tried. A checkpoint of a finished training is
    skipped if the trial has got a longer length since, from its searcher or by a changed config.

    Args:
        core: lists and stores checkpoints.
        stack: keeps the checkpoint's files available until it is closed.
        length: the length in the config; None if it has none.
        skip_missing: treat a checkpoint that is not in the storage like a corrupt one.

    Raises:
        CheckpointError: the trial has got a longer length, and no checkpoint is left from which it can be trained on.
        CheckpointMissingError: the storage does not have a checkpoint that the master has recorded. It is probably the
            wrong storage: training would silently begin anew.
    """
    records = [record for record in core.backend.checkpoints() if _is_own(record, core)]
    finished: ResumePoint | None = None
    for record in records:
        restored = _read(core, stack, record, "The checkpoint before it is tried.", skip_missing)
        if restored is None:
            continue
        state = restored.state
        phases = [PhaseRecord(**phase) for phase in state["phases"]]
        point = ResumePoint(record, restored, phases, state["phase"]["index"])
        if state["phase"].get("raised"):
            # It was written because the script caught the exception and began another training.
            return _logged(point)
        if state["phase"]["finished"] and _has_more_to_do(core, state["phase"].get("length"), length):
            # The end of a training may have changed the weights (EMA, callbacks): training cannot continue from them.
            finished = finished or point
            continue
        return _logged(point)
    if finished is not None:
        raise CheckpointError(
            f"The trial is to be trained further, but the only checkpoint that is left, {finished.record.uuid}, is "
            "of the end of its training, which changed the weights (EMA or a callback): training cannot continue "
            "from them. "
            "With `checkpoint_storage.save_trial_latest: 2` the state before is kept as well. To train on with these "
            "weights, begin a new experiment from this checkpoint."
        )
    if records:
        logger.error(
            "None of the %s checkpoints of this run can be used: training starts from the beginning.",
            len(records),
        )
    return None


def find_phase_end(
    core: Context,
    stack: ExitStack,
    phase_index: int,
    steps_completed: int,
    *,
    skip_missing: bool = False,
) -> RestoredState | None:
    """Return the state at the end of a finished phase, None if it has no checkpoint any more.

    Args:
        core: lists and stores checkpoints.
        stack: keeps the checkpoint's files available until it is closed.
        phase_index: number of the `fit` call, from 0.
        steps_completed: batches trained in the script at the end of the phase.
        skip_missing: treat a checkpoint that is not in the storage like a corrupt one.

    Raises:
        CheckpointMissingError: the checkpoint is recorded and not in the storage.
    """
    for record in core.backend.checkpoints():
        # The next phase begins at the same batch, so the number of batches does not identify the phase.
        if record.steps_completed != steps_completed or not _is_own(record, core):
            continue
        restored = _read(
            core, stack, record, "The end state of the earlier `fit` is not restored.", skip_missing
        )
        if restored is not None and restored.state["phase"]["index"] == phase_index:
            return restored
    logger.warning(
        "No checkpoint is left of the end of `fit` number %s, at batch %s: until the next `fit` the model has the "
        "weights that the script gave it.",
        phase_index + 1,
        steps_completed,
    )
    return None


def _read(
    core: Context, stack: ExitStack, record: CheckpointRecord, instead: str, skip_missing: bool
) -> RestoredState | None:
    """Return a checkpoint's training state; if it is corrupt, log the error and `instead`, and return None."""
    try:
        directory = stack.enter_context(
            core.checkpoint.restore_path(record.uuid, DownloadMode.NoSharedDownload)
        )
        return RestoredState.read(directory)
    except CheckpointError as error:
        is_missing = isinstance(error, CheckpointMissingError)
        if not is_missing or skip_missing:
            logger.error("%s %s", error, instead)
            if is_missing and core.distributed.rank == 0:
                # Otherwise it would count as the newest, and the new ones be deleted in its place.
                core.backend.report_checkpoint_deleted(record.uuid)
            return None
        raise CheckpointMissingError(
            f"Checkpoint {record.uuid} (batch {record.steps_completed}) is recorded by the master and missing in its "
            f"storage: {error} Check that `checkpoint_storage` is the same storage here as where the checkpoint was "
            "written. To train on without it: `det.keras.init(on_missing_checkpoint='restart')`."
        ) from None


def _has_more_to_do(core: Context, trained: Mapping[str, int] | None, length: Length | None) -> bool:
    """Return whether a trial that was trained to its end has got a longer length since.

    Args:
        core: knows the searcher's operation. A Determined 0.38.1 master has none: there the config decides.
        trained: the length in the config with which it was trained; None if it had none, or is not recorded.
        length: the length in the config now.
    """
    if core.info is None:
        return False
    operation = core.backend.current_operation()
    if operation is not None:
        return not operation.completed
    if trained is None or length is None:
        return False
    before = Length.parse(trained)
    return length.value > before.value if length.unit is before.unit else True


def _logged(point: ResumePoint) -> ResumePoint:
    record = point.record
    logger.info("Training continues from checkpoint %s at batch %s.", record.uuid, record.steps_completed)
    return point


def find_warm_start(core: Context) -> str | None:
    """Return the UUID of another trial's checkpoint to load weights from, None if there is none."""
    if core.info is None or core.info.latest_checkpoint is None:
        return None
    for record in core.backend.checkpoints():
        if record.uuid == core.info.latest_checkpoint and not _is_own(record, core):
            return record.uuid
    return None


def _is_own(record: CheckpointRecord, core: Context) -> bool:
    if core.info is None or core.info.trial is None:
        return True
    return record.metadata.get("trial_id") == core.info.trial.trial_id
