"""The context that `det.keras.init()` returns: the API of training scripts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import keras

from det_keras import notebook
from det_keras.core.script_end import UncaughtHook, close_after, close_at_end, is_closed
from det_keras.display import flat_hparams
from det_keras.errors import InvalidHP, NotATrainingJobError
from det_keras.keras.data import DataContext
from det_keras.keras.fit import inference
from det_keras.keras.fit.arguments import FitArguments
from det_keras.keras.fit.fit import Fit
from det_keras.keras.history import FitHistory
from det_keras.keras.loops.calls import LoopCalls
from det_keras.keras.media import MediaLog
from det_keras.keras.private_api.fit_call import call_fit
from det_keras.keras.process_setup import check_eager
from det_keras.keras.script import Script
from det_keras.keras.stored_models import StoredModels
from det_keras.keras.training_info import TrainingInfo
from det_keras.keras.verification import LocalVerification

logger = logging.getLogger(__name__)


_LEVELS = ("info", "warn", "error")
_LONGEST_TITLE = 1_000
_LONGEST_ALERT = 10_000


class KerasContext(LoopCalls, MediaLog, StoredModels):
    """The API of training scripts.

    Args:
        script: the trainings of the script.
        training: hyperparameters and ids of this training run; None outside one.
        config_data: the config's ``data`` field.
        master: address of the master that a detached run reports to; None for that of the environment.
        on_close: called when the context is closed.

    Attributes:
        core: the framework-free context.
        data: prepares training data; `wrap_data` is its `wrap`.
        distributed: rank, size and small exchanges.
        config_data: the config's ``data`` field.
        seed: the seed of all random operations.
    """

    def __init__(
        self,
        script: Script,
        training: TrainingInfo | None,
        *,
        config_data: Mapping[str, Any],
        master: str | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(script)
        core = script.core
        self.core = core
        self.seed = script.seed
        self.config_data = dict(config_data)
        self.distributed = core.distributed
        self.data = DataContext(core.distributed)
        self._training = training
        self._master = master
        self._has_failed = False
        self._on_close = on_close
        self._verification: LocalVerification | None = None
        self._is_closed = False
        core.preempt.start()
        if script.settings.profiling:
            core.profiler.on()
        core.report_provenance()
        close_at_end(self._close_at_end)
        self._uncaught = UncaughtHook(self._on_uncaught)

    @property
    def training(self) -> TrainingInfo:
        """Hyperparameters, seed and ids of this training run.

        Raises:
            NotATrainingJobError: this is a generic job.
        """
        if self._training is None:
            raise NotATrainingJobError(
                "`context.training` is not available in a generic job (`det job run`): a job has no "
                "hyperparameters. Put its inputs under `data` in the config and read `context.config_data`."
            )
        return self._training

    def _repr_html_(self) -> str:
        """Return HTML with the place of the run, its hyperparameters, and the results of the last finished `fit`."""
        phases = self._script.phases
        known: dict[str, Any] = {"seed": self.seed, "batches": sum(phase.batches for phase in phases)}
        if self.distributed.size > 1:
            known["workers"] = f"rank {self.distributed.rank} of {self.distributed.size}"
        training = self._training
        if training is not None and training.trial_id is not None:
            known = {"experiment": training.experiment_id, "trial": training.trial_id, **known}
        parts = [notebook.facts(known)]
        if training is not None and training.hparams:
            parts.append(notebook.table(("hyperparameter", "value"), flat_hparams(training.hparams)))
        newest = phases[-1].history if phases else {"epoch": [], "history": {}}
        return notebook.history_card("Keras context", newest["epoch"], newest["history"], *parts)

    def wrap_data(self, *data: Any, shard: bool = True, per_worker_batches: bool = False) -> Any:
        """Return training or validation data, ready for `fit`, `evaluate` and `predict` on any number of workers.

        On one worker the data is checked and returned unchanged.

        Args:
            data: data as for `model.fit`: x; x and y; x, y and sample weights, each an array of any dtype and of shape
                (samples, ...), or lists and dicts of arrays; or one `keras.utils.PyDataset`; or one
                `tf.data.Dataset`. Data that is already wrapped may be passed again.
            shard: for a tf.data.Dataset on several workers, whether each worker takes every `size`-th element; False
                leaves sharding to the caller.
            per_worker_batches: for a PyDataset, whether its items are batches of one worker and not global batches.

        Returns:
            One object for one argument, a tuple for several. On several workers: arrays as views of this worker's
            rows, a tf.data.Dataset with every `size`-th element, a PyDataset unchanged.

        Raises:
            TypeError: the data has a type that `model.fit` does not support, or is a generator for several workers.
            ValueError: arrays are empty, differ in length, or have fewer samples than there are workers; or they were
                computed from this worker's rows only.

        Example:
            ```pycon
            >>> x = np.zeros((100, 4), "float32")  # 100 samples of 4 features
            >>> y = np.zeros((100, 1), "float32")
            >>> x, y = context.wrap_data(x, y)
            >>> x.shape, y.shape
            ((100, 4), (100, 1))
            ```
        """
        return self.data.wrap(*data, shard=shard, per_worker_batches=per_worker_batches)

    def wrap_optimizer(self, optimizer: keras.optimizers.Optimizer) -> keras.optimizers.Optimizer:
        """Store an optimizer's state in checkpoints, and exchange its gradients between workers.

        Call it once for each optimizer. On one worker it is optional for the optimizer that a model is compiled with.

        Args:
            optimizer: a Keras 3 optimizer.

        Returns:
            The same object, with the same class, name and config.

        Raises:
            TypeError: `optimizer` is not an optimizer object; for a string the message shows the object to pass.
            ValueError: ``optimizations.aggregation_frequency`` is above 1, and the optimizer has already run a step.

        Example:
            ```pycon
            >>> adam = keras.optimizers.Adam(1e-3)
            >>> context.wrap_optimizer(adam) is adam
            True
            ```
        """
        self._end_left_loop()
        return self._script.optimizers.wrap(optimizer)

    def fit(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: int | str = "auto",
        callbacks: keras.callbacks.Callback | Sequence[keras.callbacks.Callback] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool | str = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int | Collection[int] = 1,
        *,
        x_val: Any = None,
        y_val: Any = None,
        validate: bool = True,
        on_nan: str = "report",
    ) -> FitHistory:
        """Train a model as `model.fit` does, with checkpoints, exact resume, metrics and pause.

        In a trial whose config or searcher sets a length, that length replaces `epochs`.

        Args:
            model: the compiled model.
            x: data as for `model.fit`: arrays of any dtype and of shape (samples, ...) and structures of them, also
                sparse or ragged, a PyDataset, or a tf.data.Dataset; on one worker also a generator or a PyTorch
                DataLoader, which a resume reads again.
            y: targets of shape (samples, ...), if `x` is arrays; None by default.
            batch_size: samples per batch of one worker, if `x` is arrays; 32 by default.
            epochs: the last epoch, counted from 1.
            verbose: ``auto`` shows a progress bar on a terminal and otherwise a line per epoch; 0, 1, 2 as in Keras.
            callbacks: Keras callbacks; they get the real epoch and batch numbers, also after a resume.
            validation_split: fraction of the samples, the last rows of the arrays, to validate on.
            validation_data: a dataset, (x, y) or (x, y, sample_weight).
            shuffle: True for a new seeded order each epoch, "batch" for inside batches, False for none.
            class_weight: class number -> weight.
            sample_weight: weights of the samples, of shape (samples,), if `x` is arrays; 1 by default.
            initial_epoch: in a local run, the first epoch, counted from 0.
            steps_per_epoch: batches that count as an epoch; one pass over the data by default.
            validation_steps: batches of a validation; all by default.
            validation_batch_size: samples per batch of a validation; `batch_size` by default.
            validation_freq: validate after every n-th epoch, or after those in a collection; after each by default.
            x_val: validation inputs, another way to give `validation_data`.
            y_val: validation targets.
            validate: False for a model that cannot be validated, such as a GAN: nothing is evaluated, and the training
                metrics of each epoch are what the searcher and ``checkpoint_policy: best`` read.
            on_nan: ``report`` warns of a NaN loss once, ``stop`` ends the trial as InvalidHP.

        Returns:
            The history of the whole training, including the part before a resume.

        Raises:
            ValueError, TypeError: an argument is invalid, or there is no validation data.
            ModelMismatchError: the checkpoint does not fit this script.
            CheckpointError: the last checkpoint could not be written.
            DetError: the context is closed.
            SystemExit: the process was asked to stop and its state is saved.

        Example:
            ```pycon
            >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            >>> model.compile(optimizer="sgd", loss="mse")
            >>> x, y = np.ones((100, 4), "float32"), np.ones((100, 1), "float32")
            >>> history = context.fit(model, x, y, batch_size=32, epochs=3, validation_data=(x, y), verbose=0)
            >>> history.epoch
            [0, 1, 2]
            >>> sorted(history.history)
            ['loss', 'val_loss']
            ```
        """
        arguments = FitArguments(
            x=x, y=y, batch_size=batch_size, epochs=epochs, verbose=verbose, callbacks=callbacks,
            validation_split=validation_split, validation_data=validation_data, shuffle=shuffle,
            class_weight=class_weight, sample_weight=sample_weight, initial_epoch=initial_epoch,
            steps_per_epoch=steps_per_epoch, validation_steps=validation_steps,
            validation_batch_size=validation_batch_size, validation_freq=validation_freq,
            x_val=x_val, y_val=y_val, validate=validate, on_nan=on_nan,
        )  # fmt: skip
        self._script.check_open("fit")
        _check_model(model, "fit")
        self._begin_training("fit")

        def train(received: Mapping[str, Any]) -> FitHistory:
            fit = Fit(self._script, model, arguments.changed(received))
            with fit.running():
                start = self._script.start(fit)
                return fit.run.history if start.is_skipped else fit.train(start.restored)

        history: FitHistory = call_fit(model, arguments.for_keras(), train)
        return history

    def evaluate(
        self,
        model: keras.Model,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *,
        report: str = "test",
        **options: Any,
    ) -> dict[str, float]:
        """Evaluate a model as `model.evaluate` does and return its metrics by name.

        The result is reported to the group ``test``, or with ``report="validation"`` to the validations. In a process
        that resumes from a checkpoint, evaluations before the resumed `fit` are not reported again: the earlier
        process has reported them, with other weights.

        Args:
            model: the compiled model.
            x: inputs, a PyDataset or a tf.data.Dataset.
            y: targets, with arrays.
            batch_size: samples per batch of one worker, with arrays; 32 by default.
            report: ``test`` or ``validation``.
            options: the other arguments of `model.evaluate`.

        Returns:
            The metrics by name, as floats, including ``loss``.

        Raises:
            ValueError: `report` has another value, this batch already has a validation, or the data is empty.
            DetError: the context is closed.
        """
        script = self._script
        script.check_open("evaluate")
        if report not in ("test", "validation"):
            raise ValueError(f"`report` is 'test' or 'validation'. Received: {report!r}.")
        _check_model(model, "evaluate")
        batches = script.trained_batches
        if report == "validation" and batches == script.validated_at and not script.is_repeating:
            raise ValueError(f"Batch {batches} has a validation already: report to the group 'test' instead.")
        options = {"verbose": 0, "batch_size": batch_size, **options}
        if self.distributed.is_alone:
            metrics: dict[str, float] = model.evaluate(x, y, **{**options, "return_dict": True})
        else:
            metrics = inference.evaluate(model, x, y, self.distributed, **options)
        if not metrics:
            raise ValueError("The data to evaluate on is empty: not one batch came of it.")
        if self._training is None or script.is_catching_up() or script.is_repeating:
            return metrics
        if report == "validation" and (loop := self._running_loop) is not None:
            loop.report_validation(metrics)
            return metrics
        if self.distributed.is_chief:
            prefix = "val_" if report == "validation" else ""
            named = {f"{prefix}{name}": value for name, value in metrics.items()}
            self.core.train.report_metrics(report, batches, named)
        if report == "validation":
            script.validated_at = batches
        return metrics

    def predict(
        self,
        model: keras.Model,
        x: Any,
        batch_size: int | None = None,
        *,
        gather: bool = False,
        **options: Any,
    ) -> Any:
        """Predict as `model.predict` does.

        Args:
            model: the built model.
            x: inputs, a PyDataset or a tf.data.Dataset.
            batch_size: samples per batch of one worker, with arrays; 32 by default.
            gather: return the predictions of all workers, in the original order, on every rank.
            options: the other arguments of `model.predict`.

        Returns:
            The predictions, of shape (samples, ...) for each output: those for this rank's share, in its order; those
            for all data with `gather`.
        """
        options = {"verbose": 0, "batch_size": batch_size, **options}
        if self.distributed.size > 1:
            return inference.predict(model, x, self.distributed, gather=gather, **options)
        return model.predict(x, **options)

    def alert(self, title: str, text: str = "", level: str = "info") -> None:
        """Send a message to the webhooks that wait for alerts, and write it to the log.

        The chief sends it, and calls on other ranks have no effect, nor have those of trainings that are finished
        when a script is resumed; batches that are trained again alert again. A local run keeps it in its run
        directory, in ``alerts.jsonl``.

        Args:
            title: the subject, 1 to 1,000 characters.
            text: the text, at most 10,000 characters; empty by default.
            level: ``info``, ``warn`` or ``error``.

        Raises:
            ValueError: an argument is invalid.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> context.alert("Diverged", "The loss is not finite.", level="error")
            ```
        """
        self._script.check_open("alert")
        if not isinstance(title, str) or not 0 < len(title) <= _LONGEST_TITLE:
            raise ValueError(
                f"`title` must be a text of 1 to {_LONGEST_TITLE} characters. Received: {title!r:.200}."
            )
        if not isinstance(text, str) or len(text) > _LONGEST_ALERT:
            raise ValueError(
                f"`text` must be a text of at most {_LONGEST_ALERT} characters. Received: {text!r:.200}."
            )
        if level not in _LEVELS:
            raise ValueError(f"`level` must be one of {', '.join(_LEVELS)}. Received: {level!r:.200}.")
        if not self._script.is_repeating:
            self.core.alert(title, text, level)

    def close_after(self, verification: LocalVerification | None) -> None:
        """Let `close` wait for what verifies the run; None for nothing."""
        self._verification = verification

    def close(self) -> None:
        """Write every checkpoint, send every report, and allow another context to be opened.

        Raises:
            CheckpointError: the newest checkpoint could not be written.
            MasterUnavailableError: reports could not be delivered; the message names them.
        """
        if self._is_closed:
            return
        self._is_closed = True
        is_closed(self._close_at_end)
        # From the last to the first: each is called, whatever those before it raise.
        with ExitStack() as steps:
            steps.callback(self._on_close)
            steps.callback(self._uncaught.remove)
            steps.callback(self.core.close)
            if self._verification is not None:
                steps.callback(self._verification.finish, is_wanted=not self._has_failed)
            steps.callback(self._script.close, save=not self._has_failed)

    def __enter__(self) -> KerasContext:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._on_uncaught(error)
        close_after(error, self.close)
        if error is not None:
            # If the script does not catch the exception, the hook prints the hint after the traceback.
            self._uncaught.install()

    def _close_at_end(self) -> None:
        try:
            self._script.wait_for_thread()
        finally:
            self.close()

    def _on_uncaught(self, error: BaseException) -> None:
        if self._is_closed:
            return
        self._has_failed = not isinstance(error, SystemExit)
        if isinstance(error, InvalidHP) and self.core.info is not None:
            self.core.leave_as_invalid(error, self.close)
        self.core.backend.note_error(error)


def _check_model(model: object, what: str) -> None:
    check_eager()
    if not isinstance(model, keras.Model):
        raise TypeError(
            f"`{what}` needs a keras.Model as its first argument. Received a {type(model).__name__}."
        )
    if not model.compiled:
        raise ValueError(f"Compile the model before `{what}`: `model.compile(optimizer=..., loss=...)`.")
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "The model was made under a tf.distribute strategy. Make it outside, and start several workers with "
            "`python3 -m det_keras.launch.distributed`."
        )


def script_of(context: KerasContext) -> Script:
    """Return what is below a context, for older interfaces that are built on it."""
    return context._script
