"""Models of the registry at a master, and their versions."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.display import parse_time
from det_keras.experimental.checkpoint import Checkpoint
from det_keras.experimental.trial import TrialMetrics, report_of
from det_keras.protocol.registry import ModelReference


class OrderBy(enum.Enum):
    """The direction of a sorted list."""

    ASCENDING = "ORDER_BY_ASC"
    ASC = ASCENDING
    DESCENDING = "ORDER_BY_DESC"
    DESC = DESCENDING


#: The name that Determined gave it for lists of models.
ModelOrderBy = OrderBy


class ModelSortBy(enum.Enum):
    """The field by which a list of models is sorted."""

    UNSPECIFIED = "SORT_BY_UNSPECIFIED"
    NAME = "SORT_BY_NAME"
    DESCRIPTION = "SORT_BY_DESCRIPTION"
    CREATION_TIME = "SORT_BY_CREATION_TIME"
    LAST_UPDATED_TIME = "SORT_BY_LAST_UPDATED_TIME"
    NUM_VERSIONS = "SORT_BY_NUM_VERSIONS"
    WORKSPACE = "SORT_BY_WORKSPACE"


class ModelVersion:
    """A version of a model, as it was when it was fetched.

    Attributes:
        model_name: name of the model.
        model_id: number of the model.
        model_version: its number, from 1.
        checkpoint: the checkpoint that it is.
        name: a name for people.
        comment: a sentence about it.
        notes: Markdown.
        labels: its labels.
        metadata: JSON values.
        aliases: names that move from version to version; [] on a Determined master.
        username: who registered it.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self.model_name = str(shape["model"]["name"])
        self.model_version = int(shape["version"])
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self.model_id = int(shape["model"]["id"])
        self.checkpoint = Checkpoint(shape["checkpoint"], self._session)
        self.name = str(shape.get("name") or "")
        self.comment = str(shape.get("comment") or "")
        self.notes = str(shape.get("notes") or "")
        self.labels = [str(label) for label in shape.get("labels") or ()]
        self.metadata: dict[str, Any] = dict(shape.get("metadata") or {})
        self.aliases = [str(alias) for alias in shape.get("aliases") or ()]
        self.username = str(shape.get("username") or "")

    def reload(self) -> None:
        """Fetch the version again.

        Raises:
            MasterError: it no longer exists.
        """
        shape = self._session.api.models.version(ModelReference(self.model_name, self.model_version))
        assert shape is not None
        self._read(shape)

    def set_name(self, name: str) -> None:
        """Give the version a name for people.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(name=name)

    def set_notes(self, notes: str) -> None:
        """Replace the notes.

        Args:
            notes: Markdown.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(notes=notes)

    def set_alias(self, alias: str) -> None:
        """Give the version an alias, which the other versions of the model lose.

        Args:
            alias: such as ``champion``.

        Raises:
            MasterError: the master rejects the call; a Determined master has no aliases.
        """
        self._session.api.models.set_alias(self.model_name, alias, self.model_version)
        self.reload()

    def delete(self) -> None:
        """Delete the version; its checkpoint stays.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.models.delete_version(self.model_name, self.model_version)

    def iter_metrics(self, group: str | None = None) -> Iterator[TrialMetrics]:
        """Yield the reports of the trials that said that they use this version.

        Args:
            group: only this group of metrics; None for all.

        Raises:
            MasterError: the master rejects the call.
        """
        for row in self._session.api.models.metrics(self.model_name, self.model_version, group):
            yield report_of(row, str(row["group"]))

    get_metrics = iter_metrics

    def _change(self, **changes: Any) -> None:
        self._read(self._session.api.models.change_version(self.model_name, self.model_version, changes))

    def __repr__(self) -> str:
        return f"ModelVersion(model_name={self.model_name!r}, model_version={self.model_version})"

    def _repr_html_(self) -> str:
        facts = {"checkpoint": self.checkpoint.uuid, "aliases": ", ".join(self.aliases), "by": self.username}
        return notebook.card(f"{self.model_name}, version {self.model_version}", notebook.facts(facts))


class Model:
    """A model of the registry, as it was when it was fetched.

    Attributes:
        name: its name.
        model_id: its number.
        description: a sentence about it.
        creation_time: when it was created.
        last_updated_time: when it was changed last.
        metadata: JSON values.
        labels: its labels.
        username: its owner.
        workspace_id: number of its workspace.
        archived: whether it takes no changes.
        aliases: the version of each alias; {} on a Determined master.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self.name = str(shape["name"])
        self.model_id = int(shape["id"])
        self.description = str(shape.get("description") or "")
        self.creation_time: datetime | None = parse_time(shape.get("creationTime"))
        self.last_updated_time: datetime | None = parse_time(shape.get("lastUpdatedTime"))
        self.metadata: dict[str, Any] = dict(shape.get("metadata") or {})
        self.labels = [str(label) for label in shape.get("labels") or ()]
        self.username = str(shape.get("username") or "")
        self.workspace_id = int(shape.get("workspaceId") or 0)
        self.archived = bool(shape.get("archived"))
        self.aliases: dict[str, int] = dict(shape.get("aliases") or {})

    def reload(self) -> None:
        """Fetch the model again.

        Raises:
            MasterError: it no longer exists.
        """
        self._read(self._session.api.models.get(str(self.model_id)))

    def register_version(self, checkpoint_uuid: str) -> ModelVersion:
        """Register a checkpoint as the next version.

        Args:
            checkpoint_uuid: its UUID; on a det_keras master, one that is a version already is returned as it is.

        Raises:
            MasterError: the master rejects the call.
        """
        return ModelVersion(self._session.api.models.register(self.name, checkpoint_uuid, {}), self._session)

    def get_version(self, version: int | str = -1) -> ModelVersion | None:
        """Return a version.

        Args:
            version: its number, or an alias; -1 for the newest.

        Returns:
            The version; None if the newest is asked for and there is none.

        Raises:
            MasterError: there is no such version.
        """
        if isinstance(version, str):
            reference = ModelReference(self.name, alias=version)
        else:
            reference = ModelReference(self.name, version=None if version == -1 else version)
        shape = self._session.api.models.version(reference)
        return None if shape is None else ModelVersion(shape, self._session)

    def list_versions(self, order_by: OrderBy = OrderBy.DESC) -> list[ModelVersion]:
        """Return all versions.

        Args:
            order_by: by number; the newest first by default.

        Raises:
            MasterError: the master rejects the call.
        """
        shapes = self._session.api.models.versions(self.name, orderBy=order_by.value)
        return [ModelVersion(shape, self._session) for shape in shapes]

    get_versions = list_versions

    def add_metadata(self, metadata: Mapping[str, Any]) -> None:
        """Add values to the metadata; values of the same name are replaced.

        Args:
            metadata: JSON values by name.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(metadata={**self.metadata, **metadata})

    def remove_metadata(self, keys: Iterable[str]) -> None:
        """Remove values from the metadata; names that do not exist are skipped.

        Args:
            keys: names of the values.

        Raises:
            MasterError: the master rejects the call.
        """
        removed = frozenset(keys)
        self._change(metadata={name: value for name, value in self.metadata.items() if name not in removed})

    def set_labels(self, labels: Iterable[str]) -> None:
        """Replace the labels.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(labels=list(labels))

    def set_description(self, description: str) -> None:
        """Replace the description.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(description=description)

    def move_to_workspace(self, workspace_name: str) -> None:
        """Move the model to another workspace.

        Raises:
            MasterError: there is no such workspace, or the model belongs to somebody else.
        """
        self._change(workspaceName=workspace_name)

    def archive(self) -> None:
        """Let the model take no changes and no versions.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.models.act(self.name, "archive")
        self.archived = True

    def unarchive(self) -> None:
        """Let the model take changes again.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.models.act(self.name, "unarchive")
        self.archived = False

    def delete(self) -> None:
        """Delete the model with its versions; their checkpoints stay.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.models.delete(self.name)

    def _change(self, **changes: Any) -> None:
        self._read(self._session.api.models.change(self.name, changes))

    def __repr__(self) -> str:
        return f"Model(id={self.model_id}, name={self.name!r})"

    def _repr_html_(self) -> str:
        facts = {"aliases": ", ".join(f"{alias}: {number}" for alias, number in self.aliases.items())}
        facts |= {"labels": ", ".join(self.labels), "owner": self.username, "description": self.description}
        return notebook.card(f"Model {self.name}", notebook.facts(facts))


