"""Writes checkpoints in the background, one at a time.

A state that is submitted holds its values by reference: TensorFlow copies a variable that is held when it writes it
next. A thread copies them at once, into memory that is reused, and releases each as it is copied. The next step reads
the variables for a while before it writes them, so that TensorFlow has to copy few. The files are written by another
thread for small states, and by a separate process for big states. The process does not compete with training for
Python's interpreter lock, and its low priority leaves the cores to training. The first state that is submitted while
another is being written is copied only when it is written, and the memory for a second state is made ready then.

At most one checkpoint is being written. A newer request replaces a waiting request, since only the newest state counts
and a waiting state uses memory. A failed write is logged and
repeated, unless the storage says that only the user can help. It never affects the last good checkpoint.

`_changed` guards the waiting job, `_busy` and the assignment of buffers. The writer's thread takes the waiting job and
sets `_busy` in one step, so `wait` sees every job as waiting, being written, or done. Values are copied and files are
written without the lock.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
import uuid as uuid_module
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from det_keras.core.buffer_pool import Buffer, BufferPool
from det_keras.core.checkpoint import CheckpointContext
from det_keras.core.file_plan import FilePlan, store_files
from det_keras.core.writer_messages import Answer, Order, receive, send
from det_keras.errors import CheckpointError, StorageError

logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_RETRY_S = 1.0
# Smaller states are written by the thread: it is done before a process would have read its order.
_SMALL_BYTES = 32 << 20


class State(Protocol):
    """The content of a checkpoint."""

    @property
    def size_bytes(self) -> int:
        """Memory that `fill` needs."""

    def fill(self, memory: memoryview) -> None:
        """Copy the values into `memory`, and release each when it is copied; a second call has no effect."""

    def plan(self) -> FilePlan:
        """Return the files, whose slices are those of the filled memory."""


@dataclass
class _Job:
    metadata: Mapping[str, object]
    state: State
    done: Callable[[str], None]
    uuid: str = field(default_factory=lambda: str(uuid_module.uuid4()))
    buffer: Buffer | None = None
    copy: Future[None] | None = None


class CheckpointWriter:
    """Stores checkpoints in the background.

    Args:
        checkpoint: stores and reports the checkpoints.
        before: called in the background before a checkpoint is stored, for what must be stored first.
    """

    def __init__(self, checkpoint: CheckpointContext, *, before: Callable[[], None] = lambda: None) -> None:
        self._checkpoint = checkpoint
        self._before = before
        self._changed = threading.Condition()
        self._waiting: _Job | None = None
        self._wanted_bytes = 0
        self._busy = False
        self._overlaps = False
        self._failure: Exception | None = None
        self._closing = False
        self._buffers: BufferPool | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="det-copies")

    def prepare(self, size_bytes: int) -> None:
        """Make memory for states of this size ready in the background, before the first state is submitted."""
        with self._changed:
            self._wanted_bytes = size_bytes
            self._start()

    def submit(self, metadata: Mapping[str, object], state: State, done: Callable[[str], None]) -> None:
        """Store a checkpoint in the background.

        Args:
            metadata: as in `CheckpointContext.store_path`.
            state: copied at once in the background if memory is ready for it; otherwise when it is written.
            done: called with the UUID once the checkpoint is committed, in the writer's thread.

        Raises:
            CheckpointError: the writer is closed.
        """
        with self._changed:
            if self._closing:
                raise CheckpointError("No checkpoint can be written: the context is closed.")
            job = _Job(metadata, state, done)
            if self._waiting is not None:
                logger.info(
                    "The checkpoint at batch %s is replaced by a newer one: writing takes longer than the time "
                    "between checkpoints.",
                    self._waiting.metadata.get("steps_completed"),
                )
                self._leave(self._waiting)
            self._waiting = job
            if not self._busy:
                self._enter(job)
            elif (buffer := self._ready_buffer(state.size_bytes)) is not None:
                self._take(buffer, job)
            else:
                self._overlaps = True
            self._start()

    def wait(self) -> None:
        """Wait until no checkpoint is waiting or being written.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
        """
        with self._changed:
            while self._waiting is not None or self._busy:
                self._changed.wait()
            self._raise_failure()

    def close(self) -> None:
        """Write all submitted checkpoints, and end the thread and the process.

        Raises:
            CheckpointError: the newest checkpoint could not be written, and `wait` has not said so.
        """
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
        self._copier.shutdown()
        self._end_process()
        if self._buffers is not None:
            self._buffers.close()
            self._buffers = None
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise CheckpointError(f"The last checkpoint could not be written: {failure}") from failure

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="det-checkpoints", daemon=True)
            self._thread.start()
        self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._waiting is None and not self._wanted_bytes and not self._closing:
                    self._changed.wait()
                job, self._waiting = self._waiting, None
                if job is None and self._wanted_bytes:
                    self._make_ready()
                    continue
                if job is None:
                    return
                self._busy = True
                self._enter(job)
            failure = self._store(job)
            with self._changed:
                self._busy = False
                self._leave(job)
                self._failure = failure
                self._changed.notify_all()
            # The job may hold variables: release them before the next wait.
            del job

    def _make_ready(self) -> None:
        buffer_pool = self._buffers_for(self._wanted_bytes)
        self._wanted_bytes = 0
        buffer_pool.buffers[0].make_ready()
        if self._is_big:
            self._started_process()

    def _enter(self, job: _Job) -> None:
        """Give a job a buffer; only while no other job is being written, so that a buffer is free."""
        if job.buffer is None:
            buffer_pool = self._buffers_for(job.state.size_bytes)
            self._take(next(buffer for buffer in buffer_pool.buffers if buffer.is_free), job)

    def _take(self, buffer: Buffer, job: _Job) -> None:
        buffer.is_free = False
        job.buffer = buffer
        job.copy = self._copier.submit(job.state.fill, buffer.memory)

    def _leave(self, job: _Job) -> None:
        if job.buffer is not None:
            # A copy that has begun ends before the next one to this buffer: they run one after another.
            if job.copy is not None:
                job.copy.cancel()
            job.buffer.is_free = True
            job.buffer = None

    def _ready_buffer(self, size_bytes: int) -> Buffer | None:
        if self._buffers is None or self._buffers.state_bytes < size_bytes:
            return None
        return next((buffer for buffer in self._buffers.buffers if buffer.is_free and buffer.is_ready), None)

    def _store(self, job: _Job) -> Exception | None:
        failure: Exception | None = None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._store_once(job)
                job.done(job.uuid)
                return None
            except Exception as error:
                expected = isinstance(error, OSError | CheckpointError)
                logger.error(
                    "Writing the checkpoint at batch %s failed (attempt %s of %s): %s",
                    job.metadata.get("steps_completed"),
                    attempt,
                    _ATTEMPTS,
                    error,
                    exc_info=not expected,
                )
                failure = error
                if isinstance(error, StorageError) and not error.can_retry:
                    break
            if attempt < _ATTEMPTS:
                time.sleep(_RETRY_S)
        logger.error("This checkpoint is not written. Training continues; the last good checkpoint is kept.")
        return failure

    def _store_once(self, job: _Job) -> None:
        buffer, storage = job.buffer, self._checkpoint.storage
        assert buffer is not None
        assert job.copy is not None
        wait([job.copy])
        # Nothing is left to copy, unless the copy failed.
        job.state.fill(buffer.memory)
        buffer.is_ready = True
        self._make_other_buffer_ready()
        self._before()
        plan = self._checkpoint.with_metadata(job.state.plan(), job.metadata)
        # An earlier attempt that failed in the report has already stored the whole checkpoint.
        if not storage.exists(job.uuid):
            if self._is_big:
                self._order(Order(storage, job.uuid, plan, buffer.offset))
            else:
                store_files(storage, job.uuid, plan, buffer.memory)
        self._checkpoint.report(job.uuid, job.metadata)

    def _make_other_buffer_ready(self) -> None:
        if self._overlaps and self._buffers is not None:
            for buffer in self._buffers.buffers:
                if not buffer.is_ready:
                    buffer.make_ready()

    @property
    def _is_big(self) -> bool:
        return self._buffers is not None and self._buffers.state_bytes >= _SMALL_BYTES

    def _buffers_for(self, state_bytes: int) -> BufferPool:
        """Return a buffer pool of sufficient size; it may be replaced only while no checkpoint is being written."""
        if self._buffers is None or self._buffers.state_bytes < state_bytes:
            self._end_process()
            if self._buffers is not None:
                self._buffers.close()
            self._buffers = BufferPool(state_bytes)
        return self._buffers

    def _order(self, order: Order) -> None:
        process = self._started_process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            send(process.stdin, order)
            answer: Answer | None = receive(process.stdout)
        except OSError as error:
            answer = Answer(str(error))
        if answer is not None and answer.storage_error is not None:
            raise answer.storage_error
        if answer is None or (answer.error and answer.errno is None):
            self._end_process()
            reason = answer.error if answer is not None else f"exit code {process.returncode}"
            raise CheckpointError(f"The writing process failed: {reason}.")
        if answer.error is not None:
            raise OSError(answer.errno, answer.error)

    def _started_process(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            assert self._buffers is not None
            package_root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "det_keras.core.writer_process",
                    str(self._buffers.descriptor),
                    str(self._buffers.size_bytes),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[self._buffers.descriptor],
                env={**os.environ, "PYTHONPATH": path},
            )
        return self._process

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.close()
        except OSError:
            process.kill()
        process.stdout.close()
        try:
            process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
