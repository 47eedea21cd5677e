"""The backend of a trial: reports go to the master that launched the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from det_keras.client import Session
from det_keras.cluster_info import ClusterInfo, TrialInfo
from det_keras.core.backend.base import Backend, CheckpointRecord, Operation
from det_keras.core.backend.report_queue import ReportQueue
from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.states import is_stopping
from det_keras.protocol.values import finite, now, timestamp

__all__ = ["TrialBackend", "open_task_session", "report_early_exit", "to_record", "wait_for_preemption"]

logger = logging.getLogger(__name__)

# How long calls whose results training needs wait for an unavailable master: a day.
_PATIENCE_S = 24 * 3600.0


class TrialBackend(Backend):
    """Reports to the master through its REST API.

    Args:
        info: the process's task, which must be a trial.
        session: an authenticated session; None for a new session with the task token.
    """

    def __init__(self, info: ClusterInfo, session: Session | None = None) -> None:
        assert info.trial is not None
        self._info = info
        self._trial: TrialInfo = info.trial
        self._session = session or open_task_session(info)
        self._preemption_session = session or open_task_session(info)
        self._reports = ReportQueue("det-reports")
        self._closed = False
        self._stop_listeners: list[Callable[[], None]] = []
        storage = self._trial.config.get("checkpoint_storage")
        self._api = self._session.api
        self._storage_id = self._api.trials.start_run(self._trial.trial_id, storage, patience_s=_PATIENCE_S)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        self._put_metrics(f"{group} metrics at batch {steps_completed}", group, steps_completed, metrics)
        if group == VALIDATION:
            # The search may decide on this validation to stop the trial. The report before it is delivered by then.
            self._reports.put("question about the trial's state", self._look_at_state, replaces=True)

    def report_system_metrics(self, group: str, metrics: Mapping[str, object]) -> None:
        self._put_metrics(f"{group} load", group, None, {self._info.agent_id: metrics})

    def report_progress(self, fraction: float) -> None:
        number = self._trial.trial_id
        self._reports.put(
            "progress", lambda: self._api.trials.report_progress(number, fraction), replaces=True
        )

    def set_status(self, status: str) -> None:
        number = self._trial.trial_id
        self._reports.put("status", lambda: self._api.trials.report_status(number, status), replaces=True)

    def report_checkpoint(self, record: CheckpointRecord) -> None:
        body = {
            "uuid": record.uuid,
            "taskId": self._info.task_id,
            "allocationId": self._info.allocation_id,
            "storageId": self._storage_id,
            "state": "STATE_COMPLETED",
            "reportTime": timestamp(now()),
            "resources": {path: str(size) for path, size in record.resources.items()},
            "metadata": finite({**record.metadata, "steps_completed": record.steps_completed}),
            "training": {},
        }
        self._reports.put(f"checkpoint {record.uuid}", lambda: self._api.checkpoints.report(body))

    def checkpoints(self) -> list[CheckpointRecord]:
        # A read sees what was reported before it.
        self.flush()
        shapes = self._api.trials.checkpoints(self._trial.trial_id, patience_s=_PATIENCE_S)
        found = [to_record(shape) for shape in shapes]
        # The launcher's checkpoint may be missing in this list: a warm start uses a checkpoint of another trial.
        latest = self._info.latest_checkpoint
        if latest and all(record.uuid != latest for record in found):
            found.append(to_record(self._api.checkpoints.get(latest)))
        return found

    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        self.flush()
        return self._api.checkpoints.get(uuid, patience_s=_PATIENCE_S).get("metadata") or {}

    def report_checkpoint_deleted(self, uuid: str) -> None:
        self._reports.put(
            f"deletion of checkpoint {uuid}", lambda: self._api.checkpoints.report_deleted(uuid)
        )

    def run_metadata(self) -> dict[str, Any]:
        return self._api.trials.metadata(self._trial.trial_id, patience_s=_PATIENCE_S)

    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        return self._api.trials.set_metadata(self._trial.trial_id, metadata, patience_s=_PATIENCE_S)

    def context_directory(self) -> bytes:
        return self._api.tasks.context_directory(self._info.task_id)

    def original_config(self) -> str | None:
        config: str | None = self._api.experiments.get(self._trial.experiment_id).get("originalConfig")
        return config

    def rewind(self, steps_completed: int) -> None:
        # The master hides the rows of the earlier run when this run reports for the first time.
        return

    def best_validation(self) -> float | None:
        number = self._trial.experiment_id
        try:
            return self._api.experiments.best_validation(number, patience_s=1.0, timeout_s=5.0)
        except MasterUnavailableError as error:
            logger.info(
                "The experiment's best metric is unavailable; only this trial's metric counts. %s", error
            )
            return None
        except MasterError as error:
            if error.status != 404:
                logger.warning("The master did not return the experiment's best metric: %s", error)
            return None

    def current_operation(self) -> Operation | None:
        try:
            length, completed = self._api.trials.operation(self._trial.trial_id, patience_s=_PATIENCE_S)
        except MasterError as error:
            if error.status in (404, 501):
                return None
            raise
        return None if length is None else Operation(length, completed)

    def complete_operation(self, operation: Operation, metric: object) -> None:
        # The validation is queued and must reach the searcher before the report that the length is reached.
        self.flush()
        number = self._trial.trial_id
        self._api.trials.complete_operation(number, operation.length, metric, patience_s=_PATIENCE_S)

    def report_early_exit(self, reason: str) -> None:
        report_early_exit(self._info, reason, self._session)

    def wait_for_preemption(self, timeout_s: float) -> bool:
        return wait_for_preemption(self._preemption_session, self._info, timeout_s)

    def acknowledge_preemption(self) -> None:
        allocation = self._info.allocation_id
        self._reports.put(
            "acknowledgement of the preemption", lambda: self._api.tasks.acknowledge_preemption(allocation)
        )

    def listen_for_stop(self, listener: Callable[[], None]) -> None:
        self._stop_listeners.append(listener)

    def flush(self) -> None:
        self._reports.flush()

    def _look_at_state(self) -> None:
        if is_stopping(self._api.trials.get(self._trial.trial_id)["state"]):
            for listener in self._stop_listeners:
                listener()

    def _put_metrics(self, label: str, group: str, steps: int | None, metrics: Mapping[str, object]) -> None:
        number = self._trial.trial_id
        # Created now, with the time of the report, however late it is sent.
        body = self._api.trials.metrics_body(number, self._trial.trial_run_id, group, steps, metrics)
        self._reports.put(label, lambda: self._api.trials.report_metrics(number, body))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._reports.close()
        # The preemption session stays open: its thread may be in a long poll, and ends with the process.
        self._session.close()


def open_task_session(info: ClusterInfo) -> Session:
    """Return a session with the token of this process's task."""
    return Session(
        info.master_url,
        info.session_token,
        is_task=True,
        cert_file=info.master_cert_file,
        cert_name=info.master_cert_name,
    )


