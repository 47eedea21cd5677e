"""The log of a trial or a job, for its page: how many lines there are, and the whole of it as a file."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio.to_thread
from fastapi import APIRouter, Depends
from starlette.responses import Response

from det_keras.master.api.logs import FilterDep, LogSource, log_of_task, log_of_trial
from det_keras.master.embedded import EmbeddedMaster
from det_keras.master.server.calls import MasterDep, open_download
from det_keras.master.server.responses import reply, stream_reply
from det_keras.master.tasks import logs as task_logs
from det_keras.master.tasks.logs import LogFilter
from det_keras.protocol.values import timestamp

router = APIRouter(prefix="/logs", include_in_schema=False)

# Number of lines per query.
_CHUNK = 5000


@router.get("/trials/{trial_id}/count")
def count_of_trial(master: MasterDep, trial_id: int, wanted: FilterDep) -> Response:
    """Return how many lines of a trial's log a filter selects."""
    return _count(master, log_of_trial(master, trial_id), wanted)


@router.get("/tasks/{task_id}/count")
def count_of_task(master: MasterDep, task_id: str, wanted: FilterDep) -> Response:
    """Return how many lines of a task's log a filter selects."""
    return _count(master, log_of_task(master, task_id), wanted)


@router.get("/trials/{trial_id}/log.txt", dependencies=[Depends(open_download)])
def file_of_trial(master: MasterDep, trial_id: int) -> Response:
    """Return the whole log of a trial as text."""
    return _file(master, log_of_trial(master, trial_id), f"trial-{trial_id}.log")


@router.get("/tasks/{task_id}/log.txt", dependencies=[Depends(open_download)])
def file_of_task(master: MasterDep, task_id: str) -> Response:
    """Return the whole log of a task as text."""
    return _file(master, log_of_task(master, task_id), "job.log")


def _count(master: EmbeddedMaster, source: LogSource, wanted: LogFilter) -> Response:
    with master.store.reading() as session:
        return reply({"count": task_logs.count_lines(session, source.task_ids, wanted)})


def _file(master: EmbeddedMaster, source: LogSource, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return stream_reply(_texts(master, source), media_type="text/plain; charset=utf-8", headers=headers)


async def _texts(master: EmbeddedMaster, source: LogSource) -> AsyncIterator[bytes]:
    last_id: int | None = None
    while True:
        text, last_id = await anyio.to_thread.run_sync(_part, master, source, last_id)
        if last_id is None:
            return
        yield text


def _part(master: EmbeddedMaster, source: LogSource, last_id: int | None) -> tuple[bytes, int | None]:
    with master.store.reading() as session:
        rows = task_logs.read_lines(session, source.task_ids, LogFilter(), last_id=last_id, limit=_CHUNK)
    lines = []
    for row in rows:
        rank = "" if row.rank is None else f"[rank {row.rank}] "
        end = "" if row.text.endswith("\n") else "\n"
        lines.append(f"{timestamp(row.time)} {rank}{row.text}{end}")
    return "".join(lines).encode(errors="replace"), rows[-1].id if rows else None
