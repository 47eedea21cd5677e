"""The settings of a training that `fit` uses, derived from the config."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from det_keras.config import ExperimentConfig, Length, Unit
from det_keras.keras.data.order import EpochLengths
from det_keras.keras.training.position import Target
from det_keras.protocol.metrics import is_better

_DEFAULT_METRIC = "val_loss"
_DEFAULT_SCHEDULING_UNIT = 100
_NEVER = Length.batches(0)


@dataclass(frozen=True)
class FitSettings:
    """The periods of reports, validations and checkpoints of a training, its length, and its optimizations.

    Attributes:
        metric: the searcher's metric, a validation metric.
        smaller_is_better: smaller values of `metric` are better.
        report_period: batches between two reports of training metrics; None for once per epoch.
        scheduling_unit: maximum number of batches of a workload; callbacks may have hooks for workloads.
        validation_period: maximum length between two validations; 0 to validate only at ends of epochs.
        checkpoint_period: maximum length between two checkpoints; 0 for no limit.
        checkpoint_policy: ``best``, ``all`` or ``none`` after validations; None for a checkpoint at each
            epoch's end, if nothing is configured.
        initial_validation: validate before the first batch.
        validates_at_end: validate when the length is reached, as with a searcher.
        max_length: the length in the config, used if the master gives no operations.
        records_per_epoch: records per epoch of the config; 0 if an epoch is one pass over the data.
        global_batch_size: samples per update over all workers; None if the hyperparameters do not define it.
        aggregation_frequency: number of batches whose gradients are aggregated for one update.
        average_aggregated_gradients: divide the aggregated gradients by `aggregation_frequency`.
        compress_gradients: exchange gradients as 16-bit floats.
        divergence_check_period: batches between two comparisons of the workers' weights; 0 for none.
        profiling: report the machine's load.
        profiles_layers: report the norms of weights and gradients by layer.
        epochs_wrap_around: with ``steps_per_epoch``, an epoch that reaches the end of the data continues at its
            beginning, where Keras would end the epoch; for older interfaces, whose config has the records of an epoch.
        batch_limit: in a local run, batches after which training ends, independent of `epochs`; None for no limit.
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
    profiles_layers: bool = False
    epochs_wrap_around: bool = False
    batch_limit: int | None = None

    @classmethod
    def from_config(
        cls, config: ExperimentConfig, given: Collection[str], hparams: dict[str, Any]
    ) -> FitSettings:
        """Return the settings of a config.

        Args:
            config: the normalised config, with all defaults.
            given: names of the top-level fields that the user wrote.
            hparams: the values of the trial's hyperparameters.
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
            profiles_layers=config.profiling.layers,
        )

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether a value of the metric is strictly better than another; see `protocol.metrics.is_better`."""
        return is_better(value, than, smaller_is_better=self.smaller_is_better)

    def first_target(
        self, epochs: int, first_epoch: int, lengths: EpochLengths | None, batches_before: int
    ) -> Target:
        """Return the target of training, which the config or a searcher may replace later.

        Args:
            epochs: of `context.fit`.
            first_epoch: the epoch in which training begins, from 0.
            lengths: of the epochs; None if unknown.
            batches_before: batches trained in earlier phases.
        """
        left = None if self.batch_limit is None else max(self.batch_limit - batches_before, 0)
        if left is None or (
            lengths is not None and lengths.start_of(epochs) - lengths.start_of(first_epoch) <= left
        ):
            return Target(epochs=epochs)
        return Target(batches=left)

    def planned_epochs(self, epochs: int, *, in_trial: bool) -> int:
        """Return the number of epochs that Keras's progress bar shows.

        Args:
            epochs: of `context.fit`.
            in_trial: whether the config's length holds, not `epochs`.
        """
        length = self.max_length
        return epochs if not in_trial or length is None or length.unit is not Unit.EPOCHS else length.value

    def in_batches(
        self, period: Length, global_batch_size: int | None, steps_per_epoch: int | None
    ) -> int | None:
        """Return a period in batches; None if it has no limit.

        Args:
            period: in any unit.
            global_batch_size: samples per update; None if unknown.
            steps_per_epoch: batches per epoch; None if unknown.
        """
        if period.is_unlimited:
            return None
        return period.to_batches(global_batch_size, self.records_per_epoch, batches_per_epoch=steps_per_epoch)