class ModelRegistry:
    """What a connection with a master offers of its model registry."""

    _session: Session

    def create_model(
        self,
        name: str,
        description: str | None = "",
        metadata: Mapping[str, Any] | None = None,
        labels: Sequence[str] | None = None,
        workspace_name: str | None = None,
    ) -> Model:
        """Create a model.

        Args:
            name: unique on the master.
            description: a sentence about it.
            metadata: JSON values by name.
            labels: its labels.
            workspace_name: its workspace; None for the first one.

        Raises:
            MasterError: there is a model of this name, or the name is not valid.

        Example:
            ```pycon
            >>> model = Determined().create_model("digits", "Handwriting", labels=["vision"])
            >>> model.add_metadata({"reviewed": True})
            >>> get_model("digits").metadata
            {'reviewed': True}
            ```
        """
        fields = {
            "description": description,
            "metadata": metadata,
            "labels": labels,
            "workspaceName": workspace_name,
        }
        given = {key: value for key, value in fields.items() if value is not None}
        return Model(self._session.api.models.create(name, given), self._session)

    def get_model(self, identifier: str | int) -> Model:
        """Return a model.

        Args:
            identifier: its name, or its number.

        Raises:
            MasterError: there is no such model.
        """
        return Model(self._session.api.models.get(str(identifier)), self._session)

    def get_model_by_id(self, model_id: int) -> Model:
        """Return the model with a number; see `get_model`."""
        return self.get_model(model_id)

    def list_models(
        self,
        sort_by: ModelSortBy = ModelSortBy.NAME,
        order_by: OrderBy = OrderBy.ASCENDING,
        name: str | None = None,
        description: str | None = None,
        model_id: int | None = None,
        workspace_names: Sequence[str] | None = None,
        workspace_ids: Sequence[int] | None = None,
    ) -> list[Model]:
        """Return models.

        Args:
            sort_by: the field by which they are sorted.
            order_by: the direction.
            name: only models whose names contain this text.
            description: only models whose descriptions contain this text.
            model_id: only the model with this number.
            workspace_names: only models in these workspaces.
            workspace_ids: only models in the workspaces with these numbers.

        Raises:
            MasterError: there is no such workspace.
        """
        shapes = self._session.api.models.all(
            sortBy=sort_by.value,
            orderBy=order_by.value,
            name=name,
            description=description,
            id=model_id,
            workspaceNames=workspace_names,
            workspaceIds=workspace_ids,
        )
        return [Model(shape, self._session) for shape in shapes]

    def get_models(self, *arguments: Any, **filters: Any) -> list[Model]:
        """Return models; see `list_models`."""
        return self.list_models(*arguments, **filters)

    def get_model_labels(self) -> list[str]:
        """Return the labels of all models, the most frequent first.

        Raises:
            MasterError: the master rejects the call.
        """
        return self._session.api.models.labels()
