"""An experiment at a master."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.display import duration_text, hparams_text, percent_text, state_text
from det_keras.errors import DetError, MasterError
from det_keras.experimental.checkpoint import Checkpoint, best_checkpoints, top_checkpoint
from det_keras.experimental.trial import Trial, reports_frame, wait_for_end
from det_keras.protocol.metrics import VALIDATION, rank
from det_keras.protocol.states import COMPLETED, is_over, named

_ROWS_SHOWN = 5
_POINTS_SHOWN = 200


class Experiment:
    """The state of an experiment when it was fetched.

    Attributes:
        id: its number.
        name: its name in the config.
        description: its description in the config.
        labels: its labels in the config.
        notes: its notes, in Markdown.
        archived: whether it is archived.
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
        self.notes = str(shape.get("notes") or "")
        self.archived = bool(shape.get("archived"))
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

    def to_frame(self, group: str = VALIDATION) -> Any:
        """Return the reports of all trials as a pandas DataFrame.

        The index has two levels, ``trial_id`` and ``steps_completed``. Trials are in the order of their numbers. The
        columns are those of `Trial.to_frame`; a trial without reports of the group has no rows.

        Args:
            group: ``validation`` by default, ``training``, or a custom group.

        Returns:
            A `pandas.DataFrame`.

        Raises:
            DetError: pandas is not installed.
            MasterError: the master rejects the call.

        Example:
            ```pycon
            >>> frame = get_experiment(1).to_frame()
            >>> frame.index.tolist(), frame["val_loss"].tolist()
            ([(1, 10), (1, 20)], [0.5, 0.25])
            ```
        """
        trials = sorted(self.list_trials(), key=lambda trial: trial.id)
        reports = {
            (trial.id, batches): metrics
            for trial in trials
            for batches, metrics in trial.reports_by_batch(group).items()
        }
        return reports_frame(reports, ["trial_id", "steps_completed"])

    def list_checkpoints(
        self,
        sort_by: str | None = None,
        *,
        smaller_is_better: bool | None = None,
        max_results: int | None = None,
    ) -> list[Checkpoint]:
        """Fetch the complete checkpoints of all trials, best first; those without the metric come last, newest first.

        Args:
            sort_by: name of a validation metric; by default the searcher's metric.
            smaller_is_better: direction of the metric; by default that of the searcher's metric.
            max_results: maximum number of checkpoints; by default all.

        Raises:
            ValueError: `max_results` is below 1.
            MasterError: the master rejects the call.
        """
        return best_checkpoints(
            self._session.api.experiments.checkpoints(self.id, states=named(COMPLETED)),
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

    def await_first_trial(self, interval: float = 0.1, *, timeout: float | None = None) -> Trial:
        """Wait until the experiment has a trial, and return the first one.

        Args:
            interval: time between two requests, in seconds.
            timeout: maximum time to wait, in seconds; None for no limit.

        Raises:
            TimeoutError: there is no trial in time.
            DetError: the experiment has ended without a trial.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            # Before the trials: an experiment that has ended gets no further trial.
            self.reload()
            trials = self.list_trials()
            if trials:
                return min(trials, key=lambda trial: trial.id)
            if is_over(self.state):
                raise DetError(f"Experiment {self.id} has ended without a trial: its state is {self.state}.")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"Experiment {self.id} has no trial after {timeout:g} s.")
            time.sleep(interval)

    def iter_logs(
        self, *, follow: bool = False, head: int | None = None, tail: int | None = None
    ) -> Iterator[str]:
        """Yield the lines of the first trial's log, without their line breaks; none if there is no trial.

        Args:
            follow: wait for the first trial, and for further lines until it has ended.
            head: only the first lines; their number.
            tail: only the last lines; their number.

        Raises:
            ValueError: more than one of `follow`, `head` and `tail` is given.
            MasterError: the master rejects the call.
        """
        trials = [self.await_first_trial()] if follow else self.list_trials()
        if not trials:
            return iter(())
        first = min(trials, key=lambda trial: trial.id)
        return first.iter_logs(follow=follow, head=head, tail=tail)

    def wait(self, interval: float = 1.0, *, timeout: float | None = None) -> str:
        """Wait until the experiment has ended or is paused.

        Args:
            interval: time between two requests, in seconds.
            timeout: maximum time to wait, in seconds; None for no limit.

        Returns:
            The state, such as ``COMPLETED``.

        Raises:
            TimeoutError: the experiment has not ended in time.
            MasterError: the experiment no longer exists.
        """
        return wait_for_end(self, f"Experiment {self.id}", interval_s=interval, timeout_s=timeout)

    def pause(self) -> None:
        """Pause: the trials stop at a checkpoint, and `activate` resumes them.

        Raises:
            MasterError: the experiment has ended.
        """
        self._move("pause")

    def activate(self) -> None:
        """Resume a paused experiment.

        Raises:
            MasterError: the experiment has ended.
        """
        self._move("activate")

    def cancel(self) -> None:
        """End the experiment; the trials may still write a checkpoint.

        Raises:
            MasterError: the master rejects the call.
        """
        self._move("cancel")

    def kill(self) -> None:
        """End the experiment at once.

        Raises:
            MasterError: the master rejects the call.
        """
        self._move("kill")

    def archive(self) -> None:
        """Hide an experiment that has ended from lists.

        Raises:
            MasterError: the experiment has not ended.
        """
        self._move("archive")

    def unarchive(self) -> None:
        """Show an archived experiment in lists again.

        Raises:
            MasterError: the master rejects the call.
        """
        self._move("unarchive")

    def delete(self) -> None:
        """Delete an experiment that has ended, with its trials, logs and checkpoints, in the background.

        Raises:
            MasterError: the experiment has not ended.
        """
        self._session.api.experiments.delete(self.id)

    def set_name(self, name: str) -> None:
        """Change the name.

        Raises:
            MasterError: the master rejects the name.
        """
        self._change(name=name)

    def set_description(self, description: str) -> None:
        """Change the description.

        Raises:
            MasterError: the master rejects the description.
        """
        self._change(description=description)

    def set_notes(self, notes: str) -> None:
        """Replace the notes.

        Args:
            notes: in Markdown.

        Raises:
            MasterError: the master rejects the notes.
        """
        self._change(notes=notes)

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace all labels.

        Raises:
            MasterError: the master rejects a label.
        """
        # A single text would be a label for each of its characters.
        if isinstance(labels, str):
            raise TypeError(f"`labels` must be several texts. Write `set_labels([{labels!r}])`.")
        self._change(labels=sorted(set(labels)))

    def add_label(self, label: str) -> None:
        """Add a label.

        Raises:
            MasterError: the master rejects the label.
        """
        self._session.api.experiments.add_label(self.id, label)
        self.reload()

    def remove_label(self, label: str) -> None:
        """Remove a label; a label that the experiment does not have is skipped.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.experiments.remove_label(self.id, label)
        self.reload()

    def _move(self, verb: str) -> None:
        self._session.api.experiments.move(self.id, verb)
        self.reload()

    def _change(self, **changes: object) -> None:
        self._session.api.experiments.change(self.id, **changes)
        self.reload()

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
