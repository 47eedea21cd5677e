"""A trial at a master, and what it reported."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from det_keras import notebook
from det_keras.client import Session
from det_keras.display import hparams_text, parse_time, state_text
from det_keras.experimental.checkpoint import Checkpoint, best_checkpoints, top_checkpoint
from det_keras.frame import metrics_frame
from det_keras.protocol.metrics import POSITIONS, VALIDATION, best_metric, group_of
from det_keras.protocol.states import PAUSED, is_over

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class TrialMetrics:
    """One report of a trial.

    Attributes:
        trial_id: number of the trial.
        trial_run_id: number of the trial's run that sent the report.
        steps_completed: number of batches trained before it.
        end_time: when it was sent.
        group: ``training``, ``validation`` or a custom group.
        metrics: the values by name.
    """

    trial_id: int
    trial_run_id: int
    steps_completed: int
    end_time: datetime | None
    group: str
    metrics: dict[str, Any]


class Trial:
    """The state of a trial when it was fetched.

    Attributes:
        id: its number.
        experiment_id: the number of its experiment.
        state: its state, such as ``RUNNING``.
        hparams: values of the hyperparameters, nested as in the config.
        batches: number of batches that it has trained.
        summary_metrics: count, smallest, largest, mean and last value of every metric, by group.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session, metric: str | None = None) -> None:
        self._session = session
        self._metric = metric
        self.id = int(shape["id"])
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self._shape = shape
        self.experiment_id = int(shape["experimentId"])
        self.state = state_text(shape["state"])
        self.hparams: dict[str, Any] = dict(shape.get("hparams") or {})
        self.batches = int(shape.get("totalBatchesProcessed") or 0)
        self.summary_metrics: dict[str, Any] = dict(shape.get("summaryMetrics") or {})

    @functools.cached_property
    def searcher_metric(self) -> float | None:
        """The searcher's metric at the best validation so far; None before the first."""
        if self._metric is None:
            config = self._session.api.experiments.get(self.experiment_id)["config"]
            self._metric = str(config.get("searcher", {}).get("metric", ""))
        return best_metric(self._shape, self._metric)

    def metrics(self, name: str, group: str = "validation", *, most_points: int = 1000) -> dict[str, Any]:
        """Return a metric's curve, downsampled so that it looks the same.

        Args:
            name: the metric, under its reported name.
            group: the group that it was reported to: ``validation`` by default, ``training``, or another.
            most_points: largest number of points; 1000 by default.

        Returns:
            ``{"batches": [...], "values": [...]}``: for each point, the batches trained (int) and the value (float).

        Raises:
            MasterError: the master rejects the call.
        """
        points = self._session.api.trials.time_series(self.id, name, group, most_points)
        return {
            "batches": [point["batches"] for point in points],
            "values": [float(point["values"][name]) for point in points],
        }

    def reload(self) -> None:
        """Fetch the trial again.

        Raises:
            MasterError: the trial no longer exists.
        """
        self._read(self._session.api.trials.get(self.id))
        self.__dict__.pop("searcher_metric", None)

    def iter_metrics(self, group: str = VALIDATION) -> Iterator[TrialMetrics]:
        """Yield all reports of a group, in the order of their batches; those that a restart undid are omitted.

        Args:
            group: ``validation`` by default, ``training``, or a custom group.

        Returns:
            An iterator over the reports. It fetches them while it is read.

        Raises:
            MasterError: the master rejects the call.

        Example:
            ```pycon
            >>> reports = get_trial(1).iter_metrics()
            >>> [(report.steps_completed, report.metrics) for report in reports]
            [(10, {'val_loss': 0.5}), (20, {'val_loss': 0.25})]
            ```
        """
        for shape in self._session.api.trials.reports(self.id, group):
            yield report_of(shape, group)

    def to_frame(self, group: str = VALIDATION) -> Any:
        """Return the reports of a group as a pandas DataFrame.

        The index is ``steps_completed``, the number of trained batches. The columns are the names of the metrics, in
        the order of their first report. Reports of the same batch are one row. Columns of integers are integers, NaN
        stays NaN, and what was not reported at a batch is missing.

        Args:
            group: ``validation`` by default, ``training``, or a custom group.

        Returns:
            A `pandas.DataFrame`.

        Raises:
            DetError: pandas is not installed.
            MasterError: the master rejects the call.

        Example:
            ```pycon
            >>> frame = get_trial(1).to_frame()
            >>> frame.index.tolist(), frame["val_loss"].tolist()
            ([10, 20], [0.5, 0.25])
            ```
        """
        return reports_frame(self.reports_by_batch(group), ["steps_completed"])

    def reports_by_batch(self, group: str) -> dict[int, dict[str, Any]]:
        """Return the metrics of a group by number of trained batches; of a name that occurs twice, the last value."""
        reports: dict[int, dict[str, Any]] = {}
        for report in self.iter_metrics(group):
            reports.setdefault(report.steps_completed, {}).update(report.metrics)
        return reports

    def iter_logs(
        self, *, follow: bool = False, head: int | None = None, tail: int | None = None
    ) -> Iterator[str]:
        """Yield the lines of the log, without their line breaks.

        Args:
            follow: wait for further lines until the trial has ended.
            head: only the first lines; their number.
            tail: only the last lines; their number.

        Raises:
            ValueError: more than one of `follow`, `head` and `tail` is given.
            MasterError: the master rejects the call.
        """
        if sum((follow, head is not None, tail is not None)) > 1:
            raise ValueError("Give at most one of `follow`, `head` and `tail`.")
        log = self._session.api.trial_logs(self.id)
        if follow:
            lines = log.follow()
        elif tail is not None:
            lines = iter(log.tail(tail))
        else:
            lines = log.lines(limit=head)
        return (str(line["message"]).removesuffix("\n") for line in lines)

    def wait(self, interval: float = 1.0, *, timeout: float | None = None) -> str:
        """Wait until the trial has ended or is paused.

        Args:
            interval: time between two requests, in seconds.
            timeout: maximum time to wait, in seconds; None for no limit.

        Returns:
            The state, such as ``COMPLETED``.

        Raises:
            TimeoutError: the trial has not ended in time.
            MasterError: the trial no longer exists.
        """
        return wait_for_end(self, f"Trial {self.id}", interval_s=interval, timeout_s=timeout)

    def kill(self) -> None:
        """End the trial at once, without a checkpoint.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.trials.kill(self.id)

    def list_checkpoints(
        self,
        sort_by: str | None = None,
        *,
        smaller_is_better: bool | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Fetch the complete checkpoints, best first; those without the metric come last, newest first.

        Args:
            sort_by: name of a validation metric; by default the searcher's metric.
            smaller_is_better: direction of the metric; by default that of the searcher's metric.
            max_results: maximum number of checkpoints; by default all.

        Raises:
            ValueError: `max_results` is below 1.
            MasterError: the master rejects the call.
        """
        return best_checkpoints(
            self._session.api.trials.checkpoints(self.id),
            self._session,
            sort_by=sort_by,
            smaller_is_better=smaller_is_better,
            max_results=max_results,
        )

    def top_checkpoint(
        self, sort_by: str | None = None, *, smaller_is_better: bool | None = None
    ) -> Checkpoint | None:
        """Fetch the best checkpoint; None if no checkpoint has the metric.

        Args:
            sort_by: as for `list_checkpoints`.
            smaller_is_better: as for `list_checkpoints`.

        Raises:
            MasterError: the master rejects the call.
        """
        return top_checkpoint(self.list_checkpoints(sort_by, smaller_is_better=smaller_is_better), sort_by)

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, state={self.state})"

    def _repr_html_(self) -> str:
        rows = [
            (group_of(group), name, summary["last"], summary["min"], summary["max"])
            for group, metrics in self.summary_metrics.items()
            for name, summary in metrics.items()
            if summary.get("type") == "number" and name not in POSITIONS
        ]
        shown = notebook.table(("group", "metric", "last", "lowest", "highest"), rows) if rows else ""
        facts = {
            "experiment": self.experiment_id,
            "batches": self.batches,
            "hyperparameters": hparams_text(self.hparams),
        }
        return notebook.card(f"Trial {self.id} ({self.state})", notebook.facts(facts), shown)


