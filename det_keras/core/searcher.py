"""The searcher's operations for this trial, for scripts of Determined's earlier releases.

    for operation in context.searcher.operations():
        train(until=operation.length)
        operation.report_completed(metric)

`context.fit` needs none of this; see `det_keras.keras.training.boundaries.searcher`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from det_keras.core.backend.base import Backend, Operation
from det_keras.core.distributed import DistributedContext


class Unit(enum.Enum):
    """The unit of a searcher's lengths."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who iterates over the operations.

    Attributes:
        WorkersAskChief: all workers, in step; they get the chief's operations.
        ChiefOnly: only the chief.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """A request of the searcher: train until `length`, validate, report the metric.

    Args:
        operation: the request.
        distributed: the workers; only the chief may report.
        report_progress: called with the fraction of the operation that is done, 0 to 1.
        report_completed: called with the searcher's metric.
    """

    def __init__(
        self,
        operation: Operation,
        distributed: DistributedContext,
        report_progress: Callable[[float], None],
        report_completed: Callable[[Any], None],
    ) -> None:
        self._length = operation.length
        self._distributed = distributed
        self._report_progress = report_progress
        self._report_completed = report_completed
        self._is_completed = False

    @property
    def length(self) -> int:
        """Total length to train, from the beginning of the trial, in the unit of ``searcher.max_length``."""
        return self._length

    @property
    def is_completed(self) -> bool:
        """Whether `report_completed` was called."""
        return self._is_completed

    def report_progress(self, length: float) -> None:
        """Report the progress of training; on the chief only.

        Args:
            length: in the unit of `length`.

        Raises:
            RuntimeError: this is not the chief, or the operation is completed.
        """
        self._check("report_progress")
        if self._is_completed:
            raise RuntimeError(
                "`report_progress` was called after `report_completed`. Take the next operation first."
            )
        self._report_progress(min(max(length / max(self._length, 1), 0.0), 1.0))

    def report_completed(self, searcher_metric: object) -> None:
        """Complete the operation; on the chief only, and once.

        Args:
            searcher_metric: value of the searcher's metric after `length`.

        Raises:
            RuntimeError: this is not the chief, or the operation is completed.
        """
        self._check("report_completed")
        if self._is_completed:
            raise RuntimeError("`report_completed` was called twice for one operation.")
        self._report_completed(searcher_metric)
        self._is_completed = True

    def _check(self, call: str) -> None:
        if not self._distributed.is_chief:
            raise RuntimeError(f"Rank {self._distributed.rank} called `{call}`, which only the chief may.")


class SearcherContext:
    """Provides the searcher's operations.

    Args:
        backend: the source of operations.
        distributed: the workers.
        max_length: ``searcher.max_length`` of the config: a number, or a mapping of one unit to a number; None
            without a length, as in a local run.
    """

    def __init__(
        self,
        backend: Backend,
        distributed: DistributedContext,
        max_length: int | Mapping[str, int] | None = None,
    ) -> None:
        self._backend = backend
        self._distributed = distributed
        self._max_length = max_length

    def operations(
        self, searcher_mode: SearcherMode = SearcherMode.WorkersAskChief, auto_ack: bool = True
    ) -> Iterator[SearcherOperation]:
        """Yield operations until the searcher has no more for this trial.

        If no searcher gives lengths, there is one operation, with the config's ``searcher.max_length``; in a local run,
        with length 1.

        Args:
            searcher_mode: which workers iterate.
            auto_ack: at the end, report to the master that the process will exit and can be resumed later.

        Raises:
            RuntimeError: a rank other than the chief iterates in `SearcherMode.ChiefOnly`, or an operation was not
                completed.
        """
        searcher_mode = SearcherMode(searcher_mode)
        if searcher_mode is SearcherMode.ChiefOnly and not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} called `operations`, which only the chief may "
                "in SearcherMode.ChiefOnly."
            )
        everywhere = searcher_mode is SearcherMode.WorkersAskChief
        operation = self._next(everywhere)
        has_searcher = operation is not None
        while operation is None or not operation.completed:
            requested = self._requested(operation or Operation(self._configured_length()))
            yield requested
            if self._distributed.is_chief and not requested.is_completed:
                raise RuntimeError(
                    "The next operation was requested before `operation.report_completed(metric)` was called for "
                    "the last."
                )
            operation = self._next(everywhere) if has_searcher else Operation(0, completed=True)
        if auto_ack and has_searcher:
            self.acknowledge_out_of_ops()

    def acknowledge_out_of_ops(self) -> None:
        """Report that the process will exit; the trial resumes if the searcher gives it a longer length."""
        self._backend.acknowledge_preemption()

    def get_configured_units(self) -> Unit | None:
        """Return the unit of the lengths; None if the config has a plain number or no length."""
        if isinstance(self._max_length, Mapping):
            for unit in Unit:
                if unit.value.lower() in self._max_length:
                    return unit
        return None

    def _requested(self, operation: Operation) -> SearcherOperation:
        return SearcherOperation(
            operation,
            self._distributed,
            self._backend.report_progress,
            lambda metric: self._complete(operation, metric),
        )

    def _complete(self, operation: Operation, metric: object) -> None:
        # Called on the chief only: the shared backend would wait for the other workers.
        self._backend.unshared.complete_operation(operation, metric)

    def _next(self, everywhere: bool) -> Operation | None:
        if everywhere:
            return self._backend.current_operation()
        return self._backend.unshared.current_operation()

    def _configured_length(self) -> int:
        if isinstance(self._max_length, Mapping):
            return int(next(iter(self._max_length.values()), 1))
        return int(self._max_length or 1)
