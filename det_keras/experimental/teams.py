"""What users of a master share, and the users: workspaces, projects and accounts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from det_keras import notebook
from det_keras.client import Session
from det_keras.errors import DetError
from det_keras.experimental.experiment import Experiment


class Project:
    """A project, as it was when it was fetched.

    Attributes:
        id: its number.
        name: its name.
        key: short and unique on the master.
        description: a sentence about it.
        archived: whether it takes no experiments.
        workspace_id: number of its workspace.
        username: its owner.
        n_experiments: number of its experiments.
        n_active_experiments: number of those that have not ended.
        notes: objects with `name` and `contents`.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self.id = int(shape["id"])
        self.name = str(shape["name"])
        self.key = str(shape.get("key") or "")
        self.description = str(shape.get("description") or "")
        self.archived = bool(shape.get("archived"))
        self.workspace_id = int(shape["workspaceId"])
        self.username = str(shape.get("username") or "")
        self.n_experiments = int(shape.get("numExperiments") or 0)
        self.n_active_experiments = int(shape.get("numActiveExperiments") or 0)
        self.notes: list[dict[str, str]] = list(shape.get("notes") or ())

    def reload(self) -> None:
        """Fetch the project again.

        Raises:
            MasterError: it no longer exists.
        """
        self._read(self._session.api.projects.get(self.id))

    def list_experiments(self) -> list[Experiment]:
        """Return the experiments, by number.

        Raises:
            MasterError: the master rejects the call.
        """
        order = {"sortBy": "SORT_BY_ID", "orderBy": "ORDER_BY_ASC"}
        found = self._session.api.experiments.all(limit=-1, projectId=self.id, **order)
        return [Experiment(shape["id"], self._session) for shape in found]

    def set_name(self, name: str) -> None:
        """Rename the project.

        Raises:
            MasterError: the name is taken or not valid, or the project belongs to somebody else.
        """
        self._change(name=name)

    def set_description(self, description: str) -> None:
        """Replace the description.

        Raises:
            MasterError: the master rejects the call.
        """
        self._change(description=description)

    def set_key(self, key: str) -> None:
        """Replace the key.

        Args:
            key: up to five letters and digits.

        Raises:
            MasterError: the key is taken or not valid.
        """
        self._change(key=key)

    def archive(self) -> None:
        """Let the project take no further experiments.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.projects.act(self.id, "archive")
        self.archived = True

    def unarchive(self) -> None:
        """Let the project take experiments again.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.projects.act(self.id, "unarchive")
        self.archived = False

    def add_note(self, name: str, contents: str) -> None:
        """Add a note.

        Args:
            name: its title.
            contents: Markdown.

        Raises:
            MasterError: the master rejects the call.
        """
        self._session.api.projects.add_note(self.id, name, contents)
        self.reload()

    def remove_note(self, name: str) -> None:
        """Remove the note with a title.

        Raises:
            DetError: there is none, or several have it.
        """
        self.reload()
        named = [note for note in self.notes if note["name"] == name]
        if len(named) != 1:
            raise DetError(f"{len(named)} notes of the project {self.name!r} are called {name!r}.")
        left = [note for note in self.notes if note["name"] != name]
        self._session.api.projects.set_notes(self.id, left)
        self.reload()

    def _change(self, **changes: Any) -> None:
        self._session.api.projects.change(self.id, changes)
        self.reload()

    def __repr__(self) -> str:
        return f"Project(id={self.id}, name={self.name!r})"

    def _repr_html_(self) -> str:
        facts = {"key": self.key, "experiments": self.n_experiments, "owner": self.username}
        return notebook.card(
            f"Project {self.name}", notebook.facts({**facts, "description": self.description})
        )


