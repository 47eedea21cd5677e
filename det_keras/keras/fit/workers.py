"""Coordination of the workers of a `fit`: equal initial state, common decisions, and a joint checkpoint state."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.data import DataSource
from det_keras.keras.distributed.exchange import sum_over_workers
from det_keras.keras.distributed.replica import Replica
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.distributed.virtual_replica import make_replica
from det_keras.keras.private_api.models import all_layers
from det_keras.keras.private_api.steps import given_losses
from det_keras.keras.training.metric_values import LazyMetrics
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.workers import Workers


class FitWorkers(Workers):
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
        super().__init__(workers, step)
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
    def replica(self) -> Replica | None:
        """The model of this worker, which has its own state also where it does not train; None on one worker."""
        return None if self._step is None else self._replica or self._make_replica()

    @property
    def variables(self) -> list[tf.Variable]:
        """The variables by which workers ask each other in steps, which are no state of the training."""
        return [] if self._step is None else self._step.variables

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
        self._replica = self._make_replica()
        with self._replica.active():
            if is_new:
                self._replica.adopt_initial_state(
                    [tracked.variable for tracked in self._trained.variables.tracked]
                )
            try:
                yield
            finally:
                self._step.is_in_fit = False

    def _make_replica(self) -> Replica:
        assert self._step is not None
        return make_replica(self._trained.model, self._workers, self._step, may_lack_rows=self._may_lack_rows)

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
    def averaged(self) -> Iterator[None]:
        """Average the model's statistics over the workers inside the block, so that all validate the same model."""
        if self._replica is None:
            yield
            return
        with self._replica.averaged():
            yield

    def average(self) -> None:
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

    def shared_values(self) -> Mapping[int, Any]:
        """Return the sums of metrics and the averages of statistics, by id of their variable."""
        replica = self._replica
        assert replica is not None
        summed = zip(self._trained.model.metrics_variables, replica.sum_metrics(), strict=True)
        averaged = zip(replica.statistics, replica.averages(), strict=True)
        return {id(variable): value for pairs in (summed, averaged) for variable, value in pairs}

    def _check_alike(self) -> None:
        """Raise ValueError if the seed, the data or the model differs between the workers."""
        described = self._trained.variables.describe()
        facts = {
            "seed": self._seed,
            "data": self._source.describe(),
            "content of the data": self._source.fingerprint(),
            "model": [[variable["path"].split("/")[-1], *variable["shape"]] for variable in described],
        }
        self.check_alike(facts, "Every worker runs the same script on the same data; `wrap_data` shares it.")


def check_support(model: Any) -> None:
    """Check that all layers and losses give the same result on several workers as on one.

    Raises:
        ValueError: a layer or loss does not; the message names it and the solution.
    """
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise ValueError(
                f"`{layer.name}` is a BatchNormalization(synchronized=True), which needs tf.distribute and would do "
                "nothing here. Leave `synchronized` out: each worker normalises its own rows, and the moving "
                "statistics are averaged."
            )
    for loss in keras.tree.flatten(given_losses(model)):
        if isinstance(loss, keras.losses.Loss) and loss.reduction in (None, "none"):
            raise ValueError(
                f"The loss `{loss.name}` has reduction={loss.reduction!r}: its values cannot be weighted over several "
                "workers. Use reduction='sum' or reduction='sum_over_batch_size'."
            )
