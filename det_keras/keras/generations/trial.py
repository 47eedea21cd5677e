"""The TFKerasTrial generation: a class defines the training, on the same engine as `context.fit`.

    python3 -m det_keras.keras.generations.trial model_def:MyTrial

runs one; a config does so with ``entrypoint: model_def:MyTrial``.
"""

from __future__ import annotations

import abc
import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from det_keras.config import Unit
from det_keras.errors import DetError
from det_keras.keras.callbacks.callback import Callback
from det_keras.keras.context import KerasContext, script_of
from det_keras.keras.generations.sequences import SequenceAdapter
from det_keras.keras.generations.trial_context import TFKerasTrialContext
from det_keras.keras.history import FitHistory
from det_keras.keras.init import init
from det_keras.keras.training.metric_values import metrics_text

logger = logging.getLogger(__name__)

# More epochs than any length: training ends at the configured length.
_UNLIMITED_EPOCHS = 1 << 30


class TFKerasTrial(abc.ABC):
    """The definition of a training: a model, its data, its callbacks.

    Args:
        context: provides hyperparameters and batch sizes; store it in ``self.context``.
    """

    trial_context_class = TFKerasTrialContext

    def __init__(self, context: TFKerasTrialContext) -> None:
        self.context = context

    @abc.abstractmethod
    def build_model(self) -> Any:
        """Return the compiled model; pass it to ``context.wrap_model`` before compiling it."""

    @abc.abstractmethod
    def build_training_data_loader(self) -> Any:
        """Return the training data: (x, y) or (x, y, sample_weight) of arrays, a Sequence, or a tf.data.Dataset."""

    @abc.abstractmethod
    def build_validation_data_loader(self) -> Any:
        """Return the validation data, as `build_training_data_loader` does."""

    def session_config(self) -> Any:
        """Return a TensorFlow 1 session's config; it is never called, because TensorFlow 2 has no sessions."""
        return tf.compat.v1.ConfigProto(allow_soft_placement=True)

    def keras_callbacks(self) -> Sequence[Any]:
        """Return the callbacks: Keras's own or `det.keras.callbacks.Callback`."""
        return []


def train(trial_class: type[TFKerasTrial], context: KerasContext) -> FitHistory:
    """Run the training that a trial class defines, with the length of the config or the searcher.

    Validations run by ``min_validation_period`` and at the end of each length, not at epochs' ends.

    Args:
        trial_class: a subclass of `TFKerasTrial`.
        context: the context of this process.

    Raises:
        TypeError, ValueError: the class returned an object that cannot be trained.
        DetError: the config has no length.
    """
    trial_context = TFKerasTrialContext(context)
    trial = trial_class(trial_context)
    _tell_of_session_config(trial)
    model = trial.build_model()
    if not isinstance(model, keras.Model):
        raise TypeError(f"`build_model` must return a keras.Model. It returned a {type(model).__name__}.")
    if not model.compiled:
        raise ValueError("`build_model` must compile the model before it returns it: `model.compile(...)`.")
    trial_context.wrap_model(model)
    # Also what was compiled from a string.
    context.wrap_optimizer(model.optimizer)
    x, y, sample_weight = _loader(trial.build_training_data_loader(), trial_context, "training")
    validation = _loader(trial.build_validation_data_loader(), trial_context, "validation")
    epochs = length_as_epochs(context)
    if epochs is None:
        raise DetError("A TFKerasTrial trains as long as the config says: set `searcher.max_length`.")
    script = script_of(context)
    script.configure(
        epochs_wrap_around=True,
        validates_at_end=context.core.backend.current_operation() is None,
    )
    records, batch = script.settings.records_per_epoch, trial_context.get_global_batch_size()
    chosen = trial_context.fit_configuration
    is_arrays = not isinstance(x, keras.utils.PyDataset | tf.data.Dataset)
    callbacks = [*trial.keras_callbacks(), _StopIfAsked(trial_context)]
    if chosen.verbose:
        callbacks.append(_Progress(context))
    return context.fit(
        model,
        x,
        y,
        sample_weight=sample_weight,
        batch_size=trial_context.get_per_slot_batch_size() if is_arrays else None,
        validation_data=validation if validation[1] is not None else validation[0],
        validation_steps=chosen.validation_steps,
        # Never at epochs' ends.
        validation_freq=(),
        epochs=epochs,
        steps_per_epoch=_steps_per_epoch(x, records // batch, script.settings.scheduling_unit),
        class_weight=chosen.class_weight,
        shuffle=chosen.shuffle,
        callbacks=callbacks,
        verbose=0,
    )


def load_trial_class(name: str | None) -> type[TFKerasTrial]:
    """Return the trial class with the given name.

    Args:
        name: ``module:Class``; ``Class``, in the ``__init__.py`` of the working directory; or None for the only trial
            class there.

    Raises:
        DetError: there is no such class, or it is not a `TFKerasTrial`.
    """
    module_name, _, path = (name or "").rpartition(":")
    module_name = module_name or "__init__"
    if module_name == "__init__" and not Path("__init__.py").is_file():
        raise DetError(
            f"There is no __init__.py in {Path.cwd()} with a trial class. Give one as `module:Class`."
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0]:
            raise
        raise DetError(f"There is no module {module_name!r} in {Path.cwd()}.") from None
    found: Any = module
    if not path:
        return _only_class(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, TFKerasTrial)):
        what = "has no" if found is None else "is no TFKerasTrial:"
        raise DetError(
            f"The module {module_name!r} {what} {path!r}. The entrypoint is `module:Class` of a TFKerasTrial."
        )
    return found


