"""The workers of a loop written by hand, from the point of view of one of them.

The user's own functions run on this worker's rows. What they share is added from outside: the optimizers exchange
gradients (`gradients`), weighted by the rows of the batch that the loop is at; metrics return the results of the summed
states; moving statistics are averaged where they are validated or stored. On one worker all of this does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.distributed.exchange import broadcast, sum_over_workers
from det_keras.keras.distributed.replica import check_equal, check_metrics
from det_keras.keras.distributed.shared_step import Share, SharedStep
from det_keras.keras.distributed.worker_replica import RANK_STRIDE, average_over_workers, spread_seeds
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.training.progress import Progress
from det_keras.keras.training.workers import Workers


class LoopWorkers(Workers):
    """What a loop shares with the loops of other workers.

    Args:
        workers: rank, size and small exchanges.
        step: the share that the optimizers use; None on one worker.
        tracked: the tracked objects.
        progress: the progress of the loop.

    Attributes:
        trained_rows: rows that this worker has trained on.
    """

    def __init__(
        self,
        workers: DistributedContext,
        step: SharedStep | None,
        tracked: TrackedObjects,
        progress: Progress,
    ) -> None:
        super().__init__(workers, step)
        self._tracked = tracked
        self._progress = progress
        self.trained_rows = 0
        self._undone: list[tuple[Any, Any]] | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Share gradients and metrics inside the block."""
        if self._step is None:
            yield
            return
        check_metrics(self._tracked.all_metrics())
        self._step.begin()
        self._step.is_in_fit = True
        self._step.share = Share(*self._step.counts)
        self._set_counts(1, self._workers.size)
        metrics = self._tracked.all_metrics()
        for metric in metrics:
            metric.result = self._result_of_all(metric)
        try:
            yield
        finally:
            for metric in metrics:
                vars(metric).pop("result", None)
            self._step.share, self._step.is_in_fit = None, False

    def begin(self, seed: int) -> None:
        """Check that all workers run the same loop, and begin with the chief's variables.

        Args:
            seed: the seed of all random operations.

        Raises:
            ValueError: the seed or the tracked objects differ between the workers.
        """
        if self._step is None:
            return
        variables = self._tracked.variables()
        described = [[item["path"].split("/")[-1], *item["shape"]] for item in variables.describe()]
        facts = {"seed": seed, "tracked objects": [self._tracked.kinds(), described]}
        self.check_alike(facts, "Every worker runs the same script and tracks the same objects.")
        for index, item in enumerate(variables.tracked):
            item.variable.assign(broadcast(item.variable.value, name=f"initial.{index}"))
        self._spread()

    def begin_batch(self, counted: Any) -> tuple[int, int]:
        """Weight what follows by the rows of a batch; return the numbers of rows of this worker and of all workers.

        Args:
            counted: this worker's rows and those of all workers, or this worker's alone if the others' are unknown.
        """
        numbers = np.atleast_1d(np.asarray(counted))
        rows = int(numbers[0])
        # Always known: a function that was traced with it may serve several passes.
        all_rows = int(numbers[1] if len(numbers) > 1 else self.add_up([rows])[0])
        self._set_counts(rows, all_rows)
        if rows == 0:
            # The batch is a row that belongs to another worker: what it does to statistics and metrics is undone.
            held = [*self._tracked.statistics(), *self._metric_variables()]
            self._undone = [(variable, variable.value.read_value()) for variable in held]
        return rows, all_rows

    def end_batch(self, rows: int) -> None:
        """Undo the effects of a batch without rows of this worker, after its step."""
        self.trained_rows += rows
        for variable, value in self._undone or ():
            variable.assign(value)
        self._undone = None

    def end_pass(self) -> None:
        """Give all workers the same weight again, between passes over the data."""
        if self._step is not None:
            self._set_counts(1, self._workers.size)

    def should_leave(self, is_asked: bool) -> bool:
        """Return whether any worker was asked to stop; all workers must make this call."""
        return is_asked if self._step is None else any(self.gather("whether to stop", is_asked))

    def add_up(self, values: Sequence[Any]) -> list[Any]:
        """Return the sums of numbers or arrays over all workers, the same on each; all workers must make this call."""
        if self._step is None:
            return list(values)
        gathered = self.gather("sums", [np.asarray(value) for value in values])
        return [sum(column[1:], column[0]) for column in zip(*gathered, strict=True)]

    def means(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return numbers by name, the same on all workers: the means of those that differ; all must make this call."""
        found = dict(values)
        if self._step is None:
            return found
        gathered = self.gather(f"a validation of {', '.join(sorted(found))}", found)
        for name, value in values.items():
            of_ranks = [others[name] for others in gathered]
            if any(other != value for other in of_ranks) and not isinstance(value, list):
                found[name] = sum(of_ranks) / len(of_ranks)
        return found

    def gather(self, what: str, value: Any) -> list[Any]:
        """Return the values of all workers, by rank.

        Args:
            what: what is exchanged, the same on all workers.
            value: of this worker.

        Raises:
            ValueError: another worker exchanges something else: the workers run different calls.
        """
        gathered = self._workers.allgather((what, value))
        others = [rank for rank, (other, _) in enumerate(gathered) if other != what]
        if others:
            raise ValueError(
                f"The workers are at different calls of the loop: rank {self._workers.rank} exchanges {what}, rank "
                f"{others[0]} {gathered[others[0]][0]}. All workers have to make the same calls with the same names: "
                "leave no loop on one rank only, and call `report` and `report_validation` on every rank."
            )
        return [other for _, other in gathered]

    def should_end(self) -> bool:
        """Return False: nothing ends a loop on one worker only."""
        return False

    def check_equal(self, checked_at: int) -> None:
        """Compare the weights of all workers; see `replica.check_equal`."""
        check_equal(self._tracked.trainable_variables(), self._progress.total_batches, checked_at)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Assign the statistics of all workers inside the block, so that all validate the same models."""
        if self._step is None:
            yield
            return
        statistics = self._tracked.statistics()
        own = [np.array(variable.value) for variable in statistics]
        self.average()
        try:
            yield
        finally:
            for variable, value in zip(statistics, own, strict=True):
                variable.assign(value)

    def average(self) -> None:
        """Assign the statistics of all workers on each of them."""
        if self._step is not None:
            for variable, value in zip(self._tracked.statistics(), self._averages(), strict=True):
                variable.assign(value)

    def shared_values(self) -> Mapping[int, Any]:
        """Return the sums of metrics and the averages of statistics, by id of their variable."""
        summed = zip(self._metric_variables(), self._sums_of_metrics(), strict=True)
        averaged = zip(self._tracked.statistics(), self._averages(), strict=True)
        return {id(variable): value for pairs in (summed, averaged) for variable, value in pairs}

    def begin_anew(self) -> None:
        """Begin from the chief's state when the number of workers has changed: metrics continue on the chief only."""
        self.trained_rows = 0
        if self._step is None:
            return
        if not self._workers.is_chief:
            for metric in self._tracked.all_metrics():
                metric.reset_state()
        self._spread()

    def _set_counts(self, rows: int, all_rows: int) -> None:
        assert self._step is not None
        for variable, count in zip(self._step.counts, (rows, all_rows), strict=True):
            variable.assign(count)

    def _metric_variables(self) -> list[Any]:
        return [variable for metric in self._tracked.all_metrics() for variable in metric.variables]

    def _sums_of_metrics(self) -> list[np.ndarray[Any, Any]]:
        values = [variable.value.read_value() for variable in self._metric_variables()]
        return [np.asarray(total) for total in sum_over_workers(values, name="metric_states")]

    def _averages(self) -> list[np.ndarray[Any, Any]]:
        own = [np.asarray(variable.value) for variable in self._tracked.statistics()]
        return average_over_workers(own, self.trained_rows, self._workers)

    def _spread(self) -> None:
        """Change the random streams of tracked objects, which are those of the chief, to this rank's own."""
        rank = self._workers.rank
        spread_seeds(self._tracked.seeds(), rank)
        for generator in self._tracked.generators():
            state = np.asarray(generator.state)
            # The last number is the key; the others count the draws.
            state[-1] = (int(state[-1]) + rank * RANK_STRIDE) % 2**63
            generator.state.assign(state)

    def _result_of_all(self, metric: keras.metrics.Metric) -> Callable[[], Any]:
        original = metric.result

        def result() -> Any:
            if tf.inside_function():
                return original()
            own = [variable.value.read_value() for variable in metric.variables]
            sums = sum_over_workers(own, name=f"metric.{metric.name}")
            for variable, total in zip(metric.variables, sums, strict=True):
                variable.assign(total)
            found = keras.tree.map_structure(
                lambda value: tf.identity(value) if tf.is_tensor(value) else value, original()
            )
            for variable, value in zip(metric.variables, own, strict=True):
                variable.assign(value)
            return found

        return result
