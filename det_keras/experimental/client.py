"""Experiments to look at from a notebook or a script: ``det.experimental.client.get_experiment(7)``.

Read-only, and of any master that speaks the protocol. Names are those of Determined's own SDK where it has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.display import duration_text, hparams_text, percent_text, state_text
from det_keras.errors import MasterError
from det_keras.protocol.metrics import group_of, rank
from det_keras.protocol.states import is_over

__all__ = ["Experiment", "Trial", "get_experiment", "get_trial"]

_ROWS_SHOWN = 5
# Where a report belongs, not what was measured.
_PLACES = frozenset({"batches", "epoch", "epochs", "records"})
_POINTS_SHOWN = 200


def get_experiment(experiment_id: int, *, session: Session | None = None) -> Experiment:
    """Return an experiment as it is now; `reload` looks again.

    Args:
        experiment_id: its number.
        session: with its master; the one of ``DET_MASTER``, else the embedded one, by default.

    Raises:
        DetError: no master is named and none runs.
        MasterError: there is no such experiment, or it is not the caller's to see.
    """
    return Experiment(experiment_id, session or _connected())


def get_trial(trial_id: int, *, session: Session | None = None) -> Trial:
    """Return a trial as it is now; arguments and errors are those of `get_experiment`."""
    session = session or _connected()
    return Trial(session.api.trials.get(int(trial_id)), session)


class Trial:
    """A trial as it was when it was fetched.

    Attributes:
        id: its number.
        experiment_id: of its experiment.
        state: such as ``RUNNING``.
        hparams: values of the hyperparameters, nested as in the config.
        batches: that it has trained.
        summary_metrics: count, smallest, largest, mean and last of every metric, by group.
        searcher_metric: the best validation so far, None before the first.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self.id = int(shape["id"])
        self.experiment_id = int(shape["experimentId"])
        self.state = state_text(shape["state"])
        self.hparams: dict[str, Any] = dict(shape.get("hparams") or {})
        self.batches = int(shape.get("totalBatchesProcessed") or 0)
        self.summary_metrics: dict[str, Any] = dict(shape.get("summaryMetrics") or {})
        self.searcher_metric: float | None = shape.get("searcherMetricValue")

    def metrics(self, name: str, group: str = "validation", *, most_points: int = 1000) -> dict[str, Any]:
        """Return a metric's curve as ``{"batches": [...], "values": [...]}``, thinned so that it looks the same.

        Raises:
            MasterError: the master refuses; one that does not thin may give other points.
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
            (group_of(group), name, one["last"], one["min"], one["max"])
            for group, metrics in self.summary_metrics.items()
            for name, one in metrics.items()
            if one.get("type") == "number" and name not in _PLACES
        ]
        shown = notebook.table(("group", "metric", "last", "lowest", "highest"), rows) if rows else ""
        facts = {
            "experiment": self.experiment_id,
            "batches": self.batches,
            "hyperparameters": hparams_text(self.hparams),
        }
        return notebook.card(f"Trial {self.id} ({self.state})", notebook.facts(facts), shown)


class Experiment:
    """An experiment as it was when it was fetched.

    Attributes:
        id: its number.
        name: what its config calls it.
        description: the same.
        labels: the same.
        state: such as ``ACTIVE`` or ``COMPLETED``.
        progress: from 0 to 1.
        config: the full config, secrets hidden.
    """

    def __init__(self, experiment_id: int, session: Session) -> None:
        self._session = session
        self.id = int(experiment_id)
        self.reload()

    def reload(self) -> None:
        """Fetch it again.

        Raises:
            MasterError: there is no such experiment any more.
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
        """The name of the metric that the search looks at."""
        return str(self.config.get("searcher", {}).get("metric", ""))

    @property
    def smaller_is_better(self) -> bool:
        """Which way the metric is judged."""
        return bool(self.config.get("searcher", {}).get("smaller_is_better", True))

    def list_trials(self) -> list[Trial]:
        """Fetch its trials, the best first, those without a validation last."""
        found = self._session.api.experiments.trials(self.id)
        trials = [Trial(shape, self._session) for shape in found]
        smaller = self.smaller_is_better
        return sorted(
            trials, key=lambda trial: (rank(trial.searcher_metric, smaller_is_better=smaller), trial.id)
        )

    def best_trial(self) -> Trial | None:
        """Fetch the trial with the best validation; None before the first."""
        trials = self.list_trials()
        return trials[0] if trials and trials[0].searcher_metric is not None else None

    def __repr__(self) -> str:
        return f"Experiment(id={self.id}, name={self.name!r}, state={self.state})"

    def _repr_html_(self) -> str:
        """Show how far it is, its best trials, and the curve of the best."""
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
            # The table is worth showing without it.
            return [], []
        return curve["batches"], curve["values"]


def _connected() -> Session:
    # The first object that a notebook asks for: no caller could have read the environment before.
    return open_session(Settings.from_environment(os.environ))
