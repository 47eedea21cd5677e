"""Read-only access to experiments from a notebook or a script: ``det.experimental.client.get_experiment(7)``.

It works with any master that implements the protocol. Names are those of Determined's own SDK where it has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from det_keras import notebook
from det_keras.client import Session, connect
from det_keras.display import duration_text, hparams_text, percent_text, state_text
from det_keras.errors import DetError, MasterError
from det_keras.home import Home
from det_keras.protocol.metrics import group_of, rank
from det_keras.protocol.states import is_over

__all__ = ["Experiment", "Trial", "get_experiment", "get_trial"]

_ROWS_SHOWN = 5
# These values locate a report; they are not measurements.
_PLACES = frozenset({"batches", "epoch", "epochs", "records"})
_POINTS_SHOWN = 200


def get_experiment(experiment_id: int, *, session: Session | None = None) -> Experiment:
    """Return the current state of an experiment; `reload` fetches it again.

    Args:
        experiment_id: number of the experiment.
        session: session with the master; by default with that of ``DET_MASTER``, else with the embedded master.

    Raises:
        DetError: ``DET_MASTER`` is not set and no embedded master runs.
        MasterError: there is no such experiment, or the caller may not see it.
    """
    return Experiment(experiment_id, session or _connected())


def get_trial(trial_id: int, *, session: Session | None = None) -> Trial:
    """Return the current state of a trial; arguments and errors as in `get_experiment`."""
    session = session or _connected()
    return Trial(session.api.trials.get(int(trial_id)), session)


class Trial:
    """The state of a trial when it was fetched.

    Attributes:
        id: its number.
        experiment_id: number of its experiment.
        state: such as ``RUNNING``.
        hparams: values of the hyperparameters, nested as in the config.
        batches: number of batches trained.
        summary_metrics: count, smallest, largest, mean and last value of every metric, by group.
        searcher_metric: the best validation so far; None before the first.
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
        """Return a metric's curve as ``{"batches": [...], "values": [...]}``, downsampled so that its shape is kept.

        A master that does not downsample may return other points.

        Args:
            name: name of the metric.
            group: ``validation``, ``training`` or a custom group.
            most_points: maximum number of points.

        Raises:
            MasterError: the master rejected the call.
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
        name: name from its config.
        description: description from its config.
        labels: labels from its config.
        state: such as ``ACTIVE`` or ``COMPLETED``.
        progress: from 0 to 1.
        config: the full config with hidden secrets.
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
        """The name of the metric that the search uses."""
        return str(self.config.get("searcher", {}).get("metric", ""))

    @property
    def smaller_is_better(self) -> bool:
        """Whether smaller values of the metric are better."""
        return bool(self.config.get("searcher", {}).get("smaller_is_better", True))

    def list_trials(self) -> list[Trial]:
        """Fetch its trials: the best first, those without a validation last."""
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
    # In a notebook there is no launcher that reads the environment.
    session = connect(Home.from_environment(os.environ), os.environ)
    if session is None:
        raise DetError(
            "DET_MASTER is not set and no embedded master runs. Set it, or start a master with "
            "`det deploy local cluster-up`."
        )
    return session