def main(arguments: Sequence[str]) -> int:
    """Run a trial class and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="det_keras.keras.generations.trial", description="Run a TFKerasTrial."
    )
    parser.add_argument(
        "trial", nargs="?", metavar="MODULE:CLASS", help="by default the class in ./__init__.py"
    )
    options = parser.parse_args(arguments)
    with init() as context:
        try:
            trial_class = load_trial_class(options.trial)
        except DetError as error:
            logger.error("%s", error)
            return 1
        train(trial_class, context)
    return 0


def _loader(data: Any, context: TFKerasTrialContext, what: str) -> tuple[Any, Any, Any]:
    """Return a data loader's (x, y, sample_weight), ready for any number of workers."""
    keras_context = context.keras_context
    if isinstance(data, SequenceAdapter):
        data = data.sequence
    elif isinstance(data, keras.utils.PyDataset):
        data = context.prepare_sequence(data)
    if isinstance(data, keras.utils.PyDataset):
        return keras_context.wrap_data(data, per_worker_batches=_is_per_slot(data, context, what)), None, None
    if isinstance(data, tf.data.Dataset):
        return data, None, None
    if isinstance(data, tuple) and 2 <= len(data) <= 3:
        x, y, sample_weight = [*data, None][:3]
        wrapped = keras_context.wrap_data(*(part for part in (x, y, sample_weight) if part is not None))
        parts = [*wrapped, None, None][:3]
        return parts[0], parts[1], parts[2]
    raise TypeError(
        f"The {what} data loader must return (x, y) or (x, y, sample_weight) of arrays, a keras.utils.Sequence, or a "
        f"tf.data.Dataset from `context.wrap_dataset`. It returned a {type(data).__name__}."
    )


def _is_per_slot(sequence: Any, context: TFKerasTrialContext, what: str) -> bool:
    """Return whether the batches of a Sequence are those of one worker, by their size."""
    workers = context.distributed.size
    if workers == 1:
        return False
    per_slot, all_slots = context.get_per_slot_batch_size(), context.get_global_batch_size()
    size = len(keras.tree.flatten(sequence[0])[0])
    if size not in (per_slot, all_slots) and (sequence.num_batches or 2) > 1:
        raise ValueError(
            f"The first {what} batch has {size} samples. On {workers} workers it must have {per_slot} "
            f"(`context.get_per_slot_batch_size()`) or {all_slots} (`context.get_global_batch_size()`)."
        )
    return size == per_slot


def length_as_epochs(context: KerasContext) -> int | None:
    """Return the epochs to pass to `fit` so that it trains to the length of the config or the searcher.

    A length that ends inside an epoch is stored in the context's settings.

    Returns:
        The number of epochs; None if neither defines a length.
    """
    script = script_of(context)
    settings = script.settings
    length = settings.max_length
    if context.core.info is not None:
        has_length = length is not None or context.core.backend.current_operation() is not None
        return _UNLIMITED_EPOCHS if has_length else None
    if length is None:
        return None
    if length.unit is Unit.EPOCHS and not settings.records_per_epoch:
        return length.value
    batches = length.to_batches(settings.global_batch_size, settings.records_per_epoch)
    limit = settings.batch_limit
    script.configure(batch_limit=batches if limit is None else min(batches, limit))
    return _UNLIMITED_EPOCHS


def _steps_per_epoch(x: Any, configured: int, scheduling_unit: int) -> int | None:
    """Return the batches of an epoch by the config; None for a pass over the data."""
    if configured:
        return configured
    if isinstance(x, tf.data.Dataset) and int(x.cardinality()) == tf.data.INFINITE_CARDINALITY:
        # `.repeat()` was as good as none: the length said when to stop.
        return scheduling_unit
    return None


def _only_class(module: Any) -> type[TFKerasTrial]:
    found = [
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, TFKerasTrial) and member is not TFKerasTrial
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found) or "none"
        raise DetError(
            f"__init__.py must hold one trial class, or the entrypoint must name it. It holds: {names}."
        )
    return found[0]


def _tell_of_session_config(trial: TFKerasTrial) -> None:
    if type(trial).session_config is not TFKerasTrial.session_config:
        logger.warning("`session_config` has no effect: TensorFlow 2 has no sessions.")


class _StopIfAsked(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends a training that was asked to stop before it began: Keras resets `stop_training` when it begins."""

    def __init__(self, context: TFKerasTrialContext) -> None:
        super().__init__()
        self._context = context

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self._context.get_stop_requested():
            self.model.stop_training = True


class _Progress(Callback):
    """Prints a line for each workload and each validation, for logs."""

    def __init__(self, context: KerasContext) -> None:
        super().__init__()
        self._is_chief = context.distributed.is_chief
        self._batches = 0

    def on_train_workload_end(self, total_batches_trained: int, logs: dict[str, Any]) -> None:
        self._batches = total_batches_trained
        self._print("training", logs)

    def on_test_end(self, logs: Any = None) -> None:
        self._print("validation", {f"val_{name}": value for name, value in (logs or {}).items()})

    def _print(self, what: str, logs: dict[str, Any]) -> None:
        if self._is_chief:
            print(f"batch {self._batches}: {what} {metrics_text(logs)}", flush=True)  # noqa: T201 - the log is the output here


if __name__ == "__main__":
    # As the module that scripts import: a class of this file under two names would be two classes.
    from det_keras.keras.generations.trial import main as run

    sys.exit(run(sys.argv[1:]))
