"""The context that `det.keras.init()` returns: the API of training scripts."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras

from det_keras import core as det_core
from det_keras import notebook
from det_keras.core.checkpoint import DownloadMode
from det_keras.core.checkpoint_writer import CheckpointWriter
from det_keras.core.media.content import Content
from det_keras.core.uncaught import UncaughtHook
from det_keras.display import flat_hparams
from det_keras.errors import CheckpointError, DetError, InvalidHP, NotATrainingJobError
from det_keras.keras.checkpoint.load import load_model, open_checkpoint
from det_keras.keras.checkpoint.variables import build_for_evaluation
from det_keras.keras.data import DataContext
from det_keras.keras.distributed.gradients import GradientExchange
from det_keras.keras.distributed.shared_step import SharedStep
from det_keras.keras.fit import inference
from det_keras.keras.fit.arguments import FitArguments
from det_keras.keras.fit.fit import FitRun
from det_keras.keras.history import FitHistory
from det_keras.keras.loops.calls import LoopCalls
from det_keras.keras.loops.loop import Loop
from det_keras.keras.loops.tracked import TrackedObjects
from det_keras.keras.media import MediaLog
from det_keras.keras.optimizer import OptimizerRegistry
from det_keras.keras.process_setup import check_eager
from det_keras.keras.training.phase import PhaseRecord
from det_keras.keras.training.resume import ResumePoint, find_phase_end, find_resume_point, find_warm_start
from det_keras.keras.training.settings import FitSettings
from det_keras.keras.training.snapshot import CodeArchive
from det_keras.keras.training_info import TrainingInfo

__all__ = ["KerasContext"]

logger = logging.getLogger(__name__)


class KerasContext(LoopCalls, MediaLog):
    """The API of training scripts.

    Args:
        core: the framework-free context.
        training: hyperparameters and ids of this training run; None outside one.
        settings: how often to report, validate and save.
        seed: the seed of all random operations.
        config_data: the config's ``data`` field.
        master: address of the master that a detached run reports to; None for that of the environment.
        on_close: called when the context is closed.

    Attributes:
        core: the framework-free context.
        data: prepares training data; `wrap_data` is its `wrap`.
        distributed: rank, size and small exchanges.
        config_data: the config's ``data`` field.
        seed: the seed of all random operations.
        settings: how often to report, validate and save.
        phases: the finished `fit` calls.
        writer: writes checkpoints in the background.
        validated_at: batches trained in the script at its newest validation, None before the first.
        code: the submitted code.
        shared_step: the state that the workers exchange with each step; None on one worker without virtual ones.
    """

    def __init__(
        self,
        core: det_core.Context,
        training: TrainingInfo | None,
        settings: FitSettings,
        *,
        seed: int,
        config_data: Mapping[str, Any],
        skip_missing_checkpoints: bool = False,
        master: str | None = None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self.core = core
        self.settings = settings
        self.seed = seed
        self.config_data = dict(config_data)
        self.distributed = core.distributed
        self.data = DataContext(core.distributed)
        self.phases: list[PhaseRecord] = []
        self.writer = CheckpointWriter(core.checkpoint, before=core.media.flush)
        self.code = CodeArchive(core)
        self._training = training
        self.shared_step = None if core.distributed.is_alone else SharedStep()
        exchange = None
        if self.shared_step is not None:
            exchange = GradientExchange(self.shared_step, half=settings.compress_gradients)
        self._optimizers = OptimizerRegistry(
            settings.aggregation_frequency,
            average=settings.average_aggregated_gradients,
            exchange=exchange,
        )
        self._loop: Loop | None = None
        self._tracked: dict[str, Any] = {}
        self._num_early_batches = 0
        self._has_failed = False
        self._files = ExitStack()
        self._master = master
        self._skip_missing_checkpoints = skip_missing_checkpoints
        self._run: FitRun | None = None
        self._point: ResumePoint | None = None
        self._looked_for_point = False
        self._has_resumed = False
        self._has_logged_evaluation = False
        self.validated_at: int | None = None
        self._on_close = on_close
        self._is_closed = False
        core.preempt.start()
        if settings.profiling:
            core.start_profiler()
        core.report_provenance()
        atexit.register(self.close)
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
        known: dict[str, Any] = {"seed": self.seed, "batches": sum(phase.batches for phase in self.phases)}
        if self.distributed.size > 1:
            known["workers"] = f"rank {self.distributed.rank} of {self.distributed.size}"
        training = self._training
        if training is not None and training.trial_id is not None:
            known = {"experiment": training.experiment_id, "trial": training.trial_id, **known}
        parts = [notebook.facts(known)]
        if training is not None and training.hparams:
            parts.append(notebook.table(("hyperparameter", "value"), flat_hparams(training.hparams)))
        newest = self.phases[-1].history if self.phases else {"epoch": [], "history": {}}
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

    def wrap_optimizer(self, optimizer: Any) -> Any:
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
        return self._optimizers.wrap(optimizer)

    def optimizers_of(self, model: Any) -> list[Any]:
        """Return every optimizer that trains `model`."""
        return self._optimizers.of_model(model)

    def prepare_optimizers(self, model: Any) -> None:
        """Make every optimizer that trains `model` exchange gradients between workers; see `OptimizerRegistry`."""
        self._optimizers.prepare(model)

    def fit(
        self,
        model: Any,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Any = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: Any = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: Any = 1,
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
        self._check_open("fit")
        _check_model(model, "fit")
        self._begin_training("fit")
        run = self._run = FitRun(self, model, arguments)
        try:
            return self._execute(run, model)
        finally:
            self._run = None
            run.close()

    def evaluate(
        self,
        model: Any,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        *,
        report: str = "test",
        **options: Any,
    ) -> Any:
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
        self._check_open("evaluate")
        if report not in ("test", "validation"):
            raise ValueError(f"`report` is 'test' or 'validation'. Received: {report!r}.")
        _check_model(model, "evaluate")
        batches = self._trained_batches
        if report == "validation" and batches == self.validated_at:
            raise ValueError(f"Batch {batches} has a validation already: report to the group 'test' instead.")
        options = {"verbose": 0, "batch_size": batch_size, **options}
        if self.distributed.is_alone:
            metrics: dict[str, float] = model.evaluate(x, y, **{**options, "return_dict": True})
        else:
            metrics = inference.evaluate(model, x, y, self.distributed, **options)
        if not metrics:
            raise ValueError("The data to evaluate on is empty: not one batch came of it.")
        if self._training is None or self._is_catching_up() or self._is_repeating:
            return metrics
        if report == "validation" and self._loop is not None and self._loop.is_open:
            self._loop.report_validation(metrics)
            return metrics
        if self.distributed.is_chief:
            prefix = "val_" if report == "validation" else ""
            named = {f"{prefix}{name}": value for name, value in metrics.items()}
            self.core.train.report_metrics(report, batches, named)
        if report == "validation":
            self.validated_at = batches
        return metrics

    def predict(
        self, model: Any, x: Any, batch_size: int | None = None, *, gather: bool = False, **options: Any
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

    def load_checkpoint_model(
        self,
        trial_id: int | None = None,
        checkpoint_uuid: str | None = None,
        *,
        best: bool = False,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return the model of a checkpoint: architecture, weights and compile state.

        Args:
            trial_id: load the newest checkpoint of this trial.
            checkpoint_uuid: load this checkpoint.
            best: with `trial_id`, load the best checkpoint by the searcher's metric instead of the newest.
            custom_objects: name -> class or function, for objects that Keras cannot find itself.

        Returns:
            The Keras model, compiled as it was trained.

        Raises:
            ValueError: not exactly one of `trial_id` and `checkpoint_uuid` is given.
            CheckpointError: there is no such checkpoint, or it cannot be loaded.
        """
        if (trial_id is None) == (checkpoint_uuid is None):
            raise ValueError(
                "Give exactly one of `trial_id` and `checkpoint_uuid`. "
                f"Received: trial_id={trial_id!r}, checkpoint_uuid={checkpoint_uuid!r}."
            )
        with self._open_checkpoint(trial_id, checkpoint_uuid, best) as directory:
            return load_model(directory, custom_objects)

    def phase_finished(self, record: PhaseRecord) -> None:
        """Record a finished `fit` call."""
        self.phases.append(record)
        self._optimizers.forget()

    def close(self) -> None:
        """Write every checkpoint, send every report, and allow another context to be opened."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._loop is not None:
            self._loop.abandon(save=not self._has_failed)
        self.writer.close()
        self._files.close()
        self.core.close()
        atexit.unregister(self.close)
        self._uncaught.remove()
        self._on_close()

    def __enter__(self) -> KerasContext:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            self._on_uncaught(error)
        self.close()
        if error is not None:
            # If the script does not catch the exception, the hook prints the hint after the traceback.
            self._uncaught.install()

    @property
    def _is_logging(self) -> bool:
        self._check_open("log_...")
        return self.distributed.is_chief

    @property
    def _trained_batches(self) -> int:
        if self._run is not None:
            return self._run.progress.trained_batches
        if self._loop is not None and self._loop.is_open:
            return self._loop.trained_batches
        return sum(phase.batches for phase in self.phases)

    @property
    def _is_repeating(self) -> bool:
        """Whether a loop repeats a part of an epoch that an earlier process has run and reported."""
        return self._loop is not None and self._loop.is_open and self._loop.is_before_position

    def _store_media(self, name: str, step: int, content: Content) -> None:
        if self._is_repeating:
            return
        self.core.media.put(name, step, content)

    def _check_open(self, what: str) -> None:
        if self._is_closed:
            raise DetError(
                f"`{what}` was called on a context that is closed. Call `det.keras.init()` for a new one; it "
                "continues from the newest checkpoint of its `run_dir`."
            )

    def _is_catching_up(self) -> bool:
        """Return whether the script has not yet reached the `fit` that resumes from a checkpoint."""
        if self._find_point() is None or self._has_resumed:
            return False
        if not self._has_logged_evaluation:
            self._has_logged_evaluation = True
            logger.info(
                "What `evaluate` finds before the `fit` that continues from the checkpoint is not reported: the run "
                "before has done that."
            )
        return True

    def _find_point(self) -> ResumePoint | None:
        if not self._looked_for_point:
            self._looked_for_point = True
            self._point = find_resume_point(
                self.core, self._files, skip_missing=self._skip_missing_checkpoints
            )
        return self._point

    def _execute(self, run: FitRun, model: Any) -> FitHistory:
        """Train or resume, or skip what an earlier process finished."""
        point = self._find_point()
        index = len(self.phases)
        if point is not None and index < point.phase_index:
            return self._finished_phase(run, point.phases[index])
        if point is not None and index == point.phase_index:
            self._has_resumed = True
            return run.execute(point)
        if point is None and index == 0:
            if find_warm_start(self.core) is not None:
                build_for_evaluation(model, run.source.element_spec)
            self._warm_start(model)
        return run.execute(None)

    def _finished_phase(self, run: FitRun, record: PhaseRecord) -> FitHistory:
        """Skip a `fit` that an earlier process finished, and restore the state of its model at its end."""
        parts = run.parts
        batches = parts.progress.batches_before + record.batches
        with ExitStack() as stack:
            end = find_phase_end(
                self.core,
                stack,
                parts.phase_index,
                batches,
                skip_missing=self._skip_missing_checkpoints,
            )
            parts.trained.build(parts.source.element_spec)
            return run.skip_phase(record, end)

    def _wrapped_optimizers(self) -> list[Any]:
        return self._optimizers.wrapped

    def _make_loop(self, tracked: TrackedObjects, epochs: int, on_nan: str) -> Loop:
        return Loop(self, tracked, epochs=epochs, on_nan=on_nan)

    def _run_loop(self, loop: Loop) -> Iterator[int]:
        for optimizer in loop.parts.tracked.optimizers.values():
            self._optimizers.check_wrapped(optimizer)
        point, index = self._find_point(), len(self.phases)
        if point is not None and index < point.phase_index:
            batches = loop.progress.batches_before + point.phases[index].batches
            with ExitStack() as stack:
                skip = self._skip_missing_checkpoints
                end = find_phase_end(self.core, stack, index, batches, skip_missing=skip)
                loop.skip(point.phases[index], end)
            return
        is_resumed = point is not None and index == point.phase_index
        if is_resumed:
            self._has_resumed = True
        elif point is None and index == 0:
            models = (part for part in loop.parts.tracked.layers.values() if isinstance(part, keras.Model))
            self._warm_start(next(models, None))
        yield from loop.epochs(point if is_resumed else None)

    def _warm_start(self, model: Any) -> None:
        """Load the weights of another trial's checkpoint, if the trial is to begin with them."""
        uuid = find_warm_start(self.core)
        if uuid is None or model is None:
            return
        with self.core.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as directory:
            try:
                model.load_weights(directory / "model.keras")
            except (ValueError, OSError) as error:
                raise CheckpointError(
                    f"The weights of checkpoint `{uuid}` do not fit this model: {error}"
                ) from error
        logger.info("The weights are those of checkpoint %s; all other state is new.", uuid)

    @contextmanager
    def _open_checkpoint(self, trial_id: int | None, uuid: str | None, best: bool) -> Iterator[Path]:
        if uuid is not None and self.core.checkpoint.storage.exists(uuid):
            with self.core.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as directory:
                yield directory
            return
        # Imported here: a local script that loads nothing from a master needs no HTTP client.
        from det_keras.connection.masters import open_session
        from det_keras.connection.settings import Settings
        from det_keras.core.backend.trial import open_task_session

        info = self.core.info
        try:
            session = (
                open_task_session(info)
                if info is not None
                else open_session(Settings.from_environment(os.environ, master=self._master))
            )
        except DetError as error:
            raise CheckpointError(f"The checkpoint cannot be fetched: {error}") from error
        with session, open_checkpoint(session, trial_id=trial_id, uuid=uuid, best=best) as directory:
            yield directory

    def _on_uncaught(self, error: BaseException) -> None:
        if self._is_closed:
            return
        self._has_failed = not isinstance(error, SystemExit)
        if isinstance(error, InvalidHP) and self.core.info is not None:
            self.core.leave_as_invalid(error, self.close)
        self.core.backend.note_error(error)


def _check_model(model: Any, what: str) -> None:
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
