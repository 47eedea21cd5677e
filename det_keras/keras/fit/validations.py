"""The validations of a `fit`: which epochs end with one, how it is run, and whether its result is the best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras.core import Context
from det_keras.keras.checkpoint.trained_model import TrainedModel
from det_keras.keras.fit.team import Team
from det_keras.keras.fit.validator import Validator
from det_keras.keras.training.metric_values import plain_value
from det_keras.keras.training.progress import Progress, Validation
from det_keras.keras.training.settings import FitSettings

__all__ = ["Validations", "is_best_validation"]


class Validations:
    """Validates the model of one `fit`.

    Args:
        validator: evaluates the validation data; None if there is none. A validation then returns the running training
            metrics.
        trained: the model.
        team: the workers.
        progress: the progress of the `fit`, in which results are recorded.
        core: sets the trial's status and provides the best result of the experiment.
        settings: the searcher's metric and the checkpoint policy.
    """

    def __init__(
        self,
        validator: Validator | None,
        trained: TrainedModel,
        team: Team,
        progress: Progress,
        core: Context,
        settings: FitSettings,
    ) -> None:
        self._validator = validator
        self._trained = trained
        self._team = team
        self._progress = progress
        self._core = core
        self._settings = settings

    @property
    def has_data(self) -> bool:
        """Whether there is validation data."""
        return self._validator is not None

    @property
    def may_lack_rows(self) -> bool:
        """Whether a worker may have no row of some batch."""
        return self._validator is not None and self._validator.may_lack_rows

    def is_due(self, epoch: int) -> bool:
        """Return whether to validate at the end of `epoch`, from 0; always True without validation data."""
        return self._validator is None or self._validator.is_due(epoch)

    def run(self, callbacks: Any) -> Validation:
        """Validate the model in its current state.

        Args:
            callbacks: the callback list with the user's callbacks, which receive the events of an evaluation.
        """
        progress, variables = self._progress, self._trained.variables
        self._core.train.set_status("validating")
        # Keras resets the metrics for an evaluation. Within an epoch the running training metrics are needed later.
        metrics = variables.copy_metrics() if progress.position.step > 0 else None
        values = self._evaluate(callbacks)
        if metrics is not None:
            variables.assign_metrics(metrics)
        self._core.train.set_status("training")
        progress.validations += 1
        is_best = is_best_validation(values, progress, self._settings, self._core)
        validation = Validation(progress.total_batches, values, is_best)
        progress.last_validation = validation
        progress.last_validation_batch = progress.position.batches
        return validation

    def source_state(self) -> dict[str, Any] | None:
        """Return the state of the validation data as JSON values, for `skip`; None without validation data."""
        return None if self._validator is None else self._validator.source.state_between_passes()

    def skip(self, validations: int, source_state: Mapping[str, Any]) -> None:
        """Bring the validation data to the state in which an earlier process left it.

        Args:
            validations: number of validations of the earlier process.
            source_state: the value that `source_state` returned there.
        """
        if self._validator is not None:
            self._validator.skip(validations, source_state)

    def close(self) -> None:
        """Release the validation data; see `DataSource.close`."""
        if self._validator is not None:
            self._validator.source.close()

    def _evaluate(self, callbacks: Any) -> dict[str, Any]:
        """Return the metrics by the names under which they are reported."""
        if self._validator is None:
            return self._progress.training_metrics()
        with self._team.ready_to_validate():
            logs = self._validator.run(self._trained.model, callbacks)
        return {f"val_{name}": plain_value(value) for name, value in logs.items()}


def is_best_validation(
    metrics: Mapping[str, Any], progress: Progress, settings: FitSettings, core: Context
) -> bool:
    """Record the searcher's metric, and return whether it is the best of the experiment so far.

    Args:
        metrics: the result of the validation.
        progress: receives the best value of this process.
        settings: the searcher's metric and the checkpoint policy.
        core: provides the best result of the experiment.
    """
    value = metrics.get(settings.metric)
    if not isinstance(value, float) or not settings.is_better(value, progress.best_metric):
        return False
    progress.best_metric = value
    if settings.checkpoint_policy != "best":
        return True
    # An equal value may be this trial's own report from before it was killed, so only a strictly better value of
    # the experiment counts.
    elsewhere = core.backend.best_validation()
    return elsewhere is None or not settings.is_better(elsewhere, value)
