"""Calls about the model registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from det_keras.protocol.api.transport import Transport
from det_keras.protocol.registry import NEWEST, ModelReference

_MODELS = "/api/v1/models"


class Models:
    """Calls about models and their versions; every method raises MasterError when the master rejects the call.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self, **params: Any) -> list[dict[str, Any]]:
        """Return the models that `params` of the call choose."""
        found: list[dict[str, Any]] = self._transport.get(_MODELS, params=params)["models"]
        return found

    def get(self, name: str) -> dict[str, Any]:
        """Return a model, by its name or its number."""
        found: dict[str, Any] = self._transport.get(_model(name))["model"]
        return found

    def labels(self) -> list[str]:
        """Return the labels of all models, the most frequent first."""
        found: list[str] = self._transport.get("/api/v1/model/labels")["labels"]
        return found

    def create(self, name: str, fields: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Create a model; `fields` are those of the call."""
        made: dict[str, Any] = self._transport.post(_MODELS, {"name": name, **fields}, **options)["model"]
        return made

    def change(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a model; `changes` are the fields of the call."""
        changed: dict[str, Any] = self._transport.patch(_model(name), changes)["model"]
        return changed

    def act(self, name: str, verb: str) -> None:
        """Archive (``archive``) or unarchive (``unarchive``) a model."""
        self._transport.post(f"{_model(name)}/{verb}")

    def move(self, name: str, workspace_id: int) -> None:
        """Move a model to another workspace."""
        body = {"modelName": name, "destinationWorkspaceId": workspace_id}
        self._transport.post(f"{_model(name)}/move", body)

    def delete(self, name: str) -> None:
        """Delete a model with its versions."""
        self._transport.delete(_model(name))

    def versions(self, name: str, **params: Any) -> list[dict[str, Any]]:
        """Return the versions of a model, newest first."""
        query = {"orderBy": "ORDER_BY_DESC", **params}
        found: list[dict[str, Any]] = self._transport.get(f"{_model(name)}/versions", params=query)[
            "modelVersions"
        ]
        return found

    def version(self, reference: ModelReference, **options: Any) -> dict[str, Any] | None:
        """Return the version that a reference names; None if it is the newest of a model without versions.

        Args:
            reference: names it.
            options: of the transport.
        """
        path = _model(reference.name)
        if reference.version is not None:
            path = f"{path}/versions/{reference.version}"
        elif reference.alias == NEWEST:
            newest = {"limit": 1, "orderBy": "ORDER_BY_DESC", "sortBy": "SORT_BY_VERSION"}
            listed = self._transport.get(f"{path}/versions", params=newest, **options)["modelVersions"]
            return listed[0] if listed else None
        else:
            path = f"{path}/aliases/{quote(reference.alias, safe='')}"
        found: dict[str, Any] = self._transport.get(path, **options)["modelVersion"]
        return found

    def register(
        self, name: str, checkpoint_uuid: str, fields: Mapping[str, Any], **options: Any
    ) -> dict[str, Any]:
        """Register a checkpoint as a version; one that is a version already is returned."""
        body = {"modelName": name, "checkpointUuid": checkpoint_uuid, **fields}
        made: dict[str, Any] = self._transport.post(f"{_model(name)}/versions", body, **options)[
            "modelVersion"
        ]
        return made

    def change_version(self, name: str, version: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a version; `changes` are the fields of the call."""
        path = f"{_model(name)}/versions/{version}"
        changed: dict[str, Any] = self._transport.patch(path, changes)["modelVersion"]
        return changed

    def delete_version(self, name: str, version: int) -> None:
        """Delete a version; its checkpoint stays."""
        self._transport.delete(f"{_model(name)}/versions/{version}")

    def set_alias(self, name: str, alias: str, version: int) -> None:
        """Give a version an alias, which the other versions lose."""
        self._transport.put(f"{_model(name)}/aliases/{quote(alias, safe='')}", {"version": version})

    def remove_alias(self, name: str, alias: str) -> None:
        """Remove an alias."""
        self._transport.delete(f"{_model(name)}/aliases/{quote(alias, safe='')}")

    def report_use(self, trial_id: int, checkpoint_uuid: str, version: tuple[int, int] | None = None) -> None:
        """Report that a trial uses a checkpoint, found by the numbers of a model and of its version or without."""
        info: dict[str, Any] = {
            "trialId": trial_id,
            "checkpointUuid": checkpoint_uuid,
            "trialSourceInfoType": "TRIAL_SOURCE_INFO_TYPE_INFERENCE",
        }
        if version is not None:
            info["modelId"], info["modelVersion"] = version
        self._transport.post("/api/v1/trial-source-info", {"trialSourceInfo": info})

    def metrics(self, name: str, version: int, group: str | None = None) -> Sequence[dict[str, Any]]:
        """Return the reports of the trials that use a version."""
        path = f"{_model(name)}/versions/{version}/metrics"
        found: list[dict[str, Any]] = self._transport.get(path, params={"metricGroup": group})["metrics"]
        return found


def _model(name: str) -> str:
    return f"{_MODELS}/{quote(name, safe='')}"
