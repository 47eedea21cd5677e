"""Logs: stored for shippers, read at once or followed to the end of the task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Query
from pydantic import AliasChoices, Field
from starlette.responses import Response

from det_keras.master.database.lookups import find_trial
from det_keras.master.database.models import AllocationRow, TaskRow
from det_keras.master.database.notifier import task_topic
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.errors import InvalidArgumentError, NotFoundError, UnavailableError
from det_keras.master.server.bodies import MOST_LOG_BYTES
from det_keras.master.server.calls import FollowDep, MasterDep, PageDep, body, choices
from det_keras.master.server.responses import error_line, reply, result_line, stream_reply
from det_keras.master.tasks import logs as task_logs
from det_keras.master.tasks.logs import LogFields, LogFilter
from det_keras.master.wire import Message, from_timestamp
from det_keras.protocol.values import now

router = APIRouter()

_LEVELS = ("UNSPECIFIED", "TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# Number of lines per query.
_CHUNK = 2000
# Waiting requests are woken by events; this is the period without events.
_LOOK_AGAIN_S = 15.0
_FIELDS_PAUSE_S = 0.5


class ShippedLine(Message):
    """One line from a shipper."""

    id: int | None = None
    task_id: str
    allocation_id: str | None = None
    timestamp: str | None = None
    # A long line is divided, not refused: that of the body is the limit.
    log: str = Field(max_length=MOST_LOG_BYTES)
    level: str = ""
    stdtype: str | None = None
    source: str | None = None
    container_id: str | None = None
    agent_id: str | None = None
    # Named `rank` in the lines of unmanaged scripts.
    rank_id: int | None = Field(None, validation_alias=AliasChoices("rankId", "rank_id", "rank"))


class ShippedBody(Message):
    """Lines of one task."""

    logs: list[ShippedLine] = Field(default_factory=list, max_length=500_000)


@dataclass(frozen=True)
class LogSource:
    """The tasks whose log is read."""

    task_ids: Sequence[str]
    trial_id: int | None


@dataclass(frozen=True)
class _Part:
    """Some lines of a log, encoded, and their number and the id of the last one."""

    lines: bytes
    count: int
    last_id: int | None


@router.post("/api/v1/task/logs")
def take_in(
    master: MasterDep, request: Annotated[ShippedBody, body(ShippedBody, most_bytes=MOST_LOG_BYTES)]
) -> Response:
    """Store log lines of a task."""
    task_ids = {line.task_id for line in request.logs}
    if len(task_ids) != 1:
        raise InvalidArgumentError("There must be at least one line, and all lines must belong to one task.")
    if any(line.id is not None for line in request.logs):
        raise InvalidArgumentError("A line must not have an `id`: the master numbers them.")
    _store(master, request.logs)
    return reply()


@router.post("/task-logs")
def take_in_plain(
    master: MasterDep,
    request: Annotated[ShippedBody, body(ShippedBody, most_bytes=MOST_LOG_BYTES, bare_list="logs")],
) -> Response:
    """Store log lines of an unmanaged trial: a bare list of them."""
    _store(master, request.logs)
    return reply()


def _store(master: EmbeddedMaster, lines: Sequence[ShippedLine]) -> None:
    of_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        of_task[line.task_id].append(_row(line))
    with master.store.writing() as tx:
        for task_id, rows in of_task.items():
            if tx.get(TaskRow, task_id) is None:
                raise NotFoundError(f"task '{task_id}' not found")
            # A client repeats a call whose answer was lost.
            if not task_logs.are_last(tx, task_id, rows):
                task_logs.store_rows(tx, task_id, rows)


async def _filter(
    levels: Annotated[
        list[str], Query(description="Such as `LOG_LEVEL_INFO`; lines without a level count as INFO.")
    ] = [],  # noqa: B006 - FastAPI copies it
    allocation_ids: Annotated[list[str], Query(alias="allocationIds")] = [],  # noqa: B006
    agent_ids: Annotated[list[str], Query(alias="agentIds")] = [],  # noqa: B006
    container_ids: Annotated[list[str], Query(alias="containerIds")] = [],  # noqa: B006
    rank_ids: Annotated[list[int], Query(alias="rankIds", description="-1 for lines without a rank.")] = [],  # noqa: B006
    sources: Annotated[list[str], Query()] = [],  # noqa: B006
    stdtypes: Annotated[list[str], Query()] = [],  # noqa: B006
    before: Annotated[str, Query(alias="timestampBefore", description="Only earlier lines; RFC 3339.")] = "",
    after: Annotated[str, Query(alias="timestampAfter", description="Only later lines; RFC 3339.")] = "",
    after_id: Annotated[
        int | None, Query(alias="afterId", description="Only lines stored after the line with this `id`.")
    ] = None,
    before_id: Annotated[
        int | None, Query(alias="beforeId", description="Only lines stored before the line with this `id`.")
    ] = None,
    search: Annotated[str, Query(alias="searchText", description="Text that lines must contain.")] = "",
    is_regex: Annotated[
        bool, Query(alias="enableRegex", description="Whether `searchText` is a regular expression.")
    ] = False,
) -> LogFilter:
    wanted = LogFilter(
        levels=choices(levels, "LOG_LEVEL_", _LEVELS),
        allocation_ids=allocation_ids,
        agent_ids=agent_ids,
        container_ids=container_ids,
        rank_ids=rank_ids,
        sources=sources,
        stdtypes=stdtypes,
        after_id=after_id,
        before_id=before_id,
        before=from_timestamp(before) if before else None,
        after=from_timestamp(after) if after else None,
        search=search,
        is_regex=is_regex,
    )
    wanted.check()
    return wanted


FilterDep = Annotated[LogFilter, Depends(_filter)]


def log_of_trial(master: EmbeddedMaster, trial_id: int) -> LogSource:
    """Return the tasks of a trial.

    Raises:
        NotFoundError: there is no such trial.
    """
    with master.store.reading() as session:
        return LogSource(find_trial(session, trial_id).task_ids, trial_id)


def log_of_task(master: EmbeddedMaster, task_id: str) -> LogSource:
    """Return a task alone.

    Raises:
        NotFoundError: there is no such task.
    """
    with master.store.reading() as session:
        if session.get(TaskRow, task_id) is None:
            raise NotFoundError(f"task '{task_id}' not found")
    return LogSource([task_id], None)


@router.get("/api/v1/trials/{trial_id}/logs")
def trial_logs(
    master: MasterDep, trial_id: int, page: PageDep, wanted: FilterDep, follow: FollowDep
) -> Response:
    """Stream the log of a trial; with `follow` also lines that are still to come, until its end."""
    source = log_of_trial(master, trial_id)
    return _stream(master, source, page.limit, bool(page.is_descending), wanted, follow=follow)


@router.get("/api/v1/tasks/{task_id}/logs")
def logs_of_task(
    master: MasterDep, task_id: str, page: PageDep, wanted: FilterDep, follow: FollowDep
) -> Response:
    """Stream the log of any task; with `follow` also lines that are still to come, until its end."""
    if follow and page.limit > 0:
        raise InvalidArgumentError("`limit` and `follow` exclude each other.")
    source = log_of_task(master, task_id)
    return _stream(master, source, page.limit, bool(page.is_descending), wanted, follow=follow)


@router.get("/api/v1/trials/{trial_id}/logs/fields")
def trial_fields(master: MasterDep, trial_id: int, follow: FollowDep) -> Response:
    """Stream the values by which the log of a trial can be filtered; with `follow` again when there are others."""
    return stream_reply(_fields(master, log_of_trial(master, trial_id), follow=follow))


@router.get("/api/v1/tasks/{task_id}/logs/fields")
def task_fields(master: MasterDep, task_id: str, follow: FollowDep) -> Response:
    """Stream the values by which the log of a task can be filtered; with `follow` again when there are others."""
    return stream_reply(_fields(master, log_of_task(master, task_id), follow=follow))


async def _fields(master: EmbeddedMaster, source: LogSource, *, follow: bool) -> AsyncIterator[bytes]:
    known, sent = LogFields(), None
    with master.notifier.waiting(task_topic(source.task_ids[-1])) as news:
        while True:
            # As in `_followed`.
            is_over = await anyio.to_thread.run_sync(_is_over, master, source)
            known = await anyio.to_thread.run_sync(_read_fields, master, source, known)
            if known != sent:
                yield result_line(_fields_shape(known, source))
                sent = known
            if is_over or not follow:
                return
            if master.notifier.is_closing:
                yield error_line(UnavailableError("The master is stopping."))
                return
            await news.wait(_LOOK_AGAIN_S)
            # A task that prints all the time.
            await anyio.sleep(_FIELDS_PAUSE_S)


def _read_fields(master: EmbeddedMaster, source: LogSource, known: LogFields) -> LogFields:
    with master.store.reading() as session:
        return task_logs.read_fields(session, source.task_ids, known)


def _fields_shape(found: LogFields, source: LogSource) -> dict[str, Any]:
    shape = {
        "agentIds": sorted(found.agent_ids),
        "containerIds": sorted(found.container_ids),
        "rankIds": sorted(found.rank_ids),
        "sources": sorted(found.sources),
        "stdtypes": sorted(found.stdtypes),
    }
    return shape if source.trial_id is not None else {**shape, "allocationIds": sorted(found.allocation_ids)}


def _stream(
    master: EmbeddedMaster,
    source: LogSource,
    limit: int,
    descending: bool,
    wanted: LogFilter,
    *,
    follow: bool,
) -> Response:
    limit = max(0, limit)
    if follow and not limit and not descending:
        return stream_reply(_followed(master, source, wanted))
    return stream_reply(_present(master, source, wanted, limit, descending=descending))


async def _present(
    master: EmbeddedMaster, source: LogSource, wanted: LogFilter, limit: int, *, descending: bool
) -> AsyncIterator[bytes]:
    """Yield the stored lines."""
    last_id, left = None, limit
    while True:
        count = min(left, _CHUNK) if limit else _CHUNK
        part = await anyio.to_thread.run_sync(_read, master, source, wanted, last_id, count, descending)
        if part.count:
            yield part.lines
            last_id = part.last_id
        left -= part.count
        if part.count < count or (limit and left <= 0):
            return


async def _followed(master: EmbeddedMaster, source: LogSource, wanted: LogFilter) -> AsyncIterator[bytes]:
    """Yield the stored lines and all later lines, until the task has ended and all of its lines are sent."""
    last_id = None
    with master.notifier.waiting(task_topic(source.task_ids[-1])) as news:
        while True:
            # The state is read before the lines: the last line is stored before the end, so if the task has ended, this
            # query finds all of its lines. A line that is stored after the query sets the waiter's event.
            is_over = await anyio.to_thread.run_sync(_is_over, master, source)
            part = await anyio.to_thread.run_sync(_read, master, source, wanted, last_id, _CHUNK, False)
            if part.count:
                yield part.lines
                last_id = part.last_id
                continue
            if is_over:
                return
            if master.notifier.is_closing:
                yield error_line(UnavailableError("The master is stopping."))
                return
            await news.wait(_LOOK_AGAIN_S)


def _read(
    master: EmbeddedMaster,
    source: LogSource,
    wanted: LogFilter,
    last_id: int | None,
    count: int,
    descending: bool,
) -> _Part:
    with master.store.reading() as session:
        rows = task_logs.read_lines(
            session, source.task_ids, wanted, last_id=last_id, limit=count, descending=descending
        )
    # Here and not on the event loop: it takes a while.
    return _Part(task_logs.encode_lines(rows, source.trial_id), len(rows), rows[-1].id if rows else last_id)


def _is_over(master: EmbeddedMaster, source: LogSource) -> bool:
    with master.store.reading() as session:
        task = session.get(TaskRow, source.task_ids[-1])
        if task is None:
            return True
        is_live = session.query(AllocationRow.id).filter(
            AllocationRow.task_id == task.id, AllocationRow.end_time.is_(None)
        )
        return task.end_time is not None and is_live.first() is None


def _row(line: ShippedLine) -> dict[str, Any]:
    level = line.level.removeprefix("LOG_LEVEL_")
    return {
        "task_id": line.task_id,
        "allocation_id": line.allocation_id,
        "time": now() if line.timestamp is None else from_timestamp(line.timestamp),
        "level": level if level in _LEVELS[1:] else None,
        "stdtype": line.stdtype,
        "source": line.source,
        "agent_id": line.agent_id,
        "container_id": line.container_id,
        "rank": line.rank_id,
        "text": line.log,
    }
