"""The backend of a trial: reports go to the master that launched the process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from det_keras.client import Session
from det_keras.cluster_info import ClusterInfo, TrialInfo
from det_keras.core.backend.base import Operation
from det_keras.core.backend.master import PATIENCE_S, MasterBackend, RunIdentity
from det_keras.core.backend.report_queue import ReportQueue
from det_keras.core.registry import MasterRegistry
from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.metrics import VALIDATION
from det_keras.protocol.states import is_stopping


class TrialBackend(MasterBackend):
    """Reports to the master that launched the process, and obeys its requests to stop.

    Args:
        info: the process's task, which must be a trial.
        session: an authenticated session; None for a new session with the task token.
    """

    def __init__(self, info: ClusterInfo, session: Session | None = None) -> None:
        assert info.trial is not None
        self._info = info
        self._trial: TrialInfo = info.trial
        # It stays open: its thread may be in a long poll, and ends with the process.
        self._preemption_session = session or open_task_session(info)
        self._stop_listeners: list[Callable[[], None]] = []
        run = RunIdentity(
            trial_id=info.trial.trial_id,
            run_id=info.trial.trial_run_id,
            experiment_id=info.trial.experiment_id,
            task_id=info.task_id,
            agent_id=info.agent_id,
            allocation_id=info.allocation_id,
            latest_checkpoint=info.latest_checkpoint,
        )
        storage = info.trial.config.get("checkpoint_storage")
        super().__init__(run, session or open_task_session(info), storage)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        super().report_metrics(group, steps_completed, metrics)
        if group == VALIDATION:
            # The search may decide on this validation to stop the trial. The report before it is delivered by then.
            self._reports.put("question about the trial's state", self._look_at_state, replaces=True)

    @contextmanager
    def open_registry(self) -> Iterator[MasterRegistry]:
        # It has to know the checkpoints that were reported before.
        self.flush()
        # A Determined 0.38.1 master lets only users register.
        with open_user_session(self._info) as session:
            yield MasterRegistry(session.api, self.run.trial_id)

    def run_metadata(self) -> dict[str, Any]:
        return self._api.trials.metadata(self._trial.trial_id, patience_s=PATIENCE_S)

    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        return self._api.trials.set_metadata(self._trial.trial_id, metadata, patience_s=PATIENCE_S)

    def context_directory(self) -> bytes:
        return self._api.tasks.context_directory(self._info.task_id)

    def original_config(self) -> str | None:
        config: str | None = self._api.experiments.get(self._trial.experiment_id).get("originalConfig")
        return config

    def current_operation(self) -> Operation | None:
        try:
            length, completed = self._api.trials.operation(self._trial.trial_id, patience_s=PATIENCE_S)
        except MasterError as error:
            if error.status in (404, 501):
                return None
            raise
        return None if length is None else Operation(length, completed)

    def complete_operation(self, operation: Operation, metric: object) -> None:
        # The validation is queued and must reach the searcher before the report that the length is reached.
        self.flush()
        number = self._trial.trial_id
        self._api.trials.complete_operation(number, operation.length, metric, patience_s=PATIENCE_S)

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

    def _look_at_state(self) -> None:
        if is_stopping(self._api.trials.get(self._trial.trial_id)["state"]):
            for listener in self._stop_listeners:
                listener()


class LoadReporter:
    """Reports the load of a machine of the trial on which the chief does not run.

    Args:
        info: the process's task, which must be a trial.
        session: an authenticated session, closed with this; None for a new session with the task token.
    """

    def __init__(self, info: ClusterInfo, session: Session | None = None) -> None:
        assert info.trial is not None
        self._agent_id = info.agent_id
        self._trial = info.trial
        self._session = session or open_task_session(info)
        # Not worth waiting for at the end.
        self._reports = ReportQueue("det-load", close_timeout_s=1.0)

    def report(self, group: str, metrics: Mapping[str, object]) -> None:
        """Record a sample of the machine's load; returns at once."""
        api, trial = self._session.api.trials, self._trial
        body = api.metrics_body(
            trial.trial_id, trial.trial_run_id, group, None, {self._agent_id: dict(metrics)}
        )
        self._reports.put(f"{group} load", lambda: api.report_metrics(trial.trial_id, body))

    def close(self) -> None:
        """Send the waiting reports and release all resources."""
        with suppress(MasterUnavailableError):
            self._reports.close()
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


def open_user_session(info: ClusterInfo) -> Session:
    """Return a session with the token of the task's owner, who may do more than the task; see `open_task_session`."""
    if not info.user_token:
        return open_task_session(info)
    return Session(
        info.master_url,
        info.user_token,
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
    api.trials.report_early_exit(info.trial.trial_id, reason, patience_s=PATIENCE_S)


def wait_for_preemption(session: Session, info: ClusterInfo, timeout_s: float) -> bool:
    """Return whether the master requests this process's allocation to stop.

    Args:
        session: an authenticated session.
        info: the process's task.
        timeout_s: how long to wait, in seconds.
    """
    return session.api.tasks.wait_for_preemption(info.allocation_id, timeout_s)
