"""The trainings of one script, below its context: which are finished, which resumes, and which runs.

A script that is started again makes the same calls. Trainings that an earlier process finished are skipped, the one
that it was in resumes from the newest checkpoint, and the others begin.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from det_keras.core import Context
from det_keras.core.checkpoint import DownloadMode
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.core.script_end import wait_for_thread
from det_keras.errors import CheckpointError, DetError
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.distributed.gradients import GradientExchange
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.optimizer import OptimizerRegistry
from det_keras.keras.training.phase import PhaseRecord, error_of_rank
from det_keras.keras.training.resume import ResumePoint, find_phase_end, find_resume_point, find_warm_start
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training.snapshot import CodeArchive

logger = logging.getLogger(__name__)


class Driver(Protocol):
    """A training that a script has called for: a `fit`, or a loop written by hand."""

    @property
    def trained_batches(self) -> int:
        """Batches trained in the script so far, as the script sees it at this moment."""

    @property
    def is_repeating(self) -> bool:
        """Whether the script repeats what an earlier process has run and reported."""

    def model_to_warm_start(self) -> Any:
        """Return the model that may begin with the weights of another trial, built; None without one."""

    def skip(self, record: PhaseRecord, end: RestoredState | None) -> Any:
        """Skip the training, which an earlier process finished, and restore its end as far as it is known."""

    def abandon(self, *, save: bool) -> None:
        """End the training because the context is closed.

        Args:
            save: save its newest state first, where the script may have left it on purpose.
        """


@dataclass(frozen=True)
class Start:
    """What a training begins with.

    Attributes:
        is_skipped: an earlier process finished it, and its end is restored.
        restored: the checkpoint to resume from; None to begin.
    """

    is_skipped: bool = False
    restored: RestoredState | None = None


class Script:
    """The trainings of one script.

    Args:
        core: the framework-free context.
        settings: how often to report, validate and save.
        seed: the seed of all random operations.
        skip_missing_checkpoints: resume from the newest checkpoint that the storage has, if newer ones are missing.

    Attributes:
        core: the framework-free context.
        settings: how often to report, validate and save.
        seed: the seed of all random operations.
        phases: the finished trainings.
        writer: writes checkpoints in the background.
        code: the submitted code.
        shared_step: the state that the workers exchange with each step; None on one worker without virtual ones.
        optimizers: the optimizers that were wrapped.
        validated_at: batches trained in the script at its newest validation, None before the first.
        running: the training that runs; None between two.
    """

    def __init__(
        self, core: Context, settings: FitSettings, *, seed: int, skip_missing_checkpoints: bool = False
    ) -> None:
        self.core = core
        self.settings = settings
        self.seed = seed
        self.phases: list[PhaseRecord] = []
        self.writer = CheckpointWriter(core.checkpoint, before=core.media.flush)
        self.code = CodeArchive(core)
        self.shared_step = None if core.distributed.is_alone else SharedStep()
        exchange = None
        if self.shared_step is not None:
            exchange = GradientExchange(self.shared_step, half=settings.compress_gradients)
        self.optimizers = OptimizerRegistry(
            settings.aggregation_frequency,
            average=settings.average_aggregated_gradients,
            exchange=exchange,
            records_norms=settings.profiles_layers,
        )
        self.validated_at: int | None = None
        self.running: Driver | None = None
        self._leave: Callable[[], PhaseRecord] | None = None
        self._skip_missing_checkpoints = skip_missing_checkpoints
        self._files = ExitStack()
        self._point: ResumePoint | None = None
        self._looked_for_point = False
        self._has_resumed = False
        self._has_logged_evaluation = False
        self._is_closed = False
        self._thread = threading.current_thread()

    def configure(self, **changes: Any) -> None:
        """Replace settings by name, before a training."""
        self.settings = replace(self.settings, **changes)

    @property
    def trained_batches(self) -> int:
        """Batches trained so far, over all trainings."""
        if self.running is not None:
            return self.running.trained_batches
        return sum(phase.batches for phase in self.phases)

    @property
    def is_repeating(self) -> bool:
        """Whether an earlier process has run and reported what the script does now, in a training."""
        return self.running is not None and self.running.is_repeating

    def is_catching_up(self) -> bool:
        """Return whether the script has not yet reached the training that resumes from a checkpoint."""
        if self._find_point() is None or self._has_resumed:
            return False
        if not self._has_logged_evaluation:
            self._has_logged_evaluation = True
            logger.info(
                "What `evaluate` finds before the `fit` that continues from the checkpoint is not reported: the run "
                "before has done that."
            )
        return True

    def start(self, driver: Driver) -> Start:
        """Return what the next training of the script begins with; one that is finished is skipped by this call.

        An exception that left it in the earlier process, and that the script caught there, is raised again.
        """
        self._thread = threading.current_thread()
        point, index = self._find_point(), len(self.phases)
        if self._leave is not None:
            leave, self._leave = self._leave, None
            self.phases[-1] = leave()
            self.core.distributed.on_chief(self.writer.wait)
        if point is not None and index < point.phase_index:
            record = point.phases[index]
            batches = sum(phase.batches for phase in [*self.phases, record])
            with ExitStack() as stack:
                skip = self._skip_missing_checkpoints
                has_end = record.raised is None or record.batches > 0
                end = find_phase_end(self.core, stack, index, batches, skip_missing=skip) if has_end else None
                driver.skip(record, end)
            if record.raised is not None:
                raise error_of_rank(record.raised, self.core.distributed.rank)
            return Start(is_skipped=True)
        if point is not None and index == point.phase_index:
            self._has_resumed = True
            return Start(restored=point.restored)
        uuid = find_warm_start(self.core) if point is None and index == 0 else None
        if uuid is not None and (model := driver.model_to_warm_start()) is not None:
            self._warm_start(model, uuid)
        return Start()

    def phase_finished(self, record: PhaseRecord, leave: Callable[[], PhaseRecord] | None = None) -> None:
        """Record a finished training.

        Args:
            record: the training.
            leave: of a training that an exception left: saves its state, and returns its record as all workers know
                it; called when the next one begins.
        """
        self.phases.append(record)
        self._leave = leave
        self.optimizers.forget()

    def check_open(self, call: str) -> None:
        """Check that the context is open.

        Args:
            call: what the script called, for the message.

        Raises:
            DetError: the context is closed.
        """
        if self._is_closed:
            raise DetError(
                f"`{call}` was called on a context that is closed. Call `det.keras.init()` for a new one; it "
                "continues from the newest checkpoint of its `run_dir`."
            )

    def wait_for_thread(self) -> None:
        """Wait for the thread of the newest training, if it is not this one and goes on after the main thread."""
        wait_for_thread(self._thread, lambda: self.running is not None)

    def close(self, *, save: bool) -> None:
        """End the training that runs, and write every checkpoint.

        Args:
            save: the script has not failed.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        self._is_closed = True
        # From the last to the first: each is called, whatever those before it raise.
        with ExitStack() as steps:
            steps.callback(self._files.close)
            steps.callback(self.writer.close)
            if self.running is not None:
                steps.callback(self.running.abandon, save=save)

    def _find_point(self) -> ResumePoint | None:
        if not self._looked_for_point:
            self._looked_for_point = True
            self._point = find_resume_point(
                self.core,
                self._files,
                length=self.settings.max_length,
                skip_missing=self._skip_missing_checkpoints,
            )
        return self._point

    def _warm_start(self, model: Any, uuid: str) -> None:
        """Load the weights of another trial's checkpoint."""
        with self.core.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as directory:
            try:
                model.load_weights(directory / "model.keras")
            except (ValueError, OSError) as error:
                raise CheckpointError(
                    f"The weights of checkpoint `{uuid}` do not fit this model: {error}"
                ) from error
        logger.info("The weights are those of checkpoint %s; all other state is new.", uuid)
