"""Calls about the caller and the cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from det_keras.errors import MasterUnavailableError
from det_keras.protocol.api.transport import Transport
from det_keras.protocol.values import hash_password

#: The key of our version in the answer to ``GET /info``, by which clients recognise our master.
OWN_VERSION_KEY = "det_keras_version"


class Accounts:
    """Calls about the caller and the cluster.

    Args:
        transport: sends the calls.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._is_determined: bool | None = None

    def me(self) -> dict[str, Any]:
        """Return the user of the session's token."""
        user: dict[str, Any] = self._transport.get("/api/v1/me")["user"]
        return user

    def users(self) -> list[dict[str, Any]]:
        """Return all users."""
        found: list[dict[str, Any]] = self._transport.get("/api/v1/users")["users"]
        return found

    def user(self, username: str) -> dict[str, Any]:
        """Return the user with a name."""
        path = f"/api/v1/users/{quote(username, safe='')}/by-username"
        found: dict[str, Any] = self._transport.get(path)["user"]
        return found

    def create_user(self, username: str, password: str, *, is_admin: bool) -> None:
        """Create an active user; for administrators."""
        user = {"username": username, "admin": is_admin, "active": True}
        # Not hashed: the master refuses passwords that are too weak.
        body = {"user": user, "password": password, "isHashed": False}
        self._transport.post("/api/v1/users", body, repeatable=False)

    def change_user(self, user_id: int, **changes: Any) -> dict[str, Any]:
        """Change a user and return it.

        Args:
            user_id: number of the user.
            changes: fields of the call: `username`, `displayName`, `active`, and `password` with `isHashed`.
        """
        changed: dict[str, Any] = self._transport.patch(f"/api/v1/users/{user_id}", changes)["user"]
        return changed

    def log_in(self, username: str, password: str) -> str:
        """Log in and return a new token."""
        body = {"username": username, "password": hash_password(password), "isHashed": True}
        return str(self._transport.post("/api/v1/auth/login", body)["token"])

    def log_out(self) -> None:
        """Invalidate the session's token."""
        self._transport.post("/api/v1/auth/logout")

    def web_login_url(self) -> str:
        """Return a URL that logs a browser in, valid once."""
        return str(self._transport.post("/api/v1/auth/web-code")["url"])

    def is_determined(self) -> bool:
        """Return whether the master is Determined's own, which lacks what only our master has."""
        if self._is_determined is None:
            self._is_determined = OWN_VERSION_KEY not in self._transport.get("/info")
        return self._is_determined

    def check_is_master(self, url: str) -> None:
        """Check that a master answers, which needs no login.

        Args:
            url: its address, for the message.

        Raises:
            MasterUnavailableError: nothing answers, or another program.
        """
        info = self._transport.get("/info")
        if not isinstance(info, dict) or "cluster_id" not in info:
            raise MasterUnavailableError(f"What answers at {url} is not a master of det_keras or Determined.")

    def cluster(self) -> dict[str, Any]:
        """Return the master's version, name and ids."""
        info: dict[str, Any] = self._transport.get("/api/v1/master")
        return info

    def usage(self) -> list[dict[str, Any]]:
        """Return how many bytes each kind of files of the master occupies; [] from Determined's own."""
        if self.is_determined():
            return []
        found: list[dict[str, Any]] = self._transport.get("/api/v1/master/usage")["usage"]
        return found

    def prune(self, **options: Any) -> list[dict[str, Any]]:
        """Delete old log lines, runs and environments, or return what would be deleted.

        Args:
            options: of the call: `logDays`, `runDays`, `auditDays`, `environments` and `isDry`.
        """
        pruned: list[dict[str, Any]] = self._transport.post("/api/v1/master/prune", options)["pruned"]
        return pruned

    def changes(self, **params: Any) -> dict[str, Any]:
        """Return who changed what, latest first; only our master has this call.

        Args:
            params: of the call: `user`, `kind`, `id`, `since`, `offset` and `limit`.

        Returns:
            `entries`, and `pagination` with their number in all.
        """
        found: dict[str, Any] = self._transport.get("/api/v1/audit", params=params)
        return found

    def agents(self) -> list[dict[str, Any]]:
        """Return the machines, each with its slots."""
        agents: list[dict[str, Any]] = self._transport.get("/api/v1/agents")["agents"]
        return agents

    def set_use(self, agent_id: str, slot: int | None = None, *, is_used: bool, drain: bool = False) -> None:
        """Give a machine or one of its slots to no task any more, or to tasks again; for administrators.

        Args:
            agent_id: name of the machine.
            slot: number of the slot; None for the whole machine.
            is_used: whether tasks are given it.
            drain: whether what runs there continues to its end.
        """
        path = f"/api/v1/agents/{quote(agent_id, safe='')}" + ("" if slot is None else f"/slots/{slot}")
        if is_used:
            self._transport.post(f"{path}/enable")
        else:
            self._transport.post(f"{path}/disable", {"drain": drain})

    def resource_pools(self) -> list[dict[str, Any]]:
        """Return the pools of slots."""
        pools: list[dict[str, Any]] = self._transport.get("/api/v1/resource-pools")["resourcePools"]
        return pools
