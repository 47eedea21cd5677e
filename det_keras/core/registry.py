"""The model registry as a script sees it: on the master, or in the run directory of a local run.

<run_dir>/models.json   the versions of each model, by its name
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from det_keras.errors import CheckpointError, MasterError
from det_keras.files import write_file
from det_keras.protocol.registry import NEWEST, ModelReference

if TYPE_CHECKING:
    from det_keras.protocol.api import Api

logger = logging.getLogger(__name__)

#: The name of the file in a run directory.
FILE_NAME = "models.json"
_CONFLICT = 409


@dataclass(frozen=True)
class ModelVersion:
    """A version of a model in the registry.

    Attributes:
        model_name: name of the model.
        model_version: its number, from 1.
        checkpoint_uuid: the checkpoint that it is.
        aliases: the aliases that it had when it was found.
    """

    model_name: str
    model_version: int
    checkpoint_uuid: str
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelDescription:
    """What a script says of a version when it registers it.

    Attributes:
        aliases: names that the version gets, and other versions lose.
        description: the description of the version; None for none.
        labels: the labels of the version.
    """

    aliases: Sequence[str] = ()
    description: str | None = None
    labels: Sequence[str] = ()


class Registry(Protocol):
    """A place of models and their versions."""

    def register(self, name: str, checkpoint_uuid: str, description: ModelDescription) -> ModelVersion:
        """Register a checkpoint as the next version; one that is a version already is returned as it is.

        Args:
            name: name of the model, which is created if it does not exist.
            checkpoint_uuid: the checkpoint.
            description: what is said of the version.

        Raises:
            DetError: the registry refuses it.
        """

    def find(self, reference: ModelReference) -> ModelVersion:
        """Return the version that a reference names.

        Raises:
            CheckpointError: there is none.
        """

    def report_use(self, checkpoint_uuid: str, version: tuple[int, int] | None = None) -> None:
        """Record that the trial of this process uses a checkpoint; without effect if this is no trial.

        Args:
            checkpoint_uuid: the checkpoint.
            version: numbers of a model and of its version which the checkpoint is; None if it was not found by them.

        Raises:
            MasterError: the master refuses it.
        """


class MasterRegistry:
    """The registry of a master.

    Args:
        api: the calls of the master.
        trial_id: number of the trial that uses what it finds; None if none does.
    """

    def __init__(self, api: Api, trial_id: int | None = None) -> None:
        self._api = api
        self._trial_id = trial_id

    def register(self, name: str, checkpoint_uuid: str, description: ModelDescription) -> ModelVersion:
        """Register a checkpoint; see `Registry`."""
        fields: dict[str, Any] = {"comment": description.description, "labels": list(description.labels)}
        if self._api.accounts.is_determined():
            try:
                self._api.models.create(name, {})
            except MasterError as error:
                if error.status != _CONFLICT:
                    raise
            if description.aliases:
                logger.warning(
                    "The aliases %s of model %r are not set: the registry of a Determined master has none.",
                    ", ".join(description.aliases),
                    name,
                )
        else:
            fields |= {"aliases": list(description.aliases), "createModel": True}
        return _version(self._api.models.register(name, checkpoint_uuid, fields))

    def find(self, reference: ModelReference) -> ModelVersion:
        """Return a version; see `Registry`."""
        try:
            shape = self._api.models.version(reference)
            if shape is None:
                raise CheckpointError(f"Model {reference.name!r} has no version.")
            used = (int(shape["model"]["id"]), int(shape["version"]))
            self.report_use(shape["checkpoint"]["uuid"], used)
        except MasterError as error:
            raise CheckpointError(f"Model {reference.name!r} cannot be used: {error}.") from error
        return _version(shape)

    def report_use(self, checkpoint_uuid: str, version: tuple[int, int] | None = None) -> None:
        """Record what the trial uses; see `Registry`."""
        if self._trial_id is not None:
            self._api.models.report_use(self._trial_id, checkpoint_uuid, version)


class RunRegistry:
    """The registry of a local run.

    Args:
        directory: the run directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def register(self, name: str, checkpoint_uuid: str, description: ModelDescription) -> ModelVersion:
        """Register a checkpoint; see `Registry`."""
        models = self._read()
        versions = models.setdefault(name, [])
        for known in versions:
            if known["checkpoint_uuid"] == checkpoint_uuid:
                return self._found(name, known)
        for other in versions:
            other["aliases"] = [alias for alias in other["aliases"] if alias not in description.aliases]
        made = {"version": len(versions) + 1, "checkpoint_uuid": checkpoint_uuid, **asdict(description)}
        made["aliases"] = sorted(set(description.aliases))
        versions.append(made)
        write_file(self._path, json.dumps(models, indent=1), is_durable=True)
        logger.info(
            "Checkpoint %s is version %d of model %r, in %s.",
            checkpoint_uuid,
            made["version"],
            name,
            self._path,
        )
        return self._found(name, made)

    def find(self, reference: ModelReference) -> ModelVersion:
        """Return a version; see `Registry`."""
        versions = self._read().get(reference.name, [])
        for known in reversed(versions):
            is_meant = (
                known["version"] == reference.version
                if reference.version is not None
                else reference.alias in (NEWEST, *known["aliases"])
            )
            if is_meant:
                return self._found(reference.name, known)
        raise CheckpointError(f"{self._path} has no such version of model {reference.name!r}.")

    def report_use(self, checkpoint_uuid: str, version: tuple[int, int] | None = None) -> None:
        """Record nothing: no trial uses it."""

    def has(self, name: str) -> bool:
        """Return whether there is a model of this name."""
        return name in self._read()

    def checkpoints(self) -> set[str]:
        """Return the UUIDs of the checkpoints that are versions."""
        return {known["checkpoint_uuid"] for versions in self._read().values() for known in versions}

    def _read(self) -> dict[str, list[dict[str, Any]]]:
        try:
            found: dict[str, list[dict[str, Any]]] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found

    @staticmethod
    def _found(name: str, known: Mapping[str, Any]) -> ModelVersion:
        return ModelVersion(name, known["version"], known["checkpoint_uuid"], tuple(known["aliases"]))


class ModelUse:
    """Tells the registry which models this task uses: their pages then show the metrics that it reports.

    Args:
        open_registry: opens the registry; None on other ranks than the chief, where calls have no effect.
    """

    def __init__(self, open_registry: Callable[[], AbstractContextManager[Registry]] | None) -> None:
        self._open_registry = open_registry

    def report_task_using_checkpoint(self, checkpoint: Any) -> None:
        """Record that this trial uses a checkpoint.

        Args:
            checkpoint: has its UUID as `uuid`, as `det.experimental.client.get_checkpoint` returns it.

        Raises:
            MasterError: the master refuses it.
        """
        self._report(checkpoint.uuid, None)

    def report_task_using_model_version(self, model_version: Any) -> None:
        """Record that this trial uses a version of a model.

        Args:
            model_version: has `checkpoint`, `model_id` and `model_version`, as the versions of
                `det.experimental.client.get_model`.

        Raises:
            MasterError: the master refuses it.
        """
        version = (int(model_version.model_id), int(model_version.model_version))
        self._report(model_version.checkpoint.uuid, version)

    def _report(self, uuid: str, version: tuple[int, int] | None) -> None:
        if self._open_registry is not None:
            with self._open_registry() as registry:
                registry.report_use(uuid, version)


def _version(shape: Mapping[str, Any]) -> ModelVersion:
    aliases = tuple(shape.get("aliases") or ())
    return ModelVersion(shape["model"]["name"], int(shape["version"]), shape["checkpoint"]["uuid"], aliases)
