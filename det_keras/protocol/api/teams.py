"""Calls about what the users of a master share: workspaces and their projects, templates, webhooks; access tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from det_keras.protocol.api.accounts import Accounts
from det_keras.protocol.api.transport import Transport

_WORKSPACES = "/api/v1/workspaces"
_PROJECTS = "/api/v1/projects"
_TOKENS = "/api/v1/tokens"
_TEMPLATES = "/api/v1/templates"
_WEBHOOKS = "/api/v1/webhooks"


class Workspaces:
    """Calls about workspaces.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self, **params: Any) -> list[dict[str, Any]]:
        """Return the workspaces that `params` of the call choose; all by default."""
        found: list[dict[str, Any]] = self._transport.get(_WORKSPACES, params=params)["workspaces"]
        return found

    def named(self, name: str) -> dict[str, Any] | None:
        """Return the workspace with a name; None if there is none."""
        return next(iter(self.all(nameCaseSensitive=name)), None)

    def get(self, workspace_id: int) -> dict[str, Any]:
        """Return a workspace."""
        found: dict[str, Any] = self._transport.get(f"{_WORKSPACES}/{workspace_id}")["workspace"]
        return found

    def create(self, name: str, **fields: Any) -> dict[str, Any]:
        """Create a workspace, such as with `checkpointStorageConfig`, and return it."""
        made: dict[str, Any] = self._transport.post(_WORKSPACES, {"name": name, **fields}, repeatable=False)[
            "workspace"
        ]
        return made

    def change(self, workspace_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a workspace and return it."""
        found: dict[str, Any] = self._transport.patch(f"{_WORKSPACES}/{workspace_id}", changes)["workspace"]
        return found

    def act(self, workspace_id: int, verb: str) -> None:
        """Archive, unarchive, pin or unpin a workspace."""
        self._transport.post(f"{_WORKSPACES}/{workspace_id}/{verb}")

    def delete(self, workspace_id: int) -> bool:
        """Delete a workspace; return whether it is gone already."""
        return bool(self._transport.delete(f"{_WORKSPACES}/{workspace_id}")["completed"])

    def projects(self, workspace_id: int, **params: Any) -> list[dict[str, Any]]:
        """Return the projects of a workspace; of all, if its number is 0."""
        path = f"{_WORKSPACES}/{workspace_id}/projects"
        found: list[dict[str, Any]] = self._transport.get(path, params=params)["projects"]
        return found


class Projects:
    """Calls about projects.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def get(self, project_id: int) -> dict[str, Any]:
        """Return a project."""
        found: dict[str, Any] = self._transport.get(f"{_PROJECTS}/{project_id}")["project"]
        return found

    def create(self, workspace_id: int, name: str, **fields: Any) -> dict[str, Any]:
        """Create a project, such as with `description` and `key`, and return it."""
        path = f"{_WORKSPACES}/{workspace_id}/projects"
        body = {"name": name, "workspaceId": workspace_id, **fields}
        made: dict[str, Any] = self._transport.post(path, body, repeatable=False)["project"]
        return made

    def change(self, project_id: int, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change a project and return it."""
        found: dict[str, Any] = self._transport.patch(f"{_PROJECTS}/{project_id}", changes)["project"]
        return found

    def act(self, project_id: int, verb: str) -> None:
        """Archive or unarchive a project."""
        self._transport.post(f"{_PROJECTS}/{project_id}/{verb}")

    def move(self, project_id: int, workspace_id: int) -> None:
        """Move a project to another workspace."""
        body = {"projectId": project_id, "destinationWorkspaceId": workspace_id}
        self._transport.post(f"{_PROJECTS}/{project_id}/move", body)

    def delete(self, project_id: int) -> bool:
        """Delete a project; return whether it is gone already."""
        return bool(self._transport.delete(f"{_PROJECTS}/{project_id}")["completed"])

    def add_note(self, project_id: int, name: str, contents: str) -> None:
        """Add a note to a project."""
        # A second try would add a second note.
        body = {"name": name, "contents": contents}
        self._transport.post(f"{_PROJECTS}/{project_id}/notes", body, repeatable=False)

    def set_notes(self, project_id: int, notes: Sequence[Mapping[str, str]]) -> None:
        """Replace all notes of a project, each with `name` and `contents`."""
        self._transport.put(f"{_PROJECTS}/{project_id}/notes", {"notes": list(notes)})

    def take(self, project_id: int, experiment_id: int) -> None:
        """Move an experiment to a project."""
        body = {"experimentId": experiment_id, "destinationProjectId": project_id}
        self._transport.post(f"/api/v1/experiments/{experiment_id}/move", body)


class Tokens:
    """Calls about access tokens.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def user_id(self, username: str) -> int:
        """Return the number of a user."""
        path = f"/api/v1/users/{quote(username, safe='')}/by-username"
        return int(self._transport.get(path)["user"]["id"])

    def create(self, user_id: int | None, lifespan: str, description: str) -> dict[str, Any]:
        """Create a token; return it with its number.

        Args:
            user_id: as whom it acts; None for the caller.
            lifespan: such as ``72h``; ``-1`` for no end; empty for the master's default.
            description: what it is for.
        """
        number = self._transport.get("/api/v1/me")["user"]["id"] if user_id is None else user_id
        body = {"userId": number, "lifespan": lifespan or None, "description": description or None}
        made: dict[str, Any] = self._transport.post(_TOKENS, body, repeatable=False)
        return made

    def all(self, **params: Any) -> list[dict[str, Any]]:
        """Return the tokens that `params` of the call choose, without the tokens themselves."""
        found: list[dict[str, Any]] = self._transport.get(_TOKENS, params=params)["tokenInfo"]
        return found

    def change(self, token_id: int, **changes: Any) -> None:
        """Describe a token anew (`description`), or revoke it (`setRevoked`)."""
        self._transport.patch(f"{_TOKENS}/{token_id}", {"tokenId": token_id, **changes})


class Templates:
    """Calls about templates of configs.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def all(self) -> list[dict[str, Any]]:
        """Return all templates."""
        found: list[dict[str, Any]] = self._transport.get(_TEMPLATES)["templates"]
        return found

    def get(self, name: str) -> dict[str, Any]:
        """Return a template; its secrets are masked."""
        found: dict[str, Any] = self._transport.get(_template(name))["template"]
        return found

    def create(self, name: str, config: Mapping[str, Any], workspace_id: int = 0) -> None:
        """Create a template."""
        body = {"name": name, "config": config, "workspaceId": workspace_id}
        self._transport.post(_template(name), body, repeatable=False)

    def put(self, name: str, config: Mapping[str, Any]) -> None:
        """Create a template, or replace the config of the one with this name."""
        self._transport.put(_template(name), {"name": name, "config": config, "workspaceId": 0})

    def delete(self, name: str) -> None:
        """Delete a template."""
        self._transport.delete(_template(name))


class Webhooks:
    """Calls about webhooks.

    Args:
        transport: sends the calls.
        accounts: knows whether the master is ours.
    """

    def __init__(self, transport: Transport, accounts: Accounts) -> None:
        self._transport = transport
        self._accounts = accounts

    def all(self) -> list[dict[str, Any]]:
        """Return the webhooks that the caller may see."""
        found: list[dict[str, Any]] = self._transport.get(_WEBHOOKS)["webhooks"]
        return found

    def create(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Create a webhook and return it."""
        made: dict[str, Any] = self._transport.post(_WEBHOOKS, fields, repeatable=False)["webhook"]
        return made

    def change(self, webhook_id: int, url: str) -> None:
        """Change the address of a webhook."""
        self._transport.patch(f"{_WEBHOOKS}/{webhook_id}", {"url": url})

    def delete(self, webhook_id: int) -> None:
        """Delete a webhook."""
        self._transport.delete(f"{_WEBHOOKS}/{webhook_id}")

    def test(self, webhook_id: int) -> None:
        """Send a test event; returns when the receiver has accepted it."""
        self._transport.post(f"{_WEBHOOKS}/{webhook_id}/test", repeatable=False)

    def deliveries(self, webhook_id: int, limit: int) -> list[dict[str, Any]]:
        """Return what was sent and what waits, latest first; only our master has this call."""
        path = f"{_WEBHOOKS}/{webhook_id}/deliveries"
        found: list[dict[str, Any]] = self._transport.get(path, params={"limit": limit})["deliveries"]
        return found

    def alert(
        self, experiment_id: int, trial_id: int, title: str, description: str, level: str, event_id: str
    ) -> None:
        """Tell webhooks of an alert; our master drops repetitions by the id."""
        data = {"title": title, "description": description, "level": f"LOG_LEVEL_{level}"}
        body: dict[str, Any] = {"experimentId": experiment_id, "trialId": trial_id, "data": data}
        if not self._accounts.is_determined():
            body["eventId"] = event_id
        self._transport.post(f"{_WEBHOOKS}/custom", body)


def _template(name: str) -> str:
    return f"{_TEMPLATES}/{quote(name, safe='')}"
