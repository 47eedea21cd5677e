"""Versions of models: checkpoints under numbers, and under aliases that move from version to version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from det_keras.master.accounts.auth import Caller
from det_keras.master.checkpoints.records import COMPLETED, find_checkpoint
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import CheckpointRow, ModelRow, ModelVersionRow
from det_keras.master.database.store import Transaction
from det_keras.master.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from det_keras.master.registry.models import create, find_model, open_model, set_fields
from det_keras.master.teams.workspaces import refuse_others
from det_keras.protocol import states
from det_keras.protocol.registry import NEWEST, ModelReference, alias_problem
from det_keras.protocol.values import now


def find_version(session: Session, identifier: str, version: int) -> tuple[ModelRow, ModelVersionRow]:
    """Return a version with its model.

    Args:
        session: to read with.
        identifier: name or number of the model.
        version: its number.

    Raises:
        NotFoundError: the model or the version does not exist.
    """
    model = find_model(session, identifier)
    found = (ModelVersionRow.model_id == model.id) & (ModelVersionRow.version == version)
    row = session.scalar(select(ModelVersionRow).where(found))
    if row is None:
        raise NotFoundError(f"model '{model.name}' has no version {version}")
    return model, row


def versions_of(session: Session, model: ModelRow) -> list[ModelVersionRow]:
    """Return the versions of a model, oldest first."""
    of_model = select(ModelVersionRow).where(ModelVersionRow.model_id == model.id)
    return list(session.scalars(of_model.order_by(ModelVersionRow.version)))


def find_by_alias(session: Session, identifier: str, alias: str) -> tuple[ModelRow, ModelVersionRow]:
    """Return the version that has an alias, or the newest one for ``latest``.

    Raises:
        NotFoundError: the model does not exist, or no version of it has the alias.
    """
    model = find_model(session, identifier)
    if alias == NEWEST:
        versions = versions_of(session, model)
        if not versions:
            raise NotFoundError(f"model '{model.name}' has no version")
        return model, versions[-1]
    return find_version(session, identifier, _version_of(model, alias))


def pinned(session: Session, text: str) -> str:
    """Return the reference ``model:version`` to the version that a reference names at this time.

    Args:
        session: to read with.
        text: such as ``digits@champion``.

    Raises:
        InvalidArgumentError: it is malformed.
        NotFoundError: there is no such version.
    """
    try:
        reference = ModelReference.parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"`model`: {error}") from None
    if reference.version is None:
        model, row = find_by_alias(session, reference.name, reference.alias)
    else:
        model, row = find_version(session, reference.name, reference.version)
    return f"{model.name}:{row.version}"


def register(
    tx: Transaction,
    caller: Caller,
    identifier: str,
    checkpoint_uuid: str,
    fields: Mapping[str, Any],
    *,
    creates_model: bool = False,
) -> tuple[ModelRow, ModelVersionRow]:
    """Register a checkpoint as the next version of a model; any user may, and tasks for their owners.

    A checkpoint is one version of a model: registering it again returns that version as it is. A script that resumes,
    and a call whose answer was lost, therefore double nothing and move no alias back.

    Args:
        tx: the transaction.
        caller: who registers it.
        identifier: name or number of the model.
        checkpoint_uuid: the checkpoint, which garbage collection keeps from now on.
        fields: `name`, `comment`, `notes`, `labels`, `meta` and `aliases`, as far as they are given.
        creates_model: whether a model of this name is created if there is none.

    Raises:
        NotFoundError: the model or the checkpoint does not exist.
        FailedPreconditionError: the model is archived, or the checkpoint was deleted or is about to be.
        InvalidArgumentError: an alias or a field is invalid.
    """
    try:
        model = open_model(tx, identifier)
    except NotFoundError:
        if not creates_model:
            raise
        model = create(tx, caller, identifier, {})
    checkpoint = find_checkpoint(tx, checkpoint_uuid)
    known = (ModelVersionRow.model_id == model.id) & (ModelVersionRow.checkpoint_uuid == checkpoint.uuid)
    row = tx.scalar(select(ModelVersionRow).where(known))
    if row is not None:
        return model, row
    _refuse_incomplete(tx, checkpoint)
    time = now()
    model.last_version += 1
    row = ModelVersionRow(
        model_id=model.id,
        version=model.last_version,
        checkpoint_uuid=checkpoint.uuid,
        user_id=caller.user_id,
        creation_time=time,
    )
    _describe(row, fields)
    tx.add(row)
    for alias in fields.get("aliases") or ():
        _point(model, row.version, alias)
    model.last_updated_time = time
    tx.flush()
    return model, row


def change(
    tx: Transaction, identifier: str, version: int, changes: Mapping[str, Any]
) -> tuple[ModelRow, ModelVersionRow]:
    """Change a version; any user may.

    Args:
        tx: the transaction.
        identifier: name or number of the model.
        version: number of the version.
        changes: `name`, `comment`, `notes`, `labels` and `meta`; those that are absent or None stay.

    Raises:
        ApiError: the model or the version does not exist, the model is archived, or a value is invalid.
    """
    open_model(tx, identifier)
    model, row = find_version(tx, identifier, version)
    _describe(row, changes)
    model.last_updated_time = row.last_updated_time
    return model, row


def set_alias(tx: Transaction, identifier: str, alias: str, version: int) -> tuple[ModelRow, ModelVersionRow]:
    """Give a version an alias, which its other versions lose; any user may.

    Raises:
        ApiError: the model or the version does not exist, the model is archived, or the alias is invalid.
    """
    open_model(tx, identifier)
    model, row = find_version(tx, identifier, version)
    _point(model, row.version, alias)
    model.last_updated_time = now()
    return model, row


def remove_alias(tx: Transaction, identifier: str, alias: str) -> None:
    """Remove an alias from the version that has it.

    Raises:
        ApiError: the model does not exist or is archived, or no version has the alias.
    """
    model = open_model(tx, identifier)
    if alias == NEWEST:
        raise InvalidArgumentError(alias_problem(alias))
    _version_of(model, alias)
    model.aliases = {name: number for name, number in model.aliases.items() if name != alias}
    model.last_updated_time = now()


def delete(tx: Transaction, caller: Caller, identifier: str, version: int) -> None:
    """Delete a version; its checkpoint stays, and its number is not used again.

    Raises:
        ApiError: the model or the version does not exist, the model is archived, or the version belongs to others.
    """
    open_model(tx, identifier)
    model, row = find_version(tx, identifier, version)
    owners = {row.user_id, model.owner_id}
    refuse_others(tx, caller, owners, f"delete version {version} of the model {model.name!r}")
    model.aliases = {name: number for name, number in model.aliases.items() if number != version}
    tx.delete(row)
    model.last_updated_time = now()


def refuse_registered(session: Session, uuids: Sequence[str] | Select[str], what: str) -> None:
    """Refuse to delete what versions of models need.

    Args:
        session: to read with.
        uuids: the checkpoints, or the query that finds them.
        what: what is refused, such as ``Experiment 3 cannot be deleted``.

    Raises:
        FailedPreconditionError: a checkpoint is a version of a model.
    """
    row = session.execute(
        select(ModelRow.name, ModelVersionRow.version, ModelVersionRow.checkpoint_uuid)
        .join(ModelVersionRow, ModelVersionRow.model_id == ModelRow.id)
        .where(ModelVersionRow.checkpoint_uuid.in_(uuids))
        .order_by(ModelRow.id, ModelVersionRow.version)
    ).first()
    if row is not None:
        name, version, uuid = row
        raise FailedPreconditionError(
            f"{what}: checkpoint {uuid} is version {version} of the model {name!r} in the registry. Delete the "
            "version first."
        )


def _refuse_incomplete(session: Session, checkpoint: CheckpointRow) -> None:
    """Refuse a checkpoint whose files are not all there, or will not be."""
    experiment = find_experiment(session, find_trial(session, checkpoint.trial_id).experiment_id)
    if checkpoint.state != COMPLETED or checkpoint.pending_deletion or experiment.state == states.DELETING:
        state = checkpoint.state if checkpoint.state != COMPLETED else "about to be deleted"
        raise FailedPreconditionError(
            f"Checkpoint {checkpoint.uuid} is {state}; a version of a model needs one that is {COMPLETED}."
        )


def _describe(row: ModelVersionRow, fields: Mapping[str, Any]) -> None:
    if fields.get("name") is not None:
        row.name = fields["name"]
    set_fields(row, fields)
    row.last_updated_time = now()


def _version_of(model: ModelRow, alias: str) -> int:
    """Return the number of the version that has an alias.

    Raises:
        NotFoundError: none has it.
    """
    if alias not in model.aliases:
        known = f", only {', '.join(sorted(model.aliases))}" if model.aliases else ""
        raise NotFoundError(f"model '{model.name}' has no alias '{alias}'{known}")
    return model.aliases[alias]


def _point(model: ModelRow, version: int, alias: str) -> None:
    problem = alias_problem(alias)
    if problem:
        raise InvalidArgumentError(problem)
    model.aliases = dict(sorted({**model.aliases, alias: version}.items()))
