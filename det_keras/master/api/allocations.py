"""Calls of allocations: the request to stop, readiness, rendezvous."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Annotated, NamedTuple

import anyio.to_thread
from fastapi import APIRouter, Depends, Query
from pydantic import Field
from starlette.responses import Response

from det_keras.master.database.lookups import config_of, find_experiment
from det_keras.master.database.models import AllocationRow, TrialRow
from det_keras.master.database.notifier import allocation_topic, task_topic
from det_keras.master.database.store import Transaction
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError, NotFoundError, PermissionDeniedError
from det_keras.master.resources import LogEntry, Share
from det_keras.master.serializers.tasks import allocation_shape
from det_keras.master.server.bodies import MOST_LOG_BYTES
from det_keras.master.server.calls import CallerDep, MasterDep, body, open_stream
from det_keras.master.server.responses import reply
from det_keras.master.tasks import allocations
from det_keras.master.tasks.logs import store_entries
from det_keras.master.wire import Message
from det_keras.protocol.values import now

router = APIRouter(prefix="/api/v1/allocations/{allocation_id}")

_LONGEST_POLL_S = 600.0


class ProxyBody(Message):
    """The address of a service."""

    proxy_address: str = Field("", max_length=255)


class OutputLine(Message):
    """A line that a task on another machine printed."""

    time: float = 0.0
    # A long line is divided, not refused: that of the body is the limit.
    text: str = Field(default="", max_length=MOST_LOG_BYTES)
    stdtype: str = "stdout"
    level: str | None = None
    derived_level: str | None = None
    rank: int | None = None


class OutputBody(Message):
    """A part of the log of one of an attempt's machines."""

    node: int = Field(0, ge=0)
    offset: int = Field(0, ge=0)
    next_offset: int = Field(0, ge=0)
    lines: list[OutputLine] = Field(default_factory=list, max_length=500_000)


@router.get("")
def describe(master: MasterDep, allocation_id: str) -> Response:
    """Describe an allocation."""
    with master.store.reading() as session:
        return reply({"allocation": allocation_shape(allocations.find_allocation(session, allocation_id))})


@router.get("/signals/preemption", dependencies=[Depends(open_stream)])
async def preemption(
    master: MasterDep,
    allocation_id: str,
    timeout_seconds: Annotated[float, Query(alias="timeoutSeconds", ge=0)] = 60.0,
) -> Response:
    """Return as soon as the allocation is asked to stop, or after the timeout."""
    deadline = time.monotonic() + min(timeout_seconds, _LONGEST_POLL_S)
    with master.notifier.waiting(allocation_topic(allocation_id)) as news:
        look = await anyio.to_thread.run_sync(_look, master, allocation_id)
        # Registered before the first look, so a request to stop after the look sets the event. A thread is used for
        # the query only, not for the wait.
        # An allocation that had ended before this call is not preempted any more. If it ends while this call waits,
        # after a request to stop, the call still returns that request.
        was_over = look.is_over
        while True:
            is_preempted = look.is_preempted and not was_over
            left_s = deadline - time.monotonic()
            if is_preempted or left_s <= 0 or master.notifier.is_closing:
                return reply({"preempt": is_preempted})
            await news.wait(left_s)
            look = await anyio.to_thread.run_sync(_look, master, allocation_id)


@router.post("/signals/ack_preemption")
def acknowledge(master: MasterDep, allocation_id: str) -> Response:
    """Record that the process stops because of a preemption, and resumes later."""
    with master.store.writing() as tx:
        allocations.find_allocation(tx, allocation_id).is_acknowledged = True
    return reply()


@router.post("/signals/pending_preemption")
def pending(master: MasterDep, allocation_id: str) -> Response:
    """Record that the process's launcher was asked to stop."""
    with master.store.writing() as tx:
        row = allocations.find_allocation(tx, allocation_id)
        allocations.preempt(tx, row, _timeout(tx, row))
    return reply()


