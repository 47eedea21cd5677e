"""Writes checkpoints behind training's back, one at a time.

At most one checkpoint is being written. A newer request takes the place of one that still waits: what
counts is the newest state, and waiting states hold memory. A failure is logged and tried again, and
never touches the last good checkpoint.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from det_keras.core.checkpoint import CheckpointContext
from det_keras.errors import CheckpointError

__all__ = ["CheckpointWriter"]

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_RETRY_S = 1.0


@dataclass
class _Job:
    metadata: Mapping[str, Any]
    write: Callable[[Path], None]
    done: Callable[[str], None]


class CheckpointWriter:
    """A thread that stores checkpoints.

    Args:
        checkpoint: stores and reports them.
    """

    def __init__(self, checkpoint: CheckpointContext) -> None:
        self._checkpoint = checkpoint
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._busy = False
        self._failure: Exception | None = None
        self._closing = False
        self._thread: threading.Thread | None = None

    def submit(
        self, metadata: Mapping[str, Any], write: Callable[[Path], None], done: Callable[[str], None]
    ) -> None:
        """Store a checkpoint in the background.

        Args:
            metadata: as in `CheckpointContext.store_path`.
            write: puts the files into an empty directory; runs in the writer's thread, may run twice.
            done: called with the UUID once the checkpoint is committed, in the writer's thread.
        """
        with self._changed:
            if self._waiting is not None:
                logger.info(
                    "The checkpoint at batch %s gives way to a newer one: storing takes longer than the time "
                    "between checkpoints.",
                    self._waiting.metadata.get("steps_completed"),
                )
            self._waiting = _Job(metadata, write, done)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="det-checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Return when no checkpoint is waiting or being written.

        Raises:
            CheckpointError: the newest one could not be written.
        """
        with self._changed:
            while self._waiting is not None or self._busy:
                self._changed.wait()
            failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"The last checkpoint could not be written: {failure}") from failure

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._closing:
                    self._changed.wait()
                job, self._waiting = self._waiting, None
                if job is None:
                    return
                self._busy = True
            failure = self._store(job)
            with self._changed:
                self._busy = False
                self._failure = failure
                self._changed.notify_all()
            # The job holds the copied variables: let go of them before the next wait.
            del job

    def _store(self, job: _Job) -> Exception | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                uuid = self._checkpoint.store(job.metadata, job.write)
                job.done(uuid)
                return None
            except Exception as error:
                batch = job.metadata.get("steps_completed")
                expected = isinstance(error, OSError | CheckpointError)
                logger.error(
                    "Writing the checkpoint at batch %s failed (attempt %s of %s): %s",
                    batch,
                    attempt,
                    _ATTEMPTS,
                    error,
                    exc_info=not expected,
                )
                failure = error
            if attempt < _ATTEMPTS:
                time.sleep(_RETRY_S)
        logger.error("The checkpoint is given up; training goes on, the last good checkpoint stays.")
        return failure
