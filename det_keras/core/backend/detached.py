"""The backend of a script that no master started and that reports to one: an unmanaged experiment.

The master can neither start nor stop such a script. A heartbeat tells it that the script runs; the last report tells
how it ended. A script that is started again with the same external id finds its experiment, its trial and the
checkpoints that were reported. A checkpoint is reported after the metrics before it, in the same queue: a resume from
the newest reported checkpoint loses none, and the master hides those that the earlier run reported after it.

Run metadata stay in the run directory: a Determined 0.38.1 master cannot start a trial again that has some
(`failed to parse map into proto`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.client import Session
from det_keras.core.backend.base import CheckpointRecord, Operation
from det_keras.core.backend.local import RunDirectory, superfluous
from det_keras.core.backend.master import MasterBackend, RunIdentity, to_record
from det_keras.core.backend.output import OutputCopier
from det_keras.core.script_end import ExitListener
from det_keras.errors import CheckpointError, MasterError, MasterUnavailableError
from det_keras.protocol.states import CANCELED, COMPLETED, ERROR, is_stopping
from det_keras.storage import Storage

logger = logging.getLogger(__name__)

# Our master gives up a trial after five minutes, Determined's after a similar time.
_HEARTBEAT_S = 30.0
_AGENT = "detached"


@dataclass(frozen=True)
class DetachedPlace:
    """What a detached run keeps on its own machine.

    Attributes:
        directory: the run directory, locked while the run is open; closed with the backend.
        storage: the storage of its checkpoints.
        section: the description of this storage, as in a config.
        smaller_is_better: how the searcher's metric compares.
    """

    directory: RunDirectory
    storage: Storage
    section: Mapping[str, Any]
    smaller_is_better: bool = True


def start_run(
    session: Session, experiment_id: int, hparams: Mapping[str, object], external_id: str | None
) -> RunIdentity:
    """Begin a run of an unmanaged experiment's trial.

    Args:
        session: an authenticated session.
        experiment_id: number of the experiment.
        hparams: hyperparameter values of a new trial.
        external_id: the trial's name; None for a new trial.

    Raises:
        MasterError: the master rejects it.
        MasterUnavailableError: it does not answer.
    """
    api = session.api
    trial = api.trials.create_unmanaged(experiment_id, hparams, external_id)
    begun = api.trials.start(trial["id"])
    api.trials.report_state(trial["id"], "RUNNING")
    return RunIdentity(
        trial_id=trial["id"],
        run_id=begun["trialRunId"],
        experiment_id=experiment_id,
        task_id=trial["taskId"],
        agent_id=_AGENT,
    )


class DetachedBackend(MasterBackend):
    """Reports to a master that did not start this process.

    Args:
        run: the run that `start_run` began.
        session: an authenticated session of the user.
        place: the run directory and the storage.
        rank: rank of this process; None for the only one.
        heartbeat_s: pause between two heartbeats, in seconds.
    """

    def __init__(
        self,
        run: RunIdentity,
        session: Session,
        place: DetachedPlace,
        *,
        rank: int | None = None,
        heartbeat_s: float = _HEARTBEAT_S,
    ) -> None:
        super().__init__(run, session, place.section)
        self._place = place
        self._has_failed = False
        self._is_interrupted = False
        self._was_ended_by_user = False
        self._closing = threading.Event()
        # Set when a user ended the experiment on the master, or this process closes the backend.
        self._is_ended = threading.Event()
        self._exits = ExitListener()
        self._output = OutputCopier(run.task_id, rank, self._api.tasks.report_logs)
        self._heart = threading.Thread(
            target=self._beat, args=(heartbeat_s,), name="det-heartbeat", daemon=True
        )
        self._heart.start()

    @property
    def tensorboard_directory(self) -> Path | None:
        return self._place.directory.tensorboard

    def report_checkpoint(self, record: CheckpointRecord) -> None:
        super().report_checkpoint(record)
        # After the report: until it has arrived, a resume needs the earlier checkpoints.
        self._reports.put("pruning of checkpoints", self._prune)

    def run_metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = self._place.directory.read().get("metadata", {})
        return metadata

    def set_run_metadata(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        self._place.directory.update(metadata=dict(metadata))
        return self.run_metadata()

    def context_directory(self) -> bytes:
        return b""

    def original_config(self) -> str | None:
        return None

    def current_operation(self) -> Operation | None:
        return None

    def complete_operation(self, operation: Operation, metric: object) -> None:
        return

    def report_early_exit(self, reason: str) -> None:
        # No search asks for the reason; the run counts as failed.
        self._has_failed = True

    def note_error(self, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._is_interrupted = True
        elif not isinstance(error, SystemExit) or error.code not in (None, 0):
            self._has_failed = True

    def wait_for_preemption(self, timeout_s: float) -> bool:
        return self._is_ended.wait(timeout_s)

    def acknowledge_preemption(self) -> None:
        self._is_interrupted = True

    def close(self) -> None:
        if self._closed:
            return
        self._closing.set()
        self._is_ended.set()
        self._exits.remove()
        if not self._was_ended_by_user:
            state = self._final_state()
            self._reports.put(f"the state {state}", lambda: self._report_end(state))
        # From the last to the first: each is called, whatever those before it raise.
        with ExitStack() as steps:
            steps.callback(self._place.directory.close)
            steps.callback(super().close)
            steps.callback(self._output.close)
            # While the other connections are open: the last reports may be logged too.
            steps.callback(self._reports.close)

    def _report_end(self, state: str) -> None:
        if state == CANCELED and self._api.accounts.is_determined():
            # There it would leave the experiment PAUSED for ever.
            state = ERROR
        self._api.trials.report_state(self.run.trial_id, state)

    def _final_state(self) -> str:
        if self._is_interrupted:
            return CANCELED
        return ERROR if self._has_failed or self._exits.code not in (None, 0) else COMPLETED

    def _beat(self, pause_s: float) -> None:
        """Send heartbeats until the end, and notice in the answers that a user ended the experiment."""
        while not self._closing.wait(pause_s):
            try:
                state = self._api.trials.report_state(self.run.trial_id)["state"]
            except (MasterError, MasterUnavailableError) as error:
                logger.debug("A heartbeat was not received: %s", error)
                continue
            if not self._was_ended_by_user and (is_stopping(state) or state.endswith(CANCELED)):
                self._was_ended_by_user = True
                logger.warning(
                    "Experiment %s was ended on the master: this script saves a checkpoint and ends.",
                    self.run.experiment_id,
                )
                self._is_ended.set()

    def _prune(self) -> None:
        shapes = self._api.trials.checkpoints(self.run.trial_id)
        # A version of a model in the registry is kept.
        records = [to_record(shape) for shape in shapes if not shape.get("modelVersions")]
        for record in superfluous(records, smaller_is_better=self._place.smaller_is_better):
            try:
                self._place.storage.delete(record.uuid)
            except (OSError, CheckpointError) as error:
                # The next checkpoint tries again.
                logger.warning("Checkpoint %s cannot be deleted now: %s", record.uuid, error)
                return
            self._api.checkpoints.report_deleted(record.uuid)
