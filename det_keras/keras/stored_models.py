"""The calls of a context about models that are stored: in checkpoints, and in the model registry."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import keras

from det_keras.cluster_info import get_copy_info
from det_keras.core.checkpoint import DownloadMode
from det_keras.core.context import Context
from det_keras.core.registry import MasterRegistry, ModelDescription, ModelVersion, RunRegistry
from det_keras.errors import CheckpointError, DetError
from det_keras.keras.checkpoint.load import load_model, open_checkpoint
from det_keras.keras.script import Script
from det_keras.protocol.metrics import number, rank
from det_keras.protocol.registry import ModelReference, alias_problem, name_problem

if TYPE_CHECKING:
    from det_keras.client import Session


class StoredModels:
    """Loads the models of checkpoints, and registers those that the script trains."""

    core: Context
    _script: Script
    _master: str | None

    def load_checkpoint_model(
        self,
        trial_id: int | None = None,
        checkpoint_uuid: str | None = None,
        *,
        model: str | None = None,
        best: bool = False,
        custom_objects: Mapping[str, Any] | None = None,
    ) -> keras.Model:
        """Return the model of a checkpoint: architecture, weights and compile state.

        Args:
            trial_id: load the newest checkpoint of this trial.
            checkpoint_uuid: load this checkpoint.
            model: load a version of this model in the registry: ``digits`` is the newest, ``digits:3`` has a number,
                ``digits@champion`` an alias. In a local run, of the run directory if it has the model, else of the
                master. All ranks call it, and load the same version. In a job (`det job run`) the `model` of its config
                by default.
            best: with `trial_id`, load the best checkpoint by the searcher's metric instead of the newest.
            custom_objects: name -> class or function, for objects that Keras cannot find itself.

        Returns:
            The Keras model, compiled as it was trained.

        Raises:
            ValueError: not exactly one of `trial_id`, `checkpoint_uuid` and `model` is given, or `model` is malformed.
            CheckpointError: there is no such checkpoint, or it cannot be loaded.
        """
        if trial_id is None and checkpoint_uuid is None and model is None and self.core.info is not None:
            model = self.core.info.task_config.get("model")
        given = {"trial_id": trial_id, "checkpoint_uuid": checkpoint_uuid, "model": model}
        if sum(value is not None for value in given.values()) != 1:
            raise ValueError(
                "Give exactly one of `trial_id`, `checkpoint_uuid` and `model`. Received: "
                + ", ".join(f"{name}={value!r}" for name, value in given.items())
                + "."
            )
        if model is not None:
            reference = ModelReference.parse(model)
            checkpoint_uuid = self.core.distributed.on_chief(lambda: self._find(reference).checkpoint_uuid)
        with self._open_checkpoint(trial_id, checkpoint_uuid, best) as directory:
            return load_model(directory, custom_objects)

    def register_model(
        self,
        name: str,
        *,
        checkpoint: str | None = None,
        aliases: Iterable[str] = (),
        description: str | None = None,
        labels: Iterable[str] = (),
    ) -> ModelVersion | None:
        """Register a checkpoint as the next version of a model, which is created if it does not exist.

        Garbage collection keeps the checkpoint from now on. In a trial, a job and a detached run the version is in the
        registry of the master; in a local run it is in the run directory. A script that runs again after a resume makes
        the call again: a checkpoint that is a version already keeps its number, and nothing is changed. On several
        ranks the chief registers, and calls on other ranks have no effect.

        Args:
            name: name of the model, 1 to 255 characters.
            checkpoint: UUID of the checkpoint; by default the best one of what was trained so far, by the searcher's
                metric, and without validations the newest.
            aliases: names for this version, such as ``candidate``, which other versions of the model lose.
            description: a sentence about the version.
            labels: labels of the version.

        Returns:
            The version; None on other ranks than the chief.

        Raises:
            ValueError: `name` or an alias is invalid.
            CheckpointError: there is no checkpoint, or it cannot be written.
            MasterError: the master refuses it.
            DetError: the context is closed.

        Example:
            ```pycon
            >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            >>> model.compile("sgd", "mse")
            >>> x, y = np.zeros((8, 4)), np.zeros((8, 1))
            >>> history = context.fit(model, x, y, validation_data=(x, y), verbose=0)
            >>> context.register_model("digits", aliases=["candidate"]).model_version
            1
            ```
        """
        script = self._script
        script.check_open("register_model")
        said = ModelDescription(tuple(aliases), description, tuple(labels))
        for problem in (name_problem(name), *map(alias_problem, said.aliases)):
            if problem:
                raise ValueError(problem)
        if not script.core.distributed.is_chief:
            return None
        script.writer.wait()
        uuid = checkpoint or self._best()
        with self.core.open_registry() as registry:
            return registry.register(name, uuid, said)

    @contextmanager
    def _open_checkpoint(self, trial_id: int | None, uuid: str | None, best: bool) -> Iterator[Path]:
        if uuid is not None and self.core.checkpoint.storage.exists(uuid):
            with self.core.checkpoint.restore_path(uuid, DownloadMode.NoSharedDownload) as directory:
                yield directory
            return
        with (
            self._open_session() as session,
            open_checkpoint(session, trial_id=trial_id, uuid=uuid, best=best) as directory,
        ):
            yield directory

    def _open_session(self) -> Session:
        """Return a session with the master of this process, as its user."""
        # Imported here: a local script that loads nothing from a master needs no HTTP client.
        from det_keras.connection.masters import open_session
        from det_keras.connection.settings import Settings
        from det_keras.core.backend.trial import open_user_session

        info = self.core.info
        try:
            if info is not None:
                # A Determined 0.38.1 master lets only users download.
                return open_user_session(info)
            return open_session(Settings.from_environment(os.environ, master=self._master))
        except DetError as error:
            raise CheckpointError(f"The checkpoint cannot be fetched: {error}") from error

    def _find(self, reference: ModelReference) -> ModelVersion:
        info, is_copy = self.core.info, get_copy_info() is not None
        if info is None:
            with self.core.open_registry() as registry:
                if not isinstance(registry, RunRegistry) or registry.has(reference.name):
                    return registry.find(reference)
        trial = None if info is None or is_copy else info.trial
        with self._open_session() as session:
            return MasterRegistry(session.api, None if trial is None else trial.trial_id).find(reference)

    def _best(self) -> str:
        """Return the best of the checkpoints that the script has passed.

        A script that resumes in a later training calls again for an earlier one, and means the same checkpoint.
        """
        script = self._script
        records = [] if self.core.is_job else self.core.backend.unshared.checkpoints()
        passed = [record for record in records if record.steps_completed <= script.trained_batches]
        if not passed:
            raise CheckpointError(
                "There is no checkpoint to register yet. Call `register_model` after `fit`, or give `checkpoint`."
            )
        smaller = script.settings.smaller_is_better
        metrics = {record.uuid: number(record.metadata.get("searcher_metric")) for record in passed}
        passed.sort(key=lambda record: rank(metrics[record.uuid], smaller_is_better=smaller))
        # Of those without a metric, which come last, the newest is first.
        return passed[0].uuid
