"""What the config says about a training, reduced to what `fit` asks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from det_keras.config import ExperimentConfig, Length
from det_keras.protocol.metrics import is_better

__all__ = ["FitSettings"]

_DEFAULT_METRIC = "val_loss"
_DEFAULT_SCHEDULING_UNIT = 100
_NEVER = Length.batches(0)


@dataclass(frozen=True)
class FitSettings:
    """How often a training reports, validates and saves, and for how long it runs.

    Attributes:
        metric: the searcher's metric, a validation metric.
        smaller_is_better: how it ranks.
        report_period: batches between two reports of training metrics; None for once an epoch.
        scheduling_unit: most batches of a workload, of which callbacks may hear.
        validation_period: longest stretch without a validation; 0 for none besides the epochs' own.
        checkpoint_period: longest stretch without a checkpoint; 0 for none by period.
        checkpoint_policy: ``best``, ``all`` or ``none`` after validations; None for a checkpoint at each
            epoch's end, when nothing is configured.
        initial_validation: validate before the first batch.
        validates_at_end: validate where the length is reached, as a searcher would ask for.
        max_length: the config's own length, used where the master gives no operations.
        records_per_epoch: 0 where an epoch is one pass over the data.
        global_batch_size: samples per update over all workers; None if the hyperparameters do not say.
        aggregation_frequency: batches whose gradients make one update.
        average_aggregated_gradients: divide them by that number.
        compress_gradients: exchange them as 16-bit floats.
        divergence_check_period: batches between two comparisons of the workers' weights; 0 for none.
        profiling: report the machine's load.
        epochs_read_on: with ``steps_per_epoch`` an epoch that comes to the data's end continues at its beginning, where
            Keras ends the epoch; for the generations whose config says how many records are an epoch.
        batch_limit: alone, batches after which training ends, whatever `epochs` says; None for no limit.
    """

    metric: str = _DEFAULT_METRIC
    smaller_is_better: bool = True
    report_period: int | None = None
    scheduling_unit: int = _DEFAULT_SCHEDULING_UNIT
    validation_period: Length = _NEVER
    checkpoint_period: Length = _NEVER
    checkpoint_policy: str | None = None
    initial_validation: bool = False
    validates_at_end: bool = False
    max_length: Length | None = None
    records_per_epoch: int = 0
    global_batch_size: int | None = None
    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    compress_gradients: bool = False
    divergence_check_period: int = 100
    profiling: bool = False
    epochs_read_on: bool = False
    batch_limit: int | None = None

    @classmethod
    def from_config(
        cls, config: ExperimentConfig, given: Collection[str], hparams: dict[str, Any]
    ) -> FitSettings:
        """Return the settings of a config.

        Args:
            config: normalised, with all defaults.
            given: names of the top-level fields that the user wrote.
            hparams: the trial's values.
        """
        searcher = config.searcher
        max_length = searcher.max_length if searcher is not None else None
        saving_is_configured = (
            "checkpoint_policy" in given
            or not config.min_checkpoint_period.is_unlimited
            or config.checkpoint_policy != "best"
            or max_length is not None
        )
        reporting_is_configured = (
            not {"scheduling_unit", "batches_per_step"}.isdisjoint(given)
            or config.scheduling_unit != _DEFAULT_SCHEDULING_UNIT
        )
        size = hparams.get("global_batch_size")
        return cls(
            metric=searcher.metric if searcher is not None else _DEFAULT_METRIC,
            smaller_is_better=searcher.smaller_is_better if searcher is not None else True,
            report_period=config.scheduling_unit if reporting_is_configured else None,
            scheduling_unit=config.scheduling_unit,
            validation_period=config.min_validation_period,
            checkpoint_period=config.min_checkpoint_period,
            checkpoint_policy=config.checkpoint_policy if saving_is_configured else None,
            initial_validation=config.perform_initial_validation,
            max_length=max_length,
            records_per_epoch=config.records_per_epoch,
            global_batch_size=size if isinstance(size, int) else None,
            aggregation_frequency=config.optimizations.aggregation_frequency,
            average_aggregated_gradients=config.optimizations.average_aggregated_gradients,
            compress_gradients=config.optimizations.gradient_compression,
            divergence_check_period=config.optimizations.divergence_check_period,
            profiling=config.profiling.enabled,
        )

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether a value of the metric is strictly better than another; see `protocol.metrics.is_better`."""
        return is_better(value, than, smaller_is_better=self.smaller_is_better)
