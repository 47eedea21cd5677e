"""The searcher's wishes for this trial, as scripts of Determined's earlier releases read them.

    for operation in context.searcher.operations():
        train(until=operation.length)
        operation.report_completed(metric)

`context.fit` needs none of this; see `det_keras.keras.engine.injected.searcher`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from det_keras.core.backend.base import Backend, Operation
from det_keras.core.distributed import DistributedContext

__all__ = ["SearcherContext", "SearcherMode", "SearcherOperation", "Unit"]


class Unit(enum.Enum):
    """What the lengths of a searcher count."""

    EPOCHS = "EPOCHS"
    RECORDS = "RECORDS"
    BATCHES = "BATCHES"


class SearcherMode(enum.Enum):
    """Who iterates over the operations.

    Attributes:
        WorkersAskChief: all workers, in step; the chief knows, and all of them hear the same.
        ChiefOnly: the chief alone.
    """

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"


class SearcherOperation:
    """One wish of the searcher: train until `length`, validate, report the metric.

    Args:
        operation: the wish.
        distributed: the workers; the chief alone may report.
        report_progress: is told which part of the operation is done, 0 to 1.
        report_completed: is told the searcher's metric.
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
        """How far to train, from the trial's beginning, in the unit of ``searcher.max_length``."""
        return self._length

    @property
    def is_completed(self) -> bool:
        """Whether `report_completed` was called."""
        return self._is_completed

    def report_progress(self, length: float) -> None:
        """Report how far training has come; on the chief only.

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

    def report_completed(self, searcher_metric: Any) -> None:
        """Answer the operation; on the chief only, and once.

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
            raise RuntimeError(f"Rank {self._distributed.rank} called `{call}`, which is the chief's alone.")


class SearcherContext:
    """Hands out the searcher's operations.

    Args:
        backend: whom to ask.
        distributed: the workers.
        max_length: ``searcher.max_length`` of the config: a number, or a mapping of one unit to a number; None
            without one, as alone.
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
        """Yield one operation after another, until the searcher wants nothing more of this trial.

        Where no searcher gives lengths there is one: the config's ``searcher.max_length``; alone, of length 1.

        Args:
            searcher_mode: who iterates.
            auto_ack: at the end, promise the master to exit, and that the trial may be given more to do later.

        Raises:
            RuntimeError: a worker iterates in `SearcherMode.ChiefOnly`, or an operation was not completed.
        """
        searcher_mode = SearcherMode(searcher_mode)
        if searcher_mode is SearcherMode.ChiefOnly and not self._distributed.is_chief:
            raise RuntimeError(
                f"Rank {self._distributed.rank} asked for operations, which is the chief's alone "
                "in SearcherMode.ChiefOnly."
            )
        everywhere = searcher_mode is SearcherMode.WorkersAskChief
        operation = self._next(everywhere)
        has_searcher = operation is not None
        while operation is None or not operation.completed:
            wish = self._wish(operation or Operation(self._configured_length()))
            yield wish
            if self._distributed.is_chief and not wish.is_completed:
                raise RuntimeError(
                    "The next operation was asked for before `operation.report_completed(metric)` was called for "
                    "the last."
                )
            operation = self._next(everywhere) if has_searcher else Operation(0, completed=True)
        if auto_ack and has_searcher:
            self.acknowledge_out_of_ops()

    def acknowledge_out_of_ops(self) -> None:
        """Promise the master to exit; the trial goes on from its checkpoint if the searcher wants more of it."""
        self._backend.acknowledge_preemption()

    def get_configured_units(self) -> Unit | None:
        """Return what the lengths count, None if the config gives a plain number or nothing."""
        if isinstance(self._max_length, Mapping):
            for unit in Unit:
                if unit.value.lower() in self._max_length:
                    return unit
        return None

    def _wish(self, operation: Operation) -> SearcherOperation:
        return SearcherOperation(
            operation,
            self._distributed,
            self._backend.report_progress,
            lambda metric: self._complete(operation, metric),
        )

    def _complete(self, operation: Operation, metric: Any) -> None:
        # The chief's own call: the backend that the workers share would wait for the others.
        self._backend.unshared.complete_operation(operation, metric)

    def _next(self, everywhere: bool) -> Operation | None:
        if everywhere:
            return self._backend.current_operation()
        return self._backend.unshared.current_operation()

    def _configured_length(self) -> int:
        if isinstance(self._max_length, Mapping):
            return int(next(iter(self._max_length.values()), 1))
        return int(self._max_length or 1)