def reports_frame(reports: Mapping[Any, Mapping[str, Any]], index_names: list[str]) -> Any:
    """Return a DataFrame of reports.

    Args:
        reports: row of the index -> metrics.
        index_names: names of the levels of the index.

    Raises:
        DetError: pandas is not installed.
    """
    columns: dict[str, dict[Any, Any]] = {}
    for row, metrics in reports.items():
        for name, value in metrics.items():
            columns.setdefault(name, {})[row] = value
    return metrics_frame(list(reports), index_names, columns)


def report_of(shape: Mapping[str, Any], group: str) -> TrialMetrics:
    """Return a report of the REST API, which is in a group."""
    # Validations have a name of their own in the protocol.
    values = shape["metrics"].get("validation_metrics") or shape["metrics"].get("avg_metrics") or {}
    return TrialMetrics(
        int(shape["trialId"]),
        int(shape["trialRunId"]),
        int(shape["totalBatches"]),
        parse_time(shape.get("endTime")),
        group,
        {name: decoded(value) for name, value in values.items()},
    )


def decoded(value: Any) -> Any:
    """Return a value of JSON, which has no numbers that are not finite."""
    return float(value) if isinstance(value, str) and value in _NOT_FINITE else value


class _Stateful(Protocol):
    state: str

    def reload(self) -> None: ...


def wait_for_end(waited_for: _Stateful, name: str, *, interval_s: float, timeout_s: float | None) -> str:
    """Reload an object until it has ended or is paused, and return its state.

    Args:
        waited_for: the experiment or trial.
        name: describes it in an error.
        interval_s: time between two requests, in seconds.
        timeout_s: maximum time to wait, in seconds; None for no limit.

    Raises:
        TimeoutError: it has not ended in time.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        waited_for.reload()
        if is_over(waited_for.state) or waited_for.state == PAUSED:
            return waited_for.state
        left_s = interval_s if deadline is None else deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(
                f"{name} has not ended after {timeout_s:g} s: its state is {waited_for.state}."
            )
        time.sleep(min(interval_s, left_s))
