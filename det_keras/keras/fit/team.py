"""Coordination of the workers of a `fit`: equal initial state, common decisions, and a joint checkpoint state.

A `fit` on one worker has a `Team` as well. Its decisions are local, and nothing is exchanged.
"""

from __future__ import annotations

import functools
import io
import json
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.random_state import capture_random_state, restore_random_state
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.data import DataSource
from det_keras.keras.distributed.exchange import sum_over_workers
from det_keras.keras.distributed.replica import Replica
from det_keras.keras.distributed.replicas import make_replica
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.distributed.support import check_support
from det_keras.keras.training.metric_values import LazyMetrics
from det_keras.keras.training.progress import Progress

__all__ = ["Team", "WorkerStates"]

_STATE_NAME, _VALUES_NAME = "worker.json", "worker.npz"


@dataclass(frozen=True)
class WorkerStates:
    """The state that differs between workers, in the form in which a checkpoint stores it.

    Attributes:
        files: relative path below ``training_state/`` -> content.
        values: id of a variable -> the value that the shared part of the checkpoint stores for it.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    values: Mapping[int, Any] = field(default_factory=dict)


class Team:
    """The workers of one `fit`, from the point of view of one worker.

    Args:
        workers: rank, size and small exchanges.
        step: the flags and gradients that the workers exchange with each step; None on one worker.
        trained: the model.
        source: the training data, shared by the workers.
        progress: the progress of the `fit`.
        seed: the seed of all random operations; `at_work` raises ValueError if it differs between workers.
        may_lack_rows: a worker may have no row of some batch.
    """

    def __init__(
        self,
        workers: DistributedContext,
        step: SharedStep | None,
        trained: TrainedModel,
        source: DataSource,
        progress: Progress,
        *,
        seed: int,
        may_lack_rows: bool,
    ) -> None:
        self._workers = workers
        self._step = step
        self._trained = trained
        self._source = source
        self._progress = progress
        self._seed = seed
        self._may_lack_rows = may_lack_rows
        self._replica: Replica | None = None
        if self._step is not None:
            # Set it before a checkpoint is restored: restoring may trace the model's training step.
            self._step.is_in_fit = True

    @property
    def is_single(self) -> bool:
        """Whether there is one worker, without virtual ones."""
        return self._workers.is_alone

    @contextmanager
    def at_work(self, *, is_new: bool) -> Iterator[None]:
        """Train as one of several workers inside the block.

        Args:
            is_new: no checkpoint is restored: all workers begin with the chief's variables.

        Raises:
            ValueError: the model, an optimizer or the data does not support several workers, or differs between them.
        """
        if self.is_single:
            yield
            return
        model = self._trained.model
        self._trained.build(self._source.element_spec)
        check_support(model)
        self._check_alike()
        assert self._step is not None
        self._step.begin()
        self._replica = make_replica(model, self._workers, self._step, may_lack_rows=self._may_lack_rows)
        with self._replica.active():
            if is_new:
                self._replica.adopt_initial_state(
                    [tracked.variable for tracked in self._trained.variables.tracked]
                )
            try:
                yield
            finally:
                self._step.is_in_fit = False

    def agree_to_end(self, is_ending: bool) -> bool:
        """Return, at an epoch's end, whether any worker requests the end of training, now or earlier.

        Every worker must call it and gets the same answer.

        Args:
            is_ending: this worker requests the end of training.
        """
        if self._step is None:
            return is_ending
        # Keras has just computed the epoch's metrics. The workers exchanged their requests together with the metrics,
        # and no request can have been made since then.
        answer, self._step.is_ending_epoch = self._step.is_ending_epoch, None
        if answer is None:
            own = tf.maximum(tf.cast(is_ending, tf.float32), self._step.end)
            return float(sum_over_workers([own], name="end")[0]) > 0
        return answer

    def exchange_stop_flags(self, *, leave: bool, end: bool) -> bool:
        """Record the requests of this worker after a batch, and return whether a boundary is needed immediately.

        With several workers the requests are sent with the next step, and all workers act on them at the same later
        boundary. The result is then always False.

        Args:
            leave: the master or a signal asked this process to stop.
            end: a callback ended the training.
        """
        if self._step is None:
            return leave
        if leave:
            self._step.leave.assign(1.0)
        if end:
            self._step.end.assign(1.0)
            # Keras must not leave the epoch on this worker only: the other workers would wait for it in the next step.
            self._trained.model.stop_training = False
        return False

    def should_leave(self, is_asked: bool) -> bool:
        """Return, at a boundary, whether any worker had been asked to stop before the last step.

        The answer is the same on every worker.

        Args:
            is_asked: this process was asked to stop; the answer itself on one worker.
        """
        return is_asked if self._step is None else self._step.is_leaving

    def should_end(self) -> bool:
        """Return, at a boundary, whether a callback on any worker had ended the training; the same on every worker."""
        return self._step is not None and self._step.is_ending

    def metrics(self, logs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the running training metrics over all workers; they are computed at the first access."""
        return logs if self._replica is None else LazyMetrics(functools.partial(self._replica.metrics, logs))

    @contextmanager
    def ready_to_validate(self) -> Iterator[None]:
        """Average the model's statistics over the workers inside the block, so that all validate the same model."""
        if self._replica is None:
            yield
            return
        with self._replica.averaged():
            yield

    def end(self) -> None:
        """Assign the averaged statistics on every worker, so that all workers end with the same model."""
        if self._replica is not None:
            for variable, value in zip(self._replica.statistics, self._replica.averages(), strict=True):
                variable.assign(value)

    def check_equal(self, checked_at: int) -> None:
        """Compare the weights of all workers.

        Args:
            checked_at: batches trained in the script at the previous comparison.

        Raises:
            DivergenceError: the weights differ between workers; see `Replica.check_equal`.
        """
        if self._replica is not None:
            self._replica.check_equal(self._progress.total_batches, checked_at)

    def gather_state(self) -> WorkerStates:
        """Return the state that differs between workers; every worker must call it, only the chief uses the result."""
        replica = self._replica
        if replica is None:
            return WorkerStates()
        summed = zip(self._trained.model.metrics_variables, replica.sum_metrics(), strict=True)
        averaged = zip(replica.statistics, replica.averages(), strict=True)
        values = {id(variable): value for pairs in (summed, averaged) for variable, value in pairs}
        gathered = self._workers.gather(self._own_files()) or []
        files = {
            f"rank-{rank}/{name}": content
            for rank, own in enumerate(gathered)
            for name, content in own.items()
        }
        return WorkerStates(files, values)

    def source_state(self, state: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], Path]:
        """Return the state of this worker's data and the directory of its files.

        Args:
            state: the checkpoint's training state.
            folder: the checkpoint's ``training_state`` directory.
        """
        own = folder / f"rank-{self._workers.rank}"
        if state.get("workers", 1) != self._workers.size:
            # The data is divided differently between the workers now: it is read again up to the position.
            kept = ("dataset", "ended")
            return {name: value for name, value in state["source"].items() if name in kept}, own / "data"
        if self._workers.is_chief:
            return state["source"], own / "data"
        source = json.loads((own / _STATE_NAME).read_text(encoding="utf-8"))["source"]
        return source, own / "data"

    def restore(
        self, state: Mapping[str, Any], folder: Path, *, without: Collection[str] = frozenset()
    ) -> None:
        """Restore the state that differs between workers, after the shared state was restored.

        Args:
            state: the checkpoint's training state.
            folder: the checkpoint's ``training_state`` directory.
            without: names of random streams that are already restored.
        """
        restore_random_state(self._trained.model, state["random"], without=without)
        if self._replica is None:
            return
        if state.get("workers", 1) != self._workers.size:
            self._replica.begin_anew()
            return
        own, document = self._own_document(folder)
        with np.load(own / _VALUES_NAME) as arrays:
            values = [arrays[f"arr_{index}"] for index in range(len(arrays.files))]
        self._replica.load_state({"trained": document["trained"], "values": values})
        if not self._workers.is_chief:
            restore_random_state(self._trained.model, document["random"], without=without)

    def restore_random(self, state: Mapping[str, Any], folder: Path) -> None:
        """Restore only the random states; arguments as in `restore`."""
        restore_random_state(self._trained.model, state["random"])
        if not self._workers.is_chief and state.get("workers", 1) == self._workers.size:
            _, document = self._own_document(folder)
            restore_random_state(self._trained.model, document["random"])

    def _own_document(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        own = folder / f"rank-{self._workers.rank}"
        document: dict[str, Any] = json.loads((own / _STATE_NAME).read_text(encoding="utf-8"))
        return own, document

    def _own_files(self) -> dict[str, bytes]:
        assert self._replica is not None
        state = self._replica.get_state()
        document: dict[str, Any] = {"trained": state["trained"]}
        files: dict[str, bytes] = {}
        if not self._workers.is_chief:
            with tempfile.TemporaryDirectory(prefix="det-state-") as folder:
                document["source"] = self._source.save_state(Path(folder) / "data")
                files = {
                    path.relative_to(folder).as_posix(): path.read_bytes()
                    for path in sorted(Path(folder).rglob("*"))
                    if path.is_file()
                }
            document["random"] = capture_random_state(self._trained.model)
        values = io.BytesIO()
        np.savez(values, *state["values"])
        return {**files, _STATE_NAME: json.dumps(document).encode(), _VALUES_NAME: values.getvalue()}

    def _check_alike(self) -> None:
        """Raise ValueError if the seed, the data or the model differs between the workers."""
        described = self._trained.variables.describe()
        facts = {
            "seed": self._seed,
            "data": self._source.describe(),
            "content of the data": self._source.fingerprint(),
            "model": [[variable["path"].split("/")[-1], *variable["shape"]] for variable in described],
        }
        for name, value in facts.items():
            gathered = self._workers.allgather(value)
            different = [rank for rank, other in enumerate(gathered) if other != gathered[0]]
            if different:
                raise ValueError(
                    f"The {name} of rank {', '.join(map(str, different))} differs from that of rank 0: "
                    f"{_short(gathered[different[0]])} instead of {_short(gathered[0])}. Every worker runs the same "
                    "script on the same data; `wrap_data` shares it."
                )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
