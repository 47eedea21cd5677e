"""What the backends that report to a master have in common: its REST API, over a queue."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from det_keras.client import Session
from det_keras.core.backend.base import Backend, CheckpointRecord, MediaFolder, MediaRecord
from det_keras.core.backend.report_queue import ReportQueue
from det_keras.core.registry import MasterRegistry
from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.states import COMPLETED, named
from det_keras.protocol.values import finite, now, timestamp
from det_keras.provenance.capture import Captures

logger = logging.getLogger(__name__)

#: How long calls whose results training needs wait for an unavailable master: a day.
PATIENCE_S = 24 * 3600.0


@dataclass(frozen=True)
class RunIdentity:
    """One run of a trial, as its master knows it.

    Attributes:
        trial_id: number of the trial.
        run_id: number of the run, from 1.
        experiment_id: the experiment that owns the trial.
        task_id: the trial's task.
        agent_id: the name under which the machine's load is reported.
        allocation_id: the allocation; None if the master did not start this process.
        latest_checkpoint: UUID to start from; None without one.
    """

    trial_id: int
    run_id: int
    experiment_id: int
    task_id: str
    agent_id: str
    allocation_id: str | None = None
    latest_checkpoint: str | None = None


class MasterBackend(Backend):
    """Reports of a trial's run to a master through its REST API.

    Args:
        run: the run.
        session: an authenticated session; closed with the backend.
        storage: the `checkpoint_storage` section of the storage that is used.
    """

    def __init__(self, run: RunIdentity, session: Session, storage: Mapping[str, Any] | None) -> None:
        self.run = run
        self._session = session
        self._api = session.api
        self._closed = False
        self._captures = Captures()
        self._storage_id = self._api.trials.start_run(run.trial_id, storage, patience_s=PATIENCE_S)
        # Last: it starts a thread, which a failed call before would leave behind.
        self._reports = ReportQueue("det-reports", send_together=self._report_together)

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        self._put_metrics(f"{group} metrics at batch {steps_completed}", group, steps_completed, metrics)

    def report_system_metrics(self, group: str, metrics: Mapping[str, object]) -> None:
        self._put_metrics(f"{group} load", group, None, {self.run.agent_id: metrics})

    def report_progress(self, fraction: float) -> None:
        number = self.run.trial_id
        self._reports.put(
            "progress", lambda: self._api.trials.report_progress(number, fraction), replaces=True
        )

    def set_status(self, status: str) -> None:
        number = self.run.trial_id
        self._reports.put("status", lambda: self._api.trials.report_status(number, status), replaces=True)

    def report_checkpoint(self, record: CheckpointRecord) -> None:
        run = self.run
        body = {
            "uuid": record.uuid,
            "taskId": run.task_id,
            **({} if run.allocation_id is None else {"allocationId": run.allocation_id}),
            "storageId": self._storage_id,
            "state": named(COMPLETED),
            "reportTime": timestamp(now()),
            "resources": {path: str(size) for path, size in record.resources.items()},
            "metadata": finite({**record.metadata, "steps_completed": record.steps_completed}),
            "training": {},
        }
        self._reports.put(f"checkpoint {record.uuid}", lambda: self._api.checkpoints.report(body))

    def checkpoints(self) -> list[CheckpointRecord]:
        # A read sees what was reported before it.
        self.flush()
        shapes = self._api.trials.checkpoints(self.run.trial_id, patience_s=PATIENCE_S)
        found = [to_record(shape) for shape in shapes]
        # The launcher's checkpoint may be missing in this list: a warm start uses a checkpoint of another trial.
        latest = self.run.latest_checkpoint
        if latest and all(record.uuid != latest for record in found):
            found.append(to_record(self._api.checkpoints.get(latest)))
        return found

    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        self.flush()
        return self._api.checkpoints.get(uuid, patience_s=PATIENCE_S).get("metadata") or {}

    def report_checkpoint_deleted(self, uuid: str) -> None:
        self._reports.put(
            f"deletion of checkpoint {uuid}", lambda: self._api.checkpoints.report_deleted(uuid)
        )

    def open_media(self) -> MediaFolder:
        # The list includes what was reported before.
        self.flush()
        answer = self._api.trials.media(self.run.trial_id, patience_s=PATIENCE_S)
        records = [
            MediaRecord(
                shape["kind"],
                shape["name"],
                int(shape["step"]),
                int(shape["size"]),
                shape["file"],
                shape["caption"],
            )
            for shape in answer["media"]
        ]
        return MediaFolder(answer["folder"], records)

    def report_media(self, record: MediaRecord) -> None:
        number = self.run.trial_id
        body = {
            "kind": record.kind,
            "name": record.name,
            "step": str(record.step),
            "size": str(record.size),
            "file": record.file,
            "caption": record.caption,
            "storageId": self._storage_id,
            "reportTime": timestamp(now()),
        }
        label = f"{record.kind} {record.name!r} of step {record.step}"
        self._reports.put(label, lambda: self._api.trials.report_media(number, body))

    def alert(self, title: str, description: str, level: str) -> None:
        run, event_id = self.run, str(uuid.uuid4())
        self._reports.put(
            f"alert {title!r}",
            lambda: self._api.webhooks.alert(
                run.experiment_id, run.trial_id, title, description, level, event_id
            ),
        )

    def rewind(self, steps_completed: int) -> None:
        # The master hides the rows of the earlier run when this run reports for the first time.
        return

    def best_validation(self) -> float | None:
        number = self.run.experiment_id
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

    def open_registry(self) -> AbstractContextManager[MasterRegistry]:
        # It has to know the checkpoints that were reported before.
        self.flush()
        return nullcontext(MasterRegistry(self._api, self.run.trial_id))

    def report_provenance(self, make: Callable[[], dict[str, Any]]) -> None:
        number, api = self.run.trial_id, self._api

        def record() -> dict[str, Any]:
            # Not by the queue of reports: the begin of a training waits until it is empty.
            return {} if api.accounts.is_determined() else make()

        self._captures.start(
            record, then=lambda made: api.trials.report_provenance(number, made, patience_s=PATIENCE_S)
        )

    def flush(self) -> None:
        self._reports.flush()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with ExitStack() as steps:
            steps.callback(self._session.close)
            steps.callback(self._reports.close)
            self._captures.close()

    def _put_metrics(self, label: str, group: str, steps: int | None, metrics: Mapping[str, object]) -> None:
        number = self.run.trial_id
        # Created now, with the time of the report, however late it is sent.
        body = self._api.trials.metrics_body(number, self.run.run_id, group, steps, metrics)
        self._reports.put(
            label, lambda: self._api.trials.report_metrics(number, body), body=body, values=len(metrics)
        )

    def _report_together(
        self, bodies: Sequence[Mapping[str, Any]]
    ) -> Mapping[int, MasterError | MasterUnavailableError]:
        if self._api.accounts.is_determined():
            raise MasterError(501, "Determined's master takes one report in a call.")
        return self._api.trials.report_metrics_together(self.run.trial_id, bodies)


def to_record(checkpoint: Mapping[str, Any]) -> CheckpointRecord:
    """Return the record of a REST `Checkpoint` object."""
    metadata = checkpoint.get("metadata") or {}
    return CheckpointRecord(
        uuid=checkpoint["uuid"],
        steps_completed=int(metadata.get("steps_completed", 0)),
        resources={path: int(size) for path, size in (checkpoint.get("resources") or {}).items()},
        metadata=metadata,
    )
