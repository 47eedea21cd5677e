"""Templates: parts of configs under a name, below what a user writes and above all defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from det_keras.config import FindTemplate, JobConfig, load_experiment_config, load_job_config
from det_keras.errors import ConfigError
from det_keras.master.accounts.auth import Caller
from det_keras.master.database.models import TemplateRow
from det_keras.master.database.store import Store, Transaction
from det_keras.master.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError
from det_keras.master.teams.placing import open_workspace
from det_keras.master.teams.workspaces import refuse_others

_LONGEST_NAME = 255


def find_template(session: Session, name: str) -> TemplateRow:
    """Return the template with a name.

    Raises:
        NotFoundError: it does not exist.
    """
    row = session.get(TemplateRow, name)
    if row is None:
        raise NotFoundError(f"template '{name}' not found")
    return row


def finder(store: Store) -> FindTemplate:
    """Return the function that finds the config of a template by its name, or raises NotFoundError."""

    def find(name: str) -> Mapping[str, Any]:
        with store.reading() as session:
            return find_template(session, name).config

    return find


def create(
    tx: Transaction, caller: Caller, name: str, config: Mapping[str, Any], workspace_id: int = 0
) -> TemplateRow:
    """Create a template.

    Args:
        tx: the transaction.
        caller: its owner.
        name: unique on the master.
        config: a part of the config of an experiment or of a job.
        workspace_id: number of its workspace; 0 for the first one.

    Raises:
        AlreadyExistsError: there is a template with the name.
        InvalidArgumentError: the name or the config is invalid.
        NotFoundError: the workspace does not exist or is archived.
    """
    if not name.strip() or len(name) > _LONGEST_NAME or "/" in name or not name.isprintable():
        raise InvalidArgumentError(
            f"The name of a template must have 1 to {_LONGEST_NAME} characters that are printed, and no `/`. "
            f"Received {name!r}."
        )
    if tx.get(TemplateRow, name) is not None:
        raise AlreadyExistsError(f"There is a template {name!r} already.")
    row = TemplateRow(
        name=name,
        owner_id=caller.user_id,
        workspace_id=open_workspace(tx, workspace_id),
        config=_checked(config),
    )
    tx.add(row)
    return row


def replace(tx: Transaction, caller: Caller, name: str, config: Mapping[str, Any]) -> TemplateRow:
    """Replace the config of a template.

    Raises:
        ApiError: it does not exist or belongs to somebody else, or the config is invalid.
    """
    row = _changeable(tx, caller, name, "change")
    row.config = _checked(config)
    return row


def rename(tx: Transaction, caller: Caller, name: str, new_name: str) -> TemplateRow:
    """Rename a template.

    Raises:
        ApiError: it does not exist or belongs to somebody else, or the new name is taken or invalid.
    """
    row = _changeable(tx, caller, name, "rename")
    if new_name == name:
        return row
    renamed = create(tx, caller, new_name, row.config, row.workspace_id)
    renamed.owner_id = row.owner_id
    tx.delete(row)
    return renamed


def delete(tx: Transaction, caller: Caller, name: str) -> None:
    """Delete a template; what was created with it stays as it is.

    Raises:
        ApiError: it does not exist or belongs to somebody else.
    """
    tx.delete(_changeable(tx, caller, name, "delete"))


def _changeable(tx: Transaction, caller: Caller, name: str, verb: str) -> TemplateRow:
    row = find_template(tx, name)
    refuse_others(tx, caller, {row.owner_id}, f"{verb} the template {name!r}")
    return row


def _is_of_jobs(config: Mapping[str, Any]) -> bool:
    """Return whether it is part of the config of a job, with no field that only experiments have."""
    try:
        load_job_config({"entrypoint": "x", **config})
    except ConfigError:
        return False
    return set(config) <= set(JobConfig.names())


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a config.

    Raises:
        InvalidArgumentError: it is part of no valid config; the message has the problems of that of an experiment.
    """
    if "template" in config:
        raise InvalidArgumentError("`template` cannot be used in a template.")
    try:
        load_experiment_config(config, alone=True)
    except ConfigError as error:
        if not _is_of_jobs(config):
            raise InvalidArgumentError(str(error)) from None
    return dict(config)
