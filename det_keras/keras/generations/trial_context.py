"""`TFKerasTrialContext`: the context of TFKerasTrial scripts, based on a KerasContext."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.core.distributed import DistributedContext
from det_keras.keras.context import KerasContext, script_of

logger = logging.getLogger(__name__)

_LOADING = ("workers", "use_multiprocessing", "max_queue_size")


@dataclass(frozen=True)
class FitConfiguration:
    """The options that `configure_fit` collected.

    Attributes:
        verbose: print progress.
        class_weight: class number -> weight.
        workers: number of workers that load batches of a Sequence; None for the Sequence's own value.
        use_multiprocessing: these workers are processes; None for the Sequence's own value.
        max_queue_size: batches loaded ahead; None for the Sequence's own value.
        shuffle: read the data in a new order in each epoch.
        validation_steps: number of batches of a validation; None for all.
    """

    verbose: bool = True
    class_weight: Mapping[int, float] | None = None
    workers: int | None = None
    use_multiprocessing: bool | None = None
    max_queue_size: int | None = None
    shuffle: bool = True
    validation_steps: int | None = None


class TFKerasTrialContext:
    """The context of a TFKerasTrial.

    Args:
        context: the context of this process, in a trial or a local run.

    Attributes:
        distributed: rank, size and small exchanges.
        experimental: caches of datasets.
        fit_configuration: the options of `configure_fit`.
        keras_context: the context on which this one is based.

    Raises:
        ValueError: the hyperparameter `global_batch_size` is missing or cannot be shared by the workers.
    """

    def __init__(self, context: KerasContext) -> None:
        self.keras_context = context
        self.distributed: DistributedContext = context.distributed
        self.experimental = TFKerasExperimentalContext(self)
        self.fit_configuration = FitConfiguration()
        self._per_slot_batch_size = _per_slot_batch_size(
            context.training.hparams.get("global_batch_size"), self.distributed.size
        )
        self._models: list[Any] = []
        self._stop_requested = False
        # The batches that are really trained, and a report for each workload.
        script = script_of(context)
        script.configure(
            global_batch_size=self.get_global_batch_size(),
            report_period=script.settings.scheduling_unit,
        )

    def get_hparam(self, name: str) -> Any:
        """Return the value of a hyperparameter.

        Raises:
            ValueError: there is no hyperparameter of that name; the message lists the existing ones.
        """
        try:
            return self.keras_context.training.hparams[name]
        except KeyError as error:
            raise ValueError(error.args[0]) from None

    def get_hparams(self) -> dict[str, Any]:
        """Return all hyperparameters by name."""
        return dict(self.keras_context.training.hparams)

    def get_data_config(self) -> dict[str, Any]:
        """Return the config's ``data`` field."""
        return dict(self.keras_context.config_data)

    def get_experiment_config(self) -> dict[str, Any]:
        """Return the experiment's full config."""
        return dict(self.keras_context.training.experiment_config)

    def get_experiment_id(self) -> int:
        """Return the number of the experiment; 0 in a local run."""
        return self.keras_context.training.experiment_id or 0

    def get_trial_id(self) -> int:
        """Return the number of the trial; 0 in a local run."""
        return self.keras_context.training.trial_id or 0

    def get_trial_seed(self) -> int:
        """Return the seed of all random operations."""
        return self.keras_context.training.seed

    def get_global_batch_size(self) -> int:
        """Return the samples of an update over all workers; a multiple of their number."""
        return self._per_slot_batch_size * self.distributed.size

    def get_per_slot_batch_size(self) -> int:
        """Return the samples of an update on one worker."""
        return self._per_slot_batch_size

    def get_initial_batch(self) -> int:
        """Return the batches trained before this process began."""
        info = self.keras_context.core.info
        return info.trial.steps_completed if info is not None and info.trial is not None else 0

    def get_tensorboard_path(self) -> Path:
        """Return the directory for TensorBoard's events."""
        return self.keras_context.core.train.get_tensorboard_path()

    def get_stop_requested(self) -> bool:
        """Return the value of the last `set_stop_requested`."""
        return self._stop_requested

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Request the end of training after the current batch.

        Args:
            stop_requested: True to request it; False withdraws a request that has not been handled yet.

        Raises:
            TypeError: `stop_requested` is not a bool.
        """
        if not isinstance(stop_requested, bool):
            raise TypeError(f"`stop_requested` must be True or False. Received: {stop_requested!r}.")
        self._stop_requested = stop_requested
        for model in self._models:
            model.stop_training = stop_requested

    def configure_fit(self, **options: Any) -> None:
        """Set arguments of `model.fit`; others keep their values.

        Args:
            options: ``verbose``, ``class_weight``, ``workers``, ``use_multiprocessing``, ``max_queue_size``,
                ``shuffle``, ``validation_steps``; see `FitConfiguration`.

        Raises:
            TypeError: an option is unknown.
        """
        known = [field.name for field in fields(FitConfiguration)]
        unknown = sorted(set(options) - set(known))
        if unknown:
            raise TypeError(f"`configure_fit` knows {', '.join(known)}. Received: {', '.join(unknown)}.")
        # None means "not given", except for options that can be None.
        given = {
            name: value
            for name, value in options.items()
            if value is not None or name in ("class_weight", "validation_steps")
        }
        self.fit_configuration = replace(self.fit_configuration, **given)

    def wrap_model(self, model: Any) -> Any:
        """Record the model to train, and return it; its optimizer is wrapped when training begins.

        Raises:
            TypeError: `model` is not a Keras model.
        """
        if not isinstance(model, keras.Model):
            raise TypeError(f"`wrap_model` needs a keras.Model. Received a {type(model).__name__}.")
        if all(model is not known for known in self._models):
            self._models.append(model)
        return model

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """Make an optimizer exchange gradients between workers, store its state in checkpoints, and return it.

        Needed for optimizers that the model is not compiled with; see `KerasContext.wrap_optimizer`.
        """
        return self.keras_context.wrap_optimizer(optimizer)

    def wrap_dataset(self, dataset: Any, shard_dataset: bool = True) -> Any:
        """Return a `tf.data.Dataset` of this worker's share.

        Args:
            dataset: the dataset, preferably before it is batched or shuffled differently on each worker.
            shard_dataset: False if each worker creates its own share of the data.
        """
        return self.keras_context.wrap_data(dataset, shard=shard_dataset)

    def prepare_sequence(self, sequence: Any) -> Any:
        """Set the options of `configure_fit` for loading batches on a Sequence, and return it."""
        for name in _LOADING:
            value = getattr(self.fit_configuration, name)
            if value is not None:
                setattr(sequence, name, max(value, 1) if name == "workers" else value)
        return sequence


class TFKerasExperimentalContext:
    """Decorators that keep the elements of datasets in memory.

    Args:
        context: the context of the trial.
    """

    def __init__(self, context: TFKerasTrialContext) -> None:
        self._context = context

    def cache_train_dataset(
        self,
        dataset_id: str,
        dataset_version: str,
        shuffle: bool = False,
        skip_shuffle_at_epoch_end: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator for a function that makes the training dataset, not batched yet.

        The dataset's elements are kept in memory after the first pass, shuffled with the trial's seed if requested, and
        divided between the workers.

        Args:
            dataset_id: name of the dataset.
            dataset_version: version of the function; it has no effect, because the cache ends with the process.
            shuffle: use a new order in each epoch.
            skip_shuffle_at_epoch_end: with `shuffle`, use the same order in each epoch.
        """
        return functools.partial(self._decorate, shuffle, not skip_shuffle_at_epoch_end)

    def cache_validation_dataset(
        self, dataset_id: str, dataset_version: str, shuffle: bool = False
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Return a decorator for a function that makes the validation dataset, not batched yet.

        Args:
            dataset_id: name of the dataset.
            dataset_version: version of the function; it has no effect.
            shuffle: use one seeded order for all validations.
        """
        return functools.partial(self._decorate, shuffle, False)

    def _decorate(self, shuffle: bool, again: bool, make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def cached(*args: Any, **kwargs: Any) -> Any:
            dataset = make(*args, **kwargs)
            if not isinstance(dataset, tf.data.Dataset):
                raise TypeError(
                    f"A function that makes a tf.data.Dataset is needed. It made a {type(dataset).__name__}."
                )
            dataset = dataset.cache()
            if shuffle:
                seed = self._context.get_trial_seed()
                dataset = dataset.shuffle(_length(dataset), seed=seed, reshuffle_each_iteration=again)
            return self._context.wrap_dataset(dataset)

        return cached


def _length(dataset: tf.data.Dataset) -> int:
    known = int(dataset.cardinality())
    if known == tf.data.INFINITE_CARDINALITY:
        raise ValueError("A dataset that repeats forever cannot be kept in memory: leave out `.repeat()`.")
    if known >= 0:
        return max(known, 1)
    return max(int(dataset.reduce(0, lambda count, *_: count + 1)), 1)


def _per_slot_batch_size(size: Any, workers: int) -> int:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(
            "A TFKerasTrial needs the hyperparameter `global_batch_size`, a whole number of at least 1. "
            f"Received: {size!r}."
        )
    per_slot, rest = divmod(size, workers)
    if per_slot == 0:
        raise ValueError(
            f"`global_batch_size: {size}` cannot be shared by {workers} workers. Use at least {workers}."
        )
    if rest:
        logger.warning(
            "`global_batch_size: %s` cannot be split over %s workers: each trains on %s samples, %s in all.",
            size,
            workers,
            per_slot,
            per_slot * workers,
        )
    return per_slot
