"""Read-only access to experiments from a notebook or a script: ``det.experimental.client.get_experiment(7)``.

It works with any master that implements the protocol. Names are those of Determined's own SDK where it has them.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.display import duration_text, hparams_text, percent_text, state_text
from det_keras.errors import MasterError
from det_keras.protocol.metrics import best_metric, group_of, rank
from det_keras.protocol.states import is_over

__all__ = ["Experiment", "Trial", "get_experiment", "get_trial"]

_ROWS_SHOWN = 5
# These values locate a report; they are not measurements.
_PLACES = frozenset({"batches", "epoch", "epochs", "records"})
_POINTS_SHOWN = 200


def get_experiment(experiment_id: int, *, session: Session | None = None) -> Experiment:
    """Return an experiment as it is now; `reload` fetches it again.

    Args:
        experiment_id: its number.
        session: a session with its master; by default with that of ``DET_MASTER``, else with the embedded master.

    Returns:
        The experiment, with its config and its trials.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such experiment, or the caller may not see it.

    Example:
        ```pycon
        >>> experiment = get_experiment(1)
        >>> experiment.name, experiment.metric
        ('digits', 'val_loss')
        >>> trial = experiment.best_trial()
        >>> trial.hparams, trial.searcher_metric
        ({'learning_rate': 0.01}, 0.25)
        >>> trial.metrics("val_loss")
        {'batches': [10, 20], 'values': [0.5, 0.25]}
        ```
    """
    return Experiment(experiment_id, session or _connected())


def get_trial(trial_id: int, *, session: Session | None = None) -> Trial:
    """Return a trial as it is now.

    Args:
        trial_id: its number.
        session: as for `get_experiment`.

    Returns:
        The trial, with its hyperparameters and the summaries of its metrics.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such trial, or the caller may not see it.

    Example:
        ```pycon
        >>> trial = get_trial(1)
        >>> trial.state, trial.batches
        ('RUNNING', 20)
        ```
    """
    session = session or _connected()
    return Trial(session.api.trials.get(int(trial_id)), session)


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
        self._shape = shape
        self._session = session
        self._metric = metric
        self.id = int(shape["id"])
        self.experiment_id = int(shape["experimentId"])
        self.state = state_text(shape["state"])
        self.hparams: dict[str, Any] = dict(shape.get("hparams") or {})
        self.batches = int(shape.get("totalBatchesProcessed") or 0)
        self.summary_metrics: dict[str, Any] = dict(shape.get("summaryMetrics") or {})

    @functools.cached_property
    def searcher_metric(self) -> float | None:
        """The searcher's metric at the best validation so far; None before the first."""
        metric = (
            Experiment(self.experiment_id, self._session).metric if self._metric is None else self._metric
        )
        return best_metric(self._shape, metric)

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

    def __repr__(self) -> str:
        return f"Trial(id={self.id}, experiment_id={self.experiment_id}, state={self.state})"

    def _repr_html_(self) -> str:
        rows = [
            (group_of(group), name, summary["last"], summary["min"], summary["max"])
            for group, metrics in self.summary_metrics.items()
            for name, summary in metrics.items()
            if summary.get("type") == "number" and name not in _PLACES
        ]
        shown = notebook.table(("group", "metric", "last", "lowest", "highest"), rows) if rows else ""
        facts = {
            "experiment": self.experiment_id,
            "batches": self.batches,
            "hyperparameters": hparams_text(self.hparams),
        }
        return notebook.card(f"Trial {self.id} ({self.state})", notebook.facts(facts), shown)


class Experiment:
    """The state of an experiment when it was fetched.

    Attributes:
        id: its number.
        name: its name in the config.
        description: its description in the config.
        labels: its labels in the config.
        state: its state, such as ``ACTIVE`` or ``COMPLETED``.
        progress: the finished part, from 0 to 1.
        config: the complete config, with secrets hidden.
    """

    def __init__(self, experiment_id: int, session: Session) -> None:
        self._session = session
        self.id = int(experiment_id)
        self.reload()

    def reload(self) -> None:
        """Fetch the experiment again.

        Raises:
            MasterError: the experiment no longer exists.
        """
        shape = self._session.api.experiments.get(self.id)
        self.config: dict[str, Any] = dict(shape["config"])
        self.name = str(shape.get("name") or "")
        self.description = str(shape.get("description") or "")
        self.labels = list(shape.get("labels") or ())
        self.state = state_text(shape["state"])
        self.progress = float(shape.get("progress") or 0.0)
        self._times = (shape.get("startTime"), shape.get("endTime"))

    @property
    def metric(self) -> str:
        """The name of the searcher's metric."""
        return str(self.config.get("searcher", {}).get("metric", ""))

    @property
    def smaller_is_better(self) -> bool:
        """Whether smaller values of the metric are better."""
        return bool(self.config.get("searcher", {}).get("smaller_is_better", True))

    def list_trials(self) -> list[Trial]:
        """Fetch the trials, best first; trials without a validation are last."""
        found = self._session.api.experiments.trials(self.id)
        trials = [Trial(shape, self._session, self.metric) for shape in found]
        smaller = self.smaller_is_better
        return sorted(
            trials, key=lambda trial: (rank(trial.searcher_metric, smaller_is_better=smaller), trial.id)
        )

    def best_trial(self) -> Trial | None:
        """Fetch the trial with the best validation; None before the first validation."""
        trials = self.list_trials()
        return trials[0] if trials and trials[0].searcher_metric is not None else None

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={self.name!r}, state={self.state})"

    def _repr_html_(self) -> str:
        """Return HTML with the progress, the best trials and the curve of the best one."""
        trials = self.list_trials()
        facts = {
            "state": self.state,
            "progress": "done" if is_over(self.state) else percent_text(self.progress),
            "duration": duration_text(*self._times),
            "trials": len(trials),
        }
        rows = [
            (trial.id, trial.state, trial.searcher_metric, trial.batches, hparams_text(trial.hparams))
            for trial in trials[:_ROWS_SHOWN]
        ]
        columns = ("trial", "state", self.metric, "batches", "hyperparameters")
        lines = {f"trial {trial.id}: {self.metric}": self._curve(trial) for trial in trials[:1]}
        return notebook.card(
            f"Experiment {self.id}: {self.name}",
            notebook.facts({"description": self.description, **facts} if self.description else facts),
            notebook.table(columns, rows) if rows else "",
            notebook.curves(f"{self.metric} by batches", lines),
        )

    def _curve(self, trial: Trial) -> tuple[list[Any], list[Any]]:
        try:
            curve = trial.metrics(self.metric, most_points=_POINTS_SHOWN)
        except MasterError:
            # The table is shown without the curve.
            return [], []
        return curve["batches"], curve["values"]


def _connected() -> Session:
    # The first object that a notebook asks for: no caller could have read the environment before.
    return open_session(Settings.from_environment(os.environ))
