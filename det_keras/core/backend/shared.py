"""The backend of a training with several workers: the chief communicates with the master.

Only the chief sends reports. Only the chief requests information, and broadcasts the response, so that all workers
decide the same. These calls are collective and must be made on the training thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

from det_keras.cluster_info import get_cluster_info
from det_keras.core.backend.base import Backend, CheckpointRecord, MediaFolder, MediaRecord, Operation
from det_keras.core.distributed import DistributedContext
from det_keras.core.registry import Registry

T = TypeVar("T")


class SharedBackend(Backend):
    """A worker's access to the backend of the chief.

    Args:
        chief: the backend on the chief; None on other workers.
        distributed: the workers.
    """

    def __init__(self, chief: Backend | None, distributed: DistributedContext) -> None:
        self.chief = chief
        self._distributed = distributed
        # A request to stop reaches the other workers with the chief's next decision.
        self.is_preemptible = chief is not None and chief.is_preemptible
        self.keeps_provenance = chief is not None and chief.keeps_provenance

    @property
    def unshared(self) -> Backend:
        return self.chief or self

    @property
    def tensorboard_directory(self) -> Path | None:
        return None if self.chief is None else self.chief.tensorboard_directory

    def report_metrics(self, group: str, steps_completed: int, metrics: Mapping[str, object]) -> None:
        if self.chief is not None:
            self.chief.report_metrics(group, steps_completed, metrics)

    def report_system_metrics(self, group: str, metrics: Mapping[str, object]) -> None:
        if self.chief is not None:
            self.chief.report_system_metrics(group, metrics)

    def report_progress(self, fraction: float) -> None:
        if self.chief is not None:
            self.chief.report_progress(fraction)

    def set_status(self, status: str) -> None:
        if self.chief is not None:
            self.chief.set_status(status)

    def report_checkpoint(self, record: CheckpointRecord) -> None:
        if self.chief is not None:
            self.chief.report_checkpoint(record)

    def checkpoints(self) -> list[CheckpointRecord]:
        return self._on_chief(lambda chief: chief.checkpoints())

    def checkpoint_metadata(self, uuid: str) -> dict[str, Any]:
        return self._require_chief("the metadata of checkpoints").checkpoint_metadata(uuid)

    def report_checkpoint_deleted(self, uuid: str) -> None:
        if self.chief is not None:
            self.chief.report_checkpoint_deleted(uuid)

    def open_media(self) -> MediaFolder:
        return self._require_chief("the folder of media").open_media()

    def report_media(self, record: MediaRecord) -> None:
        if self.chief is not None:
            self.chief.report_media(record)

    def open_registry(self) -> AbstractContextManager[Registry]:
        return self._require_chief("the model registry").open_registry()

    def alert(self, title: str, description: str, level: str) -> None:
        if self.chief is not None:
            self.chief.alert(title, description, level)

    def run_metadata(self) -> dict[str, Any]:
        return self._require_chief("the run's metadata").run_metadata()

    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        return self._require_chief("the run's metadata").set_run_metadata(metadata)

    def context_directory(self) -> bytes:
        return self._require_chief("the submitted code").context_directory()

    def original_config(self) -> str | None:
        return self._require_chief("the submitted config").original_config()

    def rewind(self, steps_completed: int) -> None:
        if self.chief is not None:
            self.chief.rewind(steps_completed)

    def best_validation(self) -> float | None:
        return self._on_chief(lambda chief: chief.best_validation())

    def current_operation(self) -> Operation | None:
        return self._on_chief(lambda chief: chief.current_operation())

    def complete_operation(self, operation: Operation, metric: object) -> None:
        self._on_chief(lambda chief: chief.complete_operation(operation, metric))

    def report_early_exit(self, reason: str) -> None:
        # Not collective: a single worker may find the hyperparameters invalid. When it exits, the others fail, which
        # the master does not count as a failure after this report.
        if self.chief is not None:
            self.chief.report_early_exit(reason)
        elif (info := get_cluster_info()) is not None and info.trial is not None:
            # Imported here: otherwise only the chief needs HTTP.
            from det_keras.core.backend.trial import report_early_exit

            report_early_exit(info, reason)

    def note_error(self, error: BaseException) -> None:
        if self.chief is not None:
            self.chief.note_error(error)

    def wait_for_preemption(self, timeout_s: float) -> bool:
        assert self.chief is not None
        return self.chief.wait_for_preemption(timeout_s)

    def listen_for_stop(self, listener: Callable[[], None]) -> None:
        if self.chief is not None:
            self.chief.listen_for_stop(listener)

    def acknowledge_preemption(self) -> None:
        if self.chief is not None:
            self.chief.acknowledge_preemption()

    def report_provenance(self, make: Callable[[], dict[str, Any]]) -> None:
        if self.chief is not None:
            self.chief.report_provenance(make)

    def flush(self) -> None:
        if self.chief is not None:
            self.chief.flush()

    def close(self) -> None:
        if self.chief is not None:
            self.chief.close()

    def _require_chief(self, what: str) -> Backend:
        if self.chief is None:
            raise RuntimeError(
                f"Rank {self._distributed.rank} requested {what}, which only the chief may. Request it on rank 0 and "
                "`distributed.broadcast` the result."
            )
        return self.chief

    def _on_chief(self, call: Callable[[Backend], T]) -> T:
        def call_chief() -> T:
            assert self.chief is not None
            return call(self.chief)

        return self._distributed.on_chief(call_chief)