def report_early_exit(info: ClusterInfo, reason: str, session: Session | None = None) -> None:
    """Report to the master why the trial ends early; see `Backend.report_early_exit`.

    Args:
        info: the process's task, which must be a trial.
        reason: its name in the REST API.
        session: an authenticated session; None for a new session with the task token.
    """
    assert info.trial is not None
    api = (session or open_task_session(info)).api
    api.trials.report_early_exit(info.trial.trial_id, reason, patience_s=_PATIENCE_S)


def wait_for_preemption(session: Session, info: ClusterInfo, timeout_s: float) -> bool:
    """Return whether the master requests this process's allocation to stop.

    Args:
        session: an authenticated session.
        info: the process's task.
        timeout_s: how long to wait, in seconds.
    """
    return session.api.tasks.wait_for_preemption(info.allocation_id, timeout_s)


def to_record(checkpoint: Mapping[str, Any]) -> CheckpointRecord:
    """Return the record of a REST `Checkpoint` object."""
    metadata = checkpoint.get("metadata") or {}
    return CheckpointRecord(
        uuid=checkpoint["uuid"],
        steps_completed=int(metadata.get("steps_completed", 0)),
        resources={path: int(size) for path, size in (checkpoint.get("resources") or {}).items()},
        metadata=metadata,
    )