@router.get("/resources/{resources_id}/rendezvous")
def rendezvous(master: MasterDep, allocation_id: str, resources_id: str) -> Response:
    """Return the nodes of an allocation; the first calls."""
    with master.store.reading() as session:
        row = allocations.find_allocation(session, allocation_id)
        if row.resources_id != resources_id:
            raise InvalidArgumentError(f"Allocation {allocation_id!r} has no resources {resources_id!r}.")
        shares = allocations.shares_of(row) or [Share("", ())]
        info = {
            "addresses": [share.address for share in shares],
            "rank": 0,
            "slots": [len(share.slot_ids) for share in shares],
        }
        return reply({"rendezvousInfo": info})


@router.post("/ready")
def ready(master: MasterDep, allocation_id: str) -> Response:
    """Record that the allocation's service is ready."""
    with master.store.writing() as tx:
        row = allocations.find_allocation(tx, allocation_id)
        row.is_ready = True
        tx.notify(task_topic(row.task_id))
    return reply()


@router.post("/output")
def output(
    master: MasterDep,
    caller: CallerDep,
    allocation_id: str,
    request: Annotated[OutputBody, body(OutputBody, most_bytes=MOST_LOG_BYTES)],
) -> Response:
    """Store a part of the attempt's log, unless it is stored already; return the position of the next part."""
    with master.store.writing() as tx:
        row = allocations.find_allocation(tx, allocation_id)
        if not caller.is_task or caller.allocation_id != allocation_id:
            raise PermissionDeniedError("Only the attempt itself may send its log.")
        if row.end_time is not None:
            raise NotFoundError(f"Allocation {allocation_id!r} has ended.")
        if request.node >= len(row.shares):
            raise InvalidArgumentError(f"Allocation {allocation_id!r} has no node {request.node}.")
        key = str(request.node)
        known = row.log_offsets.get(key, 0)
        if request.offset == known:
            # Lines and position are stored in one transaction: a part that is sent again is recognised.
            known = request.next_offset
            row.log_offsets = {**row.log_offsets, key: known}
            store_entries(tx, row, [_entry(line) for line in request.lines], request.node)
    return reply({"offset": known})


@router.post("/proxy_address")
def proxy_address(
    master: MasterDep, allocation_id: str, request: Annotated[ProxyBody, body(ProxyBody)]
) -> Response:
    """Record the address of the allocation's service."""
    with master.store.writing() as tx:
        allocations.find_allocation(tx, allocation_id).proxy_address = request.proxy_address
    return reply()


@router.post("/waiting")
@router.post("/acceleratorData")
@router.post("/notify_container_running")
@router.post("/resources/{resources_id}/daemon")
def noted(master: MasterDep, allocation_id: str) -> Response:
    """Accept a message that has an effect on several machines only."""
    with master.store.reading() as session:
        allocations.find_allocation(session, allocation_id)
    return reply()


def _entry(line: OutputLine) -> LogEntry:
    try:
        time_ = datetime.fromtimestamp(line.time, timezone.utc)
    except (ValueError, OverflowError, OSError):
        time_ = now()
    return LogEntry(
        time_,
        line.text,
        line.stdtype[:16],
        line.level and line.level[:16],
        line.rank,
        derived_level=line.derived_level and line.derived_level[:16],
    )


class _Look(NamedTuple):
    """The state of an allocation; an unknown allocation counts as ended, since clients expect no error."""

    is_preempted: bool
    is_over: bool


def _look(master: EmbeddedMaster, allocation_id: str) -> _Look:
    with master.store.reading() as session:
        row = session.get(AllocationRow, allocation_id)
        return _Look(False, True) if row is None else _Look(row.is_preempted, row.end_time is not None)


def _timeout(tx: Transaction, row: AllocationRow) -> int | None:
    trial = tx.query(TrialRow).filter(TrialRow.task_id == row.task_id).one_or_none()
    return None if trial is None else config_of(find_experiment(tx, trial.experiment_id)).preemption_timeout