class Workspace:
    """A workspace, as it was when it was fetched.

    Attributes:
        id: its number.
        name: its name.
        archived: whether it takes no experiments.
        username: its owner.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self.id = int(shape["id"])
        self.name = str(shape["name"])
        self.archived = bool(shape.get("archived"))
        self.username = str(shape.get("username") or "")

    def reload(self) -> None:
        """Fetch the workspace again.

        Raises:
            MasterError: it no longer exists.
        """
        self._read(self._session.api.workspaces.get(self.id))

    def create_project(self, name: str, description: str | None = None, key: str | None = None) -> Project:
        """Create a project.

        Args:
            name: unique in the workspace.
            description: a sentence about it.
            key: up to five letters and digits, unique on the master; made of the name by default.

        Raises:
            MasterError: the name or the key is taken or not valid.
        """
        given = {
            field: value for field, value in (("description", description), ("key", key)) if value is not None
        }
        return Project(self._session.api.projects.create(self.id, name, **given), self._session)

    def get_project(self, project_name: str) -> Project:
        """Return the project with a name.

        Raises:
            DetError: there is none.
        """
        for project in self.list_projects():
            if project.name == project_name:
                return project
        raise DetError(f"The workspace {self.name!r} has no project {project_name!r}.")

    def list_projects(self) -> list[Project]:
        """Return all projects of the workspace.

        Raises:
            MasterError: the master rejects the call.
        """
        return [Project(shape, self._session) for shape in self._session.api.workspaces.projects(self.id)]

    def delete_project(self, name: str) -> None:
        """Delete a project with its experiments, in the background.

        Raises:
            DetError: there is no such project.
            MasterError: experiments of it have not ended, or it belongs to somebody else.
        """
        self._session.api.projects.delete(self.get_project(name).id)

    def __repr__(self) -> str:
        return f"Workspace(id={self.id}, name={self.name!r})"


class User:
    """A user of the master, as it was when it was fetched.

    Attributes:
        user_id: its number.
        username: its name.
        display_name: the name that people read.
        admin: whether it is an administrator.
        active: whether it may log in.
    """

    def __init__(self, shape: Mapping[str, Any], session: Session) -> None:
        self._session = session
        self._read(shape)

    def _read(self, shape: Mapping[str, Any]) -> None:
        self.user_id = int(shape["id"])
        self.username = str(shape["username"])
        self.display_name = str(shape.get("displayName") or "")
        self.admin = bool(shape.get("admin"))
        self.active = bool(shape.get("active"))

    def reload(self) -> None:
        """Fetch the user again.

        Raises:
            MasterError: the master rejects the call.
        """
        self._read(self._session.api.accounts.user(self.username))

    def rename(self, new_username: str) -> None:
        """Rename the user; for administrators.

        Raises:
            MasterError: the name is taken, or the caller is no administrator.
        """
        self._change(username=new_username)

    def change_display_name(self, display_name: str) -> None:
        """Change the name that people read.

        Raises:
            MasterError: the caller is neither the user nor an administrator.
        """
        self._change(displayName=display_name)

    def change_password(self, new_password: str) -> None:
        """Change the password, which ends the other logins of the user.

        Raises:
            MasterError: the password is too weak, or the caller is neither the user nor an administrator.
        """
        self._change(password=new_password, isHashed=False)

    def activate(self) -> None:
        """Let the user log in again; for administrators.

        Raises:
            MasterError: the caller is no administrator.
        """
        self._change(active=True)

    def deactivate(self) -> None:
        """End the logins and tokens of the user, who cannot log in any more; for administrators.

        Raises:
            MasterError: the caller is no administrator.
        """
        self._change(active=False)

    def _change(self, **changes: Any) -> None:
        self._read(self._session.api.accounts.change_user(self.user_id, **changes))

    def __repr__(self) -> str:
        return f"User(user_id={self.user_id}, username={self.username!r})"


class Team:
    """What a connection with a master offers of workspaces and users."""

    _session: Session

    def create_workspace(self, name: str) -> Workspace:
        """Create a workspace.

        Args:
            name: unique on the master.

        Raises:
            MasterError: the name is taken or not valid.

        Example:
            ```pycon
            >>> workspace = Determined().create_workspace("vision")
            >>> workspace.create_project("digits", "Handwriting").description
            'Handwriting'
            ```
        """
        return Workspace(self._session.api.workspaces.create(name), self._session)

    def get_workspace(self, name: str) -> Workspace:
        """Return the workspace with a name.

        Raises:
            DetError: there is none.
        """
        found = self._session.api.workspaces.named(name)
        if found is None:
            raise DetError(f"There is no workspace {name!r}.")
        return Workspace(found, self._session)

    def list_workspaces(self) -> list[Workspace]:
        """Return all workspaces.

        Raises:
            MasterError: the master rejects the call.
        """
        return [Workspace(shape, self._session) for shape in self._session.api.workspaces.all()]

    def delete_workspace(self, name: str) -> None:
        """Delete a workspace with its projects and their experiments, in the background.

        Raises:
            DetError: there is no such workspace.
            MasterError: experiments of it have not ended, or it belongs to somebody else.
        """
        self._session.api.workspaces.delete(self.get_workspace(name).id)

    def create_user(self, username: str, admin: bool, password: str | None = None) -> User:
        """Create an active user; for administrators.

        Args:
            username: unique on the master, whatever the case of its letters.
            admin: whether it is an administrator.
            password: its password.

        Raises:
            MasterError: the name is taken, the password is too weak, or the caller is no administrator.
        """
        self._session.api.accounts.create_user(username, password or "", is_admin=admin)
        return self.get_user_by_name(username)

    def get_user_by_name(self, user_name: str) -> User:
        """Return the user with a name.

        Raises:
            MasterError: there is none.
        """
        return User(self._session.api.accounts.user(user_name), self._session)

    def get_user_by_id(self, user_id: int) -> User:
        """Return the user with a number.

        Raises:
            DetError: there is none.
        """
        for user in self.list_users():
            if user.user_id == user_id:
                return user
        raise DetError(f"There is no user {user_id}.")

    def list_users(self, active: bool | None = None) -> list[User]:
        """Return the users.

        Args:
            active: only those who may log in, or only those who may not; None for all.

        Raises:
            MasterError: the master rejects the call.
        """
        users = [User(shape, self._session) for shape in self._session.api.accounts.users()]
        return [user for user in users if active in (None, user.active)]

    def whoami(self) -> User:
        """Return the user of this connection.

        Raises:
            MasterError: the master rejects the call.
        """
        return User(self._session.api.accounts.me(), self._session)

    def get_session_username(self) -> str:
        """Return the name of the user of this connection.

        Raises:
            MasterError: the master rejects the call.
        """
        return self.whoami().username
