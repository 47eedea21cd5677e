"""Webhooks: which exist, who may change them, and which events are queued for them.

An event is queued in the transaction of what it tells of, so that neither is ever without the other. It is sent by
`det_keras.master.services.webhook_sender`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete as delete_from
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from det_keras.config import LogPattern, LogPatternError, LogPatterns
from det_keras.master.accounts.auth import Caller
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import (
    DeliveryRow,
    ExperimentRow,
    ProjectRow,
    TaskRow,
    TrialRow,
    WebhookRow,
    WorkspaceRow,
)
from det_keras.master.database.notifier import DELIVERIES
from det_keras.master.database.store import Transaction
from det_keras.master.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    PermissionDeniedError,
)
from det_keras.master.teams import payloads
from det_keras.master.teams.payloads import CUSTOM, SLACK, STATE_CHANGE, TASK_LOG, Alert
from det_keras.master.teams.workspaces import find_workspace, refuse_others
from det_keras.protocol import states
from det_keras.protocol.values import now

#: Webhooks of a master, and triggers of each.
MOST_WEBHOOKS = 100
MOST_TRIGGERS = 10
#: Patterns of all webhooks: each line of a log is looked at.
MOST_PATTERNS = 100
#: Events of a webhook that wait; further ones are dropped, with a line in the log of the master.
MOST_WAITING = 10_000
#: Attempts to send an event; the waits between them grow from 2 seconds to an hour.
MOST_ATTEMPTS = 15
LONGEST_PATTERN = 1_000
#: Forms, and modes.
FORMS = ("DEFAULT", SLACK)
WORKSPACE, SPECIFIC = "WORKSPACE", "SPECIFIC"
#: States of deliveries.
WAITING, DELIVERED, FAILED = "WAITING", "DELIVERED", "FAILED"
#: The states of experiments that may be waited for.
STATES = (states.ACTIVE, states.PAUSED, states.COMPLETED, states.CANCELED, states.ERROR)

logger = logging.getLogger(__name__)

_LONGEST_NAME = 255
_CACHE = "webhooks"


@dataclass(frozen=True)
class Draft:
    """A webhook to create.

    Attributes:
        name: by which configs may name it; may be empty.
        url: of the receiver, checked.
        form: one of `FORMS`.
        mode: `WORKSPACE` for all experiments, `SPECIFIC` for those whose configs name it.
        workspace_id: number of the workspace; None for all.
        triggers: pairs of a kind of event and its condition.
    """

    name: str
    url: str
    form: str
    mode: str
    workspace_id: int | None
    triggers: Sequence[tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True)
class _Trigger:
    """A trigger as it is kept in memory."""

    webhook_id: int
    name: str
    form: str
    is_specific: bool
    workspace_id: int | None
    id: int
    kind: str
    state: str
    regex: str


@dataclass(frozen=True)
class _Triggers:
    """All triggers, and those on lines of logs with their patterns."""

    every: Sequence[_Trigger]
    on_lines: Sequence[_Trigger]
    patterns: LogPatterns


def find_webhook(session: Session, caller: Caller, webhook_id: int) -> WebhookRow:
    """Return a webhook that the caller may see.

    Raises:
        NotFoundError: it does not exist, or is of the workspace of somebody else.
    """
    row = session.get(WebhookRow, webhook_id)
    if row is None or not may_see(session, caller, row):
        raise NotFoundError(f"webhook '{webhook_id}' not found")
    return row


def changeable(session: Session, caller: Caller, webhook_id: int, verb: str) -> WebhookRow:
    """Return a webhook that the caller may change.

    Raises:
        NotFoundError: as for `find_webhook`.
        PermissionDeniedError: it belongs to somebody else.
    """
    row = find_webhook(session, caller, webhook_id)
    refuse_others(session, caller, _owners(session, row.workspace_id), f"{verb} the webhook {row.id}")
    return row


def listed(session: Session, caller: Caller) -> list[WebhookRow]:
    """Return the webhooks that the caller may see: those of all workspaces, and of the own ones."""
    rows = session.scalars(select(WebhookRow).order_by(WebhookRow.id)).all()
    return [row for row in rows if may_see(session, caller, row)]


def may_see(session: Session, caller: Caller, row: WebhookRow) -> bool:
    """Return whether the caller may see a webhook."""
    return row.workspace_id is None or may_change(session, caller, row)


def may_change(session: Session, caller: Caller, row: WebhookRow) -> bool:
    """Return whether the caller may change a webhook, and see its whole address."""
    try:
        refuse_others(session, caller, _owners(session, row.workspace_id), "change")
    except PermissionDeniedError:
        return False
    return True


def create(tx: Transaction, caller: Caller, draft: Draft) -> WebhookRow:
    """Create a webhook; for all workspaces only administrators may.

    Raises:
        PermissionDeniedError: the workspace belongs to somebody else.
        NotFoundError: the workspace does not exist.
        InvalidArgumentError: a field is invalid.
        FailedPreconditionError: there are too many.
    """
    if draft.workspace_id is not None:
        find_workspace(tx, draft.workspace_id)
    what = (
        "create webhooks for all workspaces"
        if draft.workspace_id is None
        else "create webhooks of a workspace"
    )
    refuse_others(tx, caller, _owners(tx, draft.workspace_id), what)
    if (tx.scalar(select(func.count()).select_from(WebhookRow)) or 0) >= MOST_WEBHOOKS:
        raise FailedPreconditionError(f"A master has at most {MOST_WEBHOOKS} webhooks. Delete one first.")
    if len(draft.name) > _LONGEST_NAME or not (draft.name.isprintable()):
        raise InvalidArgumentError(f"`name` may have {_LONGEST_NAME} characters that are printed.")
    if draft.mode == SPECIFIC and draft.workspace_id is None:
        raise InvalidArgumentError("A webhook of mode SPECIFIC needs a workspace.")
    row = WebhookRow(
        name=draft.name,
        url=draft.url,
        format=draft.form,
        mode=draft.mode,
        workspace_id=draft.workspace_id,
        owner_id=caller.user_id,
        triggers=_checked(draft.triggers),
    )
    is_line = sum(trigger["type"] == TASK_LOG for trigger in row.triggers)
    if is_line and len(_triggers(tx).on_lines) + is_line > MOST_PATTERNS:
        raise FailedPreconditionError(
            f"The webhooks of a master have at most {MOST_PATTERNS} patterns of lines."
        )
    tx.add(row)
    tx.flush()
    _forget(tx)
    return row


def change_url(tx: Transaction, caller: Caller, webhook_id: int, url: str) -> None:
    """Send to another address, which was checked, from now on.

    Raises:
        ApiError: as for `changeable`.
    """
    changeable(tx, caller, webhook_id, "change").url = url


def delete(tx: Transaction, caller: Caller, webhook_id: int) -> None:
    """Delete a webhook with what was not sent yet.

    Raises:
        ApiError: as for `changeable`.
    """
    row = changeable(tx, caller, webhook_id, "delete")
    _delete(tx, [row.id])


def delete_of_workspace(tx: Transaction, workspace_id: int) -> None:
    """Delete the webhooks of a workspace."""
    _delete(tx, tx.scalars(select(WebhookRow.id).where(WebhookRow.workspace_id == workspace_id)).all())


def queue_test(tx: Transaction, caller: Caller, webhook_id: int) -> DeliveryRow:
    """Queue a test, which is sent once.

    Raises:
        ApiError: as for `changeable`.
    """
    row = changeable(tx, caller, webhook_id, "test")
    event_id = str(uuid.uuid4())
    delivery = _delivery(row.id, event_id, f"test {event_id}", "test", payloads.of_test(row.format, event_id))
    delivery.most_attempts = 1
    tx.add(delivery)
    tx.flush()
    tx.notify(DELIVERIES)
    return delivery


def queue_state_changes(tx: Transaction) -> None:
    """Queue the events for the experiments whose states a transaction has changed, before its commit."""
    triggers = [trigger for trigger in _triggers(tx).every if trigger.kind == STATE_CHANGE]
    if not triggers:
        return
    for experiment_id in sorted(tx.queue_changes.activity):
        experiment = tx.get(ExperimentRow, experiment_id)
        if experiment is None:
            continue
        matching = [trigger for trigger in triggers if trigger.state == experiment.state]
        _queue_about(tx, _meant(tx, matching, experiment), experiment, experiment.state)


def queue_alert(
    tx: Transaction, experiment: ExperimentRow, alert: Alert, trial_id: int | None = None, event_id: str = ""
) -> int:
    """Queue an alert of a script; return for how many webhooks.

    Args:
        tx: the transaction.
        experiment: of the script.
        alert: what it says.
        trial_id: number of its trial; None for none.
        event_id: a repetition with the same one is no further event; empty for none.
    """
    triggers = [trigger for trigger in _triggers(tx).every if trigger.kind == CUSTOM]
    meant = _meant(tx, triggers, experiment)
    about = f"alert {alert.title}".strip()
    _queue_about(tx, meant, experiment, about, alert=alert, trial_id=trial_id, reason=event_id)
    return len(meant)


def queue_lines(tx: Transaction, task_id: str, node: str | None, texts: Sequence[str]) -> None:
    """Queue the events for the first of some lines of a task that match a trigger which has not matched before."""
    triggers = _triggers(tx)
    if not triggers.on_lines:
        return
    first: dict[int, str] = {}
    for text in texts:
        for number in triggers.patterns.in_line(text):
            first.setdefault(number, text)
    for number, line in sorted(first.items()):
        _queue_line(tx, triggers.on_lines[number], task_id, node or "", line)


def _queue_line(tx: Transaction, trigger: _Trigger, task_id: str, node: str, line: str) -> None:
    task = tx.get(TaskRow, task_id)
    if task is None:
        return
    trial = tx.scalar(select(TrialRow).where(TrialRow.task_id == task_id))
    experiment = None if trial is None else tx.get(ExperimentRow, trial.experiment_id)
    if experiment is not None:
        is_meant = bool(_meant(tx, [trigger], experiment))
    else:
        is_meant = not trigger.is_specific and trigger.workspace_id in (None, task.workspace_id)
    if not is_meant:
        return
    facts = {
        "task_id": task_id,
        "node_name": node,
        "kind": task.kind,
        "experiment_id": None if trial is None else trial.experiment_id,
        "trial_id": None if trial is None else trial.id,
    }
    about = f"log of {'task ' + task_id if trial is None else f'trial {trial.id}'}"
    _add(
        tx,
        trigger,
        f"log {task_id} {trigger.id}",
        about,
        lambda event_id: payloads.of_line(tx, trigger.form, event_id, line, trigger.regex, facts),
    )


def _queue_about(
    tx: Transaction,
    triggers: Iterable[_Trigger],
    experiment: ExperimentRow,
    what: str,
    *,
    alert: Alert | None = None,
    trial_id: int | None = None,
    reason: str = "",
) -> None:
    for trigger in triggers:

        def payload(event_id: str, form: str = trigger.form) -> str:
            return payloads.of_experiment(tx, form, event_id, experiment, alert, trial_id)

        about = f"experiment {experiment.id} {what}"
        _add(tx, trigger, f"event {reason or uuid.uuid4()} {trigger.id}", about, payload)


def _add(tx: Transaction, trigger: _Trigger, reason: str, about: str, payload: Callable[[str], str]) -> None:
    is_same = (DeliveryRow.webhook_id == trigger.webhook_id) & (DeliveryRow.reason == reason)
    if tx.scalar(select(DeliveryRow.id).where(is_same)) is not None:
        return
    is_waiting = (DeliveryRow.webhook_id == trigger.webhook_id) & (DeliveryRow.state == WAITING)
    if (tx.scalar(select(func.count()).select_from(DeliveryRow).where(is_waiting)) or 0) >= MOST_WAITING:
        logger.warning("Webhook %d is not told of %s: too much waits for it.", trigger.webhook_id, about)
        return
    event_id = str(uuid.uuid4())
    tx.add(_delivery(trigger.webhook_id, event_id, reason, about, payload(event_id)))
    tx.notify(DELIVERIES)


def _delivery(webhook_id: int, event_id: str, reason: str, about: str, payload: str) -> DeliveryRow:
    return DeliveryRow(
        webhook_id=webhook_id,
        event_id=event_id,
        reason=reason,
        about=about[:_LONGEST_NAME],
        payload=payload,
        state=WAITING,
        most_attempts=MOST_ATTEMPTS,
        made_at=now(),
        due_at=now(),
        answer="",
    )


def _meant(tx: Transaction, triggers: Sequence[_Trigger], experiment: ExperimentRow) -> Sequence[_Trigger]:
    """Return the triggers that an experiment fires by its place and its config."""
    if not triggers:
        return ()
    integrations = config_of(experiment).integrations
    named = None if integrations is None else integrations.webhooks
    if named is not None and named.exclude:
        return ()
    project = tx.get(ProjectRow, experiment.project_id)
    workspace_id = None if project is None else project.workspace_id
    return [
        trigger
        for trigger in triggers
        if trigger.workspace_id in (None, workspace_id)
        and (
            not trigger.is_specific
            or (
                named is not None
                and (trigger.webhook_id in named.webhook_id or trigger.name in named.webhook_name)
            )
        )
    ]


def _triggers(tx: Transaction) -> _Triggers:
    """Return the triggers of all webhooks, which are kept in memory: each line of a log asks for them."""
    found: _Triggers | None = tx.take(_CACHE)
    if found is None:
        rows = tx.scalars(select(WebhookRow).order_by(WebhookRow.id)).all()
        every = [_trigger(row, trigger) for row in rows for trigger in row.triggers]
        on_lines = [trigger for trigger in every if trigger.kind == TASK_LOG]
        found = _Triggers(every, on_lines, LogPatterns([trigger.regex for trigger in on_lines]))
        tx.kept[_CACHE] = found
    return found


def _forget(tx: Transaction) -> None:
    tx.take(_CACHE)
    tx.kept[_CACHE] = None


def _trigger(row: WebhookRow, trigger: Mapping[str, Any]) -> _Trigger:
    return _Trigger(
        webhook_id=row.id,
        name=row.name,
        form=row.format,
        is_specific=row.mode == SPECIFIC,
        workspace_id=row.workspace_id,
        id=trigger["id"],
        kind=trigger["type"],
        state=str(trigger["condition"].get("state", "")),
        regex=str(trigger["condition"].get("regex", "")),
    )


def _checked(triggers: Sequence[tuple[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    if not 1 <= len(triggers) <= MOST_TRIGGERS:
        raise InvalidArgumentError(f"at least one trigger required, and at most {MOST_TRIGGERS}")
    return [
        {"id": number, "type": kind, "condition": _checked_condition(kind, condition)}
        for number, (kind, condition) in enumerate(triggers, 1)
    ]


def _checked_condition(kind: str, condition: Mapping[str, Any]) -> dict[str, str]:
    if kind == STATE_CHANGE:
        state = condition.get("state")
        if state not in STATES:
            raise InvalidArgumentError(
                f"The condition `state` must be one of {', '.join(STATES)}, received {state!r}."
            )
        return {"state": state}
    if kind == TASK_LOG:
        regex = condition.get("regex")
        if not isinstance(regex, str) or not regex or len(regex) > LONGEST_PATTERN:
            raise InvalidArgumentError(
                f"The condition `regex` must be a regular expression of at most {LONGEST_PATTERN} characters."
            )
        try:
            LogPattern(regex)
        except LogPatternError as error:
            raise InvalidArgumentError(str(error)) from None
        return {"regex": regex}
    if kind == CUSTOM:
        return {}
    raise InvalidArgumentError(
        f"The trigger {kind} is not served: no release of Determined sends it. A script can compare its metrics and "
        f"call `context.alert`, which fires {CUSTOM}."
    )


def _owners(session: Session, workspace_id: int | None) -> set[int]:
    """Return who may change webhooks of a workspace besides administrators."""
    workspace = None if workspace_id is None else session.get(WorkspaceRow, workspace_id)
    return set() if workspace is None else {workspace.owner_id}


def _delete(tx: Transaction, webhook_ids: Sequence[int]) -> None:
    if not webhook_ids:
        return
    tx.execute(delete_from(DeliveryRow).where(DeliveryRow.webhook_id.in_(webhook_ids)))
    for number in webhook_ids:
        tx.delete(tx.get(WebhookRow, number))
    _forget(tx)
