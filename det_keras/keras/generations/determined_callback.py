"""The DeterminedCallback generation: a user's own `model.fit`, managed at epochs' ends.

The callback reports, saves and stops through a core context. It resumes at the start of an epoch. The random state
with which Keras shuffles arrays cannot be read, so a resumed run is exact only if the order of the data depends only on
the epoch. `context.fit` is exact at any batch.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.about import __version__
from det_keras.core import Context, DistributedContext, TensorboardMode
from det_keras.errors import CheckpointError, ModelMismatchError
from det_keras.keras.checkpoint.random_state import capture_random_state, restore_random_state
from det_keras.keras.local_events import EventWriter
from det_keras.keras.private_api.steps import forget_initial_epoch
from det_keras.keras.process_setup import check_eager, configure_logs
from det_keras.keras.training.metric_values import metrics_text, plain_value
from det_keras.scratch import Scratch

logger = logging.getLogger(__name__)

# Keras requires this suffix for a file of weights.
_WEIGHTS = "model_checkpoint.weights.h5"
_STATE = "callback_state.json"
_VARIABLES = "variables.npz"


class DeterminedCallback(keras.callbacks.ProgbarLogger):  # type: ignore[misc]
    """Adds metrics, checkpoints, pause and resume to the user's own `model.fit`.

    Do not use `BackupAndRestore` or `ModelCheckpoint` together with it. `initial_epoch` of `fit` has no effect. Log
    lines replace the progress bar.

    Args:
        core_context: the context that `det.core.init()` returned.
        checkpoint: UUID of the checkpoint to start from, such as ``det.get_cluster_info().latest_checkpoint``; None
            for none.
        continue_id: identifies this training, such as the trial's id. If the checkpoint was saved with the same id,
            training continues after its epoch; if not, its weights are loaded and training begins at epoch 0.
        train_metrics_report_period: ``"epoch"``, or batches between two reports of training metrics.
        checkpoint_epochs: epochs between two checkpoints; 0 for checkpoints only at the end and at a pause.

    Raises:
        TypeError, ValueError: an argument is invalid.
    """

    def __init__(
        self,
        core_context: Context,
        checkpoint: str | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int = 1,
    ) -> None:
        super().__init__()
        check_eager()
        if not isinstance(core_context, Context):
            raise TypeError(
                "`core_context` must be what `det.core.init()` returns, in its `with` block. "
                f"Received a {type(core_context).__name__}."
            )
        if train_metrics_report_period != "epoch" and not _is_count(train_metrics_report_period, 1):
            raise ValueError(
                "`train_metrics_report_period` is 'epoch' or a number of batches of at least 1. "
                f"Received: {train_metrics_report_period!r}."
            )
        if not _is_count(checkpoint_epochs, 0):
            raise ValueError(
                f"`checkpoint_epochs` is a number of at least 0. Received: {checkpoint_epochs!r}."
            )
        configure_logs(debug=False)
        self._core = core_context
        self._is_chief = core_context.distributed.is_chief
        self._checkpoint = checkpoint
        self._continue_id = continue_id
        self._period = None if train_metrics_report_period == "epoch" else int(train_metrics_report_period)
        self._checkpoint_epochs = checkpoint_epochs
        self._params: dict[str, Any] = {}
        self._batches = 0
        self._epochs = 0
        self._saved_at: int | None = None
        self._is_training = False
        if core_context.tensorboard_mode is TensorboardMode.AUTO and self._is_chief:
            core_context.train.listen(EventWriter(core_context.train.get_tensorboard_path()).write)

    def set_params(self, params: dict[str, Any]) -> None:
        """Record the arguments of `fit`."""
        self._params = dict(params)

    def on_train_begin(self, logs: Any = None) -> None:
        """Resume from the checkpoint, if there is one."""
        # The number of batches continues over several `fit` calls.
        self._epochs = 0
        self._saved_at = None
        self._is_training = True
        if self._checkpoint is not None:
            self._restore(self._checkpoint)
        # Keras takes it for the first epoch if it is true, which 0 has to be as well.
        self.model._initial_epoch = _Epoch(self._epochs)
        self._core.train.set_status("training")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Nothing is shown before an epoch's end."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Nothing is shown before an epoch's end."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count the batch, and report metrics if the period has passed."""
        self._batches += 1
        if self._period is not None and self._batches % self._period == 0:
            self._report("training", logs or {})

    def on_test_begin(self, logs: Any = None) -> None:
        """Set the status ``validating``, if the validation is part of a training."""
        if self._is_training:
            self._core.train.set_status("validating")

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Nothing is shown before a validation's end."""

    def on_test_end(self, logs: Any = None) -> None:
        """Report the status training; the metrics are reported at the epoch's end."""
        if self._is_training:
            self._core.train.set_status("training")

    def on_predict_begin(self, logs: Any = None) -> None:
        """Nothing is shown of predictions."""

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        """Nothing is shown of predictions."""

    def on_predict_end(self, logs: Any = None) -> None:
        """Nothing is shown of predictions."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Report metrics, save a due checkpoint, and stop if requested."""
        logs = dict(logs or {})
        self._epochs = epoch + 1
        validation = {name: value for name, value in logs.items() if name.startswith("val_")}
        training = {name: value for name, value in logs.items() if name not in validation}
        if self._period is None:
            self._report("training", training)
        if validation:
            self._report("validation", validation)
        self._show(logs)
        total = self._params.get("epochs")
        if total and self._is_chief:
            self._core.train.report_progress(min(self._epochs / total, 1.0))
        if self._checkpoint_epochs and self._epochs % self._checkpoint_epochs == 0:
            self._save()
        if self._core.preempt.should_preempt():
            logger.info("Asked to stop: training ends after epoch %s and continues from there.", self._epochs)
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """Save the last state."""
        self._is_training = False
        forget_initial_epoch(self.model)
        self._save()

    def save_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Save the model; override it together with `load_model` to use another format.

        Args:
            model: the model.
            path: the file to write, or a base for other names; its directory becomes the checkpoint. On other ranks
                than the chief the directory is deleted afterwards.
            distributed: the workers.
        """
        model.save_weights(path)

    def load_model(self, model: Any, path: str, distributed: DistributedContext) -> None:
        """Load the model that `save_model` saved.

        Args:
            model: the built model.
            path: the path as for `save_model`; its directory is the checkpoint.
            distributed: the workers.

        Raises:
            ModelMismatchError: the weights do not fit the model.
        """
        # A checkpoint of `context.fit` or of a TFKerasTrial contains a whole model.
        source = path if Path(path).exists() else str(Path(path).with_name("model.keras"))
        try:
            with warnings.catch_warnings():
                # Optimizer variables are restored separately, and only if training continues.
                warnings.filterwarnings("ignore", message="Skipping variable loading for optimizer")
                model.load_weights(source)
        except (ValueError, OSError) as error:
            raise ModelMismatchError(f"The weights in {source} do not fit this model: {error}") from error

    def _save(self) -> None:
        if self._saved_at == self._batches:
            return
        self._saved_at = self._batches
        distributed = self._core.distributed
        if not self._is_chief:
            with Scratch("worker") as folder:
                self.save_model(self.model, str(Path(folder) / _WEIGHTS), distributed)
            return
        metadata = {
            "steps_completed": self._batches,
            "epoch": self._epochs,
            "format": "keras-weights",
            "framework": f"tensorflow-{tf.__version__}",
            "keras": keras.__version__,
            "det_keras": __version__,
        }
        with self._core.checkpoint.store_path(metadata) as (folder, uuid):
            self.save_model(self.model, str(folder / _WEIGHTS), distributed)
            np.savez(
                folder / _VARIABLES,
                *(np.asarray(keras.ops.convert_to_numpy(variable)) for variable in self._variables()),
            )
            (folder / _STATE).write_text(json.dumps(self._state()), encoding="utf-8")
        logger.info("The checkpoint %s holds the state after epoch %s.", uuid, self._epochs)

    def _restore(self, uuid: str) -> None:
        with self._core.checkpoint.restore_path(uuid) as folder:
            state = _read_state(folder / _STATE)
            if not self.model.built and state is not None and state.get("build") is not None:
                # Without an `Input` the model would be built by its first batch, which is too late.
                self.model.build_from_config(state["build"])
                # Keras 3.15 creates the weights of a subclassed model without setting `built`.
                self.model.built = self.model.built or bool(self.model.weights)
            self.load_model(self.model, str(folder / _WEIGHTS), self._core.distributed)
            if state is None or state["continue_id"] != self._continue_id:
                logger.info("The weights are those of checkpoint %s; training begins at epoch 0.", uuid)
                return
            self._epochs, self._batches = state["epochs"], state["batches"]
            self._restore_variables(folder / _VARIABLES)
            restore_random_state(self.model, state["random"])
        # The state has not changed since this checkpoint.
        self._saved_at = self._batches
        logger.info("Training continues from checkpoint %s after epoch %s.", uuid, self._epochs)

    def _restore_variables(self, path: Path) -> None:
        if isinstance(self.model.optimizer, keras.optimizers.Optimizer):
            self.model.optimizer.build(self.model.trainable_variables)
        with np.load(path) as values:
            found, variables = [values[name] for name in values.files], self._variables()
            if [value.shape for value in found] != [tuple(variable.shape) for variable in variables]:
                raise ModelMismatchError(
                    "The optimizer of the checkpoint is not the one that the model is compiled with."
                )
            for variable, value in zip(variables, found, strict=True):
                variable.assign(value)

    def _variables(self) -> list[Any]:
        """Return the variables that are not weights: those of the optimizer and of random generators."""
        optimizer, weights = self.model.optimizer, {id(weight) for weight in self.model.weights}
        slots = list(optimizer.variables) if isinstance(optimizer, keras.optimizers.Optimizer) else []
        return [*slots, *(variable for variable in self.model.variables if id(variable) not in weights)]

    def _state(self) -> dict[str, Any]:
        return {
            "continue_id": self._continue_id,
            "epochs": self._epochs,
            "batches": self._batches,
            "build": self.model.get_build_config(),
            "random": capture_random_state(self.model),
        }

    def _report(self, group: str, logs: Mapping[str, Any]) -> None:
        if not self._is_chief:
            return
        metrics = {name: plain_value(value) for name, value in logs.items()}
        counters = {"batches": self._batches, "epochs": self._epochs}
        self._core.train.report_metrics(group, self._batches, {**counters, **metrics})

    def _show(self, logs: Mapping[str, Any]) -> None:
        if self._is_chief and self._params.get("verbose"):
            # The output is the log.
            text = f"epoch {self._epochs}/{self._params.get('epochs', '?')}: {metrics_text(logs)}"
            print(text, flush=True)  # noqa: T201


class _Epoch(int):
    """An epoch number whose truth value is True even if it is 0."""

    def __bool__(self) -> bool:
        return True


def _read_state(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read: {error}.") from error
    return state


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least and math.isfinite(value)
