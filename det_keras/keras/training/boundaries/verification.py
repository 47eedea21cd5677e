"""Ends a copy of a script where a checkpoint of the original was saved, and compares the two states."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from det_keras.cluster_info import CopyInfo
from det_keras.core.backend.copy import expected_checkpoint, write_result
from det_keras.keras.checkpoint.comparison import state_differences
from det_keras.keras.checkpoint.training_state import RestoredState
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.position import Target

logger = logging.getLogger(__name__)


class VerificationCallback(BoundaryCallback):
    """Compares the state at the position of a checkpoint, writes the result, and ends the process.

    The process ends at once: what the script does after its training is not repeated.

    Args:
        copy: what this copy was told.
    """

    def __init__(self, copy: CopyInfo) -> None:
        self._copy = copy
        state = RestoredState.read(expected_checkpoint(copy)).state
        phase: Mapping[str, Any] = state["phase"]
        self._phase_index, self._is_end = phase["index"], bool(phase["finished"])
        self._is_left = phase.get("raised") is not None
        self._position: Mapping[str, int] = state["position"]
        outside = [name for name in state.get("files", {}) if Path(name).is_absolute()]
        if outside:
            # Before they are given the content that they had at the first checkpoint.
            self._give_up(f"the script writes {outside[0]!r}, outside of its working directory")

    def on_begin(self, run: Run) -> None:
        if run.phase_index > self._phase_index:
            self._give_up(f"the copy came to training number {run.phase_index + 1} of the script")
        if self._is_left:
            self._give_up("the second checkpoint was saved when an exception left a training")
        if self._is_end and run.phase_index == self._phase_index:
            # The searcher may have ended the training there, which a copy does not ask.
            run.aim_at(Target(batches=self._position["batches"]))

    def next_batch(self, run: Run) -> int | None:
        return self._position["batches"] if run.phase_index == self._phase_index else None

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        if run.phase_index != self._phase_index:
            return
        if run.progress.position.batches > self._position["batches"]:
            self._give_up(f"the copy passed batch {self._position['batches']} at another place of an epoch")
        if not self._is_end and asdict(run.progress.position) == self._position:
            run.save_checkpoint()
            self._compare(run)

    def on_end(self, run: Run) -> None:
        if run.phase_index != self._phase_index:
            return
        if not self._is_end:
            self._give_up(f"the copy ended its training at batch {run.progress.position.batches}")
        run.save_checkpoint(final=True)
        self._compare(run)

    def _compare(self, run: Run) -> NoReturn:
        run.wait_for_checkpoint()
        run.core.distributed.on_chief(lambda: self._write_differences(run))
        _leave()

    def _write_differences(self, run: Run) -> None:
        newest = run.core.backend.unshared.checkpoints()[0]
        with run.core.checkpoint.storage.restore_path(newest.uuid) as found:
            different = list(state_differences(expected_checkpoint(self._copy), found))
        logger.info("Compared at batch %s: %s", run.progress.total_batches, different or "equal")
        write_result(self._copy, {"differences": different})

    def _give_up(self, reason: str) -> NoReturn:
        """Write why nothing is compared; all workers come to the same reason, and the first of them writes it."""
        write_result(self._copy, {"failure": reason})
        _leave()


def _leave() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
