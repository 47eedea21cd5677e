"""Webhooks: create, list, change, test and delete; alerts of scripts; what was sent."""

from __future__ import annotations

import time
from typing import Annotated, Any
from urllib.parse import urlsplit

import anyio.to_thread
from fastapi import APIRouter, Depends, Query
from pydantic import Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.responses import Response

from det_keras.master.accounts.auth import Caller
from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.database.models import DeliveryRow, WebhookRow
from det_keras.master.database.notifier import delivery_topic
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError, UnavailableError
from det_keras.master.server.calls import CallerDep, MasterDep, body, choice, open_stream
from det_keras.master.server.responses import reply
from det_keras.master.teams import outgoing, payloads, webhooks
from det_keras.master.wire import Message
from det_keras.protocol.values import timestamp

router = APIRouter(prefix="/api/v1/webhooks")

MASK = "********"
_KINDS = (
    payloads.STATE_CHANGE,
    payloads.TASK_LOG,
    payloads.CUSTOM,
    "METRIC_THRESHOLD_EXCEEDED",
    "UNSPECIFIED",
)
_LEVELS = ("UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_MOST_DELIVERIES = 1_000
_TEST_S = outgoing.LIMIT_S + 10.0
_ERROR_FROM = 400


class TriggerBody(Message):
    """When a webhook is told."""

    trigger_type: str = "TRIGGER_TYPE_UNSPECIFIED"
    condition: dict[str, Any] | None = None


class WebhookBody(Message):
    """A webhook."""

    name: str = ""
    url: str = ""
    webhook_type: str = "WEBHOOK_TYPE_UNSPECIFIED"
    mode: str = "WEBHOOK_MODE_WORKSPACE"
    workspace_id: int | None = None
    triggers: list[TriggerBody] | None = None


class UrlBody(Message):
    """The address of a webhook."""

    url: str = ""


class AlertData(Message):
    """What a script tells."""

    title: Annotated[str, Field(max_length=1_000)] = ""
    description: Annotated[str, Field(max_length=10_000)] = ""
    level: str | None = None


class AlertBody(Message):
    """An alert of a script."""

    experiment_id: int
    trial_id: int | None = None
    data: AlertData = Field(default_factory=AlertData)
    # Ours: a repetition with the same one is no further event.
    event_id: Annotated[str, Field(max_length=64)] = ""


@router.get("")
def listing(master: MasterDep, caller: CallerDep) -> Response:
    """List the webhooks of all workspaces, and of the caller's own ones; administrators see all."""
    with master.store.reading() as session:
        found = [_shape(session, caller, row) for row in webhooks.listed(session, caller)]
    return reply({"webhooks": found})


# Resolving the name of a receiver may take long.
@router.post("", dependencies=[Depends(open_stream)])
def create(
    master: MasterDep, caller: CallerDep, request: Annotated[WebhookBody, body(WebhookBody)]
) -> Response:
    """Create a webhook."""
    draft = webhooks.Draft(
        name=request.name,
        url=request.url,
        form=choice(request.webhook_type, "WEBHOOK_TYPE_", webhooks.FORMS),
        mode=choice(request.mode, "WEBHOOK_MODE_", (webhooks.WORKSPACE, webhooks.SPECIFIC)),
        workspace_id=request.workspace_id or None,
        triggers=[
            (choice(trigger.trigger_type, "TRIGGER_TYPE_", _KINDS), trigger.condition or {})
            for trigger in request.triggers or ()
        ],
    )
    master.webhook_sender.networks.check_url(draft.url)
    with master.store.writing() as tx:
        row = webhooks.create(tx, caller, draft)
        return reply({"webhook": _shape(tx, caller, row)})


@router.post("/custom")
def alert(master: MasterDep, request: Annotated[AlertBody, body(AlertBody)]) -> Response:
    """Tell webhooks of an alert of a script."""
    sent = request.data
    level = choice(sent.level or "INFO", "LOG_LEVEL_", _LEVELS)
    with master.store.writing() as tx:
        experiment = find_experiment(tx, request.experiment_id)
        trial_id = request.trial_id or None
        if trial_id is not None and find_trial(tx, trial_id).experiment_id != experiment.id:
            raise InvalidArgumentError(f"Trial {trial_id} is not one of experiment {experiment.id}.")
        told = payloads.Alert(sent.title, sent.description, f"LOG_LEVEL_{level}")
        webhooks.queue_alert(tx, experiment, told, trial_id, request.event_id)
    return reply()


@router.get("/{webhook_id}")
def detail(master: MasterDep, caller: CallerDep, webhook_id: int) -> Response:
    """Describe a webhook. Not in Determined's API."""
    with master.store.reading() as session:
        row = webhooks.find_webhook(session, caller, webhook_id)
        return reply({"webhook": _shape(session, caller, row)})


@router.patch("/{webhook_id}", dependencies=[Depends(open_stream)])
def change(
    master: MasterDep, caller: CallerDep, webhook_id: int, request: Annotated[UrlBody, body(UrlBody)]
) -> Response:
    """Change the address of a webhook."""
    with master.store.reading() as session:
        webhooks.changeable(session, caller, webhook_id, "change")
    master.webhook_sender.networks.check_url(request.url)
    with master.store.writing() as tx:
        webhooks.change_url(tx, caller, webhook_id, request.url)
    return reply()


@router.delete("/{webhook_id}")
def delete(master: MasterDep, caller: CallerDep, webhook_id: int) -> Response:
    """Delete a webhook, with what was not sent yet."""
    with master.store.writing() as tx:
        webhooks.delete(tx, caller, webhook_id)
    return reply()


@router.post("/{webhook_id}/test", dependencies=[Depends(open_stream)])
async def test(master: MasterDep, caller: CallerDep, webhook_id: int) -> Response:
    """Send a test event once, and return when it was accepted."""
    number = await anyio.to_thread.run_sync(_queue_test, master, caller, webhook_id)
    deadline = time.monotonic() + _TEST_S
    with master.notifier.waiting(delivery_topic(number)) as news:
        while True:
            row = await anyio.to_thread.run_sync(_look, master, number)
            if row is None or row.state != webhooks.WAITING:
                break
            left_s = deadline - time.monotonic()
            if left_s <= 0 or master.notifier.is_closing:
                raise UnavailableError("The test has not been sent yet. `det webhook deliveries` shows it.")
            await news.wait(left_s)
    if row is None or row.state == webhooks.FAILED:
        said = (
            "The webhook was deleted."
            if row is None
            else row.answer
            if row.status is None
            else str(row.status)
        )
        raise InvalidArgumentError(f"received error from webhook server: {said}")
    return reply({"completed": True})


@router.get("/{webhook_id}/deliveries")
def deliveries(
    master: MasterDep,
    caller: CallerDep,
    webhook_id: int,
    offset: Annotated[int, Query(ge=0, le=1 << 40, description="Deliveries to skip.")] = 0,
    limit: Annotated[int, Query(ge=0, le=_MOST_DELIVERIES, description="The most; 0 for none.")] = 100,
) -> Response:
    """List what was sent to a webhook and what waits, latest first, with the answers. Not in Determined's API."""
    of_webhook = DeliveryRow.webhook_id == webhook_id
    with master.store.reading() as session:
        # What it was told of is for those who may change it: it has names of experiments of all users.
        webhooks.changeable(session, caller, webhook_id, "look at what was sent to")
        total = session.scalar(select(func.count()).select_from(DeliveryRow).where(of_webhook)) or 0
        query = select(DeliveryRow).where(of_webhook).order_by(DeliveryRow.id.desc())
        rows = session.scalars(query.offset(offset).limit(limit)).all()
    part = {"offset": offset, "limit": limit, "total": total}
    return reply({"deliveries": [_delivery_shape(row) for row in rows], "pagination": part})


def _queue_test(master: EmbeddedMaster, caller: Caller, webhook_id: int) -> int:
    with master.store.writing() as tx:
        return webhooks.queue_test(tx, caller, webhook_id).id


def _look(master: EmbeddedMaster, delivery_id: int) -> DeliveryRow | None:
    with master.store.reading() as session:
        return session.get(DeliveryRow, delivery_id)


def _shape(session: Session, caller: Caller, row: WebhookRow) -> dict[str, Any]:
    may_change = webhooks.may_change(session, caller, row)
    parts = urlsplit(row.url)
    return {
        "id": row.id,
        "name": row.name,
        # Addresses of Slack and others are secrets: who has them can post.
        "url": row.url if may_change else f"{parts.scheme}://{parts.netloc}/{MASK}",
        "webhookType": f"WEBHOOK_TYPE_{row.format}",
        "mode": f"WEBHOOK_MODE_{row.mode}",
        "workspaceId": row.workspace_id,
        "triggers": [
            {
                "id": trigger["id"],
                "webhookId": row.id,
                "triggerType": f"TRIGGER_TYPE_{trigger['type']}",
                "condition": trigger["condition"],
            }
            for trigger in row.triggers
        ],
        "mayChange": may_change,
    }


def _delivery_shape(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "eventId": row.event_id,
        "about": row.about,
        "state": row.state,
        "attempts": row.attempts,
        "madeAt": timestamp(row.made_at),
        "dueAt": timestamp(row.due_at) if row.state == webhooks.WAITING else None,
        "endedAt": timestamp(row.ended_at),
        "status": row.status,
        "answer": row.answer,
    }
