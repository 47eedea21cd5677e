"""The logs of tasks: stored line by line, numbered by the database, filtered when they are read."""

from __future__ import annotations

import functools
import socket
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from json.encoder import encode_basestring_ascii
from typing import Any

from sqlalchemy import Row, Select, func, insert, or_, select
from sqlalchemy.orm import Session

from det_keras.config import LogPattern, LogPatternError
from det_keras.master.database.lookups import config_of_trial
from det_keras.master.database.models import AllocationRow, Base, LogRow, TrialRow
from det_keras.master.database.notifier import task_topic
from det_keras.master.database.store import Transaction
from det_keras.master.errors import InvalidArgumentError
from det_keras.master.resources import LogEntry
from det_keras.master.teams import webhooks
from det_keras.master.wire import encode_json
from det_keras.protocol.log_lines import split_text
from det_keras.protocol.values import now, timestamp

_TABLE = Base.metadata.tables[LogRow.__tablename__]
# A line that is sent again is looked for among so many: a call has up to 1000, and other processes print as well.
_MOST_RECENT = 5000
# Without rows of the ORM, whose making takes as long as the rest of a line.
_COLUMNS = (
    *(_TABLE.c.id, _TABLE.c.time, _TABLE.c.text, _TABLE.c.task_id, _TABLE.c.level, _TABLE.c.derived_level),
    *(_TABLE.c.container_id, _TABLE.c.rank, _TABLE.c.allocation_id, _TABLE.c.agent_id),
    *(_TABLE.c.source, _TABLE.c.stdtype),
)
#: In filters: the lines without a rank.
NO_RANK = -1
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True)
class LogFilter:
    """A selection of log lines; empty lists filter nothing.

    Attributes:
        levels: such as ``INFO``; lines without a level count as INFO.
        rank_ids: `NO_RANK` for lines without a rank.
        after_id: only lines that were stored after this one.
        before_id: only lines that were stored before this one.
        search: text that a line must contain, or a `LogPattern` with `is_regex`.
    """

    levels: Sequence[str] = ()
    allocation_ids: Sequence[str] = ()
    agent_ids: Sequence[str] = ()
    container_ids: Sequence[str] = ()
    rank_ids: Sequence[int] = ()
    sources: Sequence[str] = ()
    stdtypes: Sequence[str] = ()
    after_id: int | None = None
    before_id: int | None = None
    before: datetime | None = None
    after: datetime | None = None
    search: str = ""
    is_regex: bool = False

    def accepts(self, row: Row[Any]) -> bool:
        """Return whether a line that the query returned also matches the pattern, if there is one."""
        if not self.is_regex or not self.search:
            return True
        return LogPattern(self.search).is_in(row.text)

    def check(self) -> None:
        """Check the pattern.

        Raises:
            InvalidArgumentError: `search` is not a valid pattern.
        """
        if self.is_regex:
            try:
                LogPattern(self.search)
            except LogPatternError as error:
                raise InvalidArgumentError(str(error)) from None


def store_entries(
    tx: Transaction, allocation: AllocationRow, entries: Sequence[LogEntry], node: int = 0
) -> None:
    """Store lines that an attempt printed.

    Args:
        tx: stores them, and wakes those requests that follow the log.
        allocation: the attempt that printed them.
        entries: the lines, oldest first.
        node: the place of the node that printed them among those of the attempt.
    """
    agent_id = allocation.shares[node]["node"] if allocation.shares else socket.gethostname()
    rows = [
        {
            "task_id": allocation.task_id,
            "allocation_id": allocation.id,
            "time": entry.time,
            "level": entry.level,
            "derived_level": entry.derived_level,
            "stdtype": entry.stdtype,
            "source": "task",
            "agent_id": agent_id,
            "container_id": allocation.resources_id,
            "rank": entry.rank,
            "text": entry.text,
        }
        for entry in entries
    ]
    store_rows(tx, allocation.task_id, rows)


def store_rows(tx: Transaction, task_id: str, rows: Sequence[dict[str, Any]]) -> None:
    """Store lines of one task, apply its experiment's log policies to them, and queue events for webhooks.

    A line of more than 8 KiB becomes several: a page shows all lines of its part of the log at once, and patterns are
    searched in each.

    Args:
        tx: stores the lines.
        task_id: the task.
        rows: the columns of `LogRow`, one dict per line.
    """
    if not rows:
        return
    parts = _parts(rows)
    # Into the table, not the class: the ORM would take half as long again for each line.
    tx.execute(insert(_TABLE), parts)
    _apply_log_policies(tx, task_id, parts)
    webhooks.queue_lines(tx, task_id, parts[0]["agent_id"], [part["text"] for part in parts])
    tx.notify(task_topic(task_id))


def are_last(session: Session, task_id: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether these lines of a call are stored already, as the last ones with their times.

    Only lines with times in microseconds are recognised: a process does not print the same lines at the same
    microseconds twice, but may well do so in the same second.

    Args:
        session: to read with.
        task_id: the task.
        rows: as in `store_rows`.
    """
    if not any(row["time"].microsecond % 1000 for row in rows):
        return False
    parts, times = _parts(rows), {row["time"] for row in rows}
    newest = select(LogRow.id).where(LogRow.task_id == task_id).order_by(LogRow.id.desc()).limit(_MOST_RECENT)
    last = (
        select(LogRow)
        .where(LogRow.id.in_(newest), LogRow.time >= min(times), LogRow.time <= max(times))
        .order_by(LogRow.id.desc())
    )
    # Other processes of the task may have printed at the same time.
    found = [row for row in session.scalars(last) if row.time in times and row.rank == parts[0]["rank"]]
    found = found[: len(parts)][::-1]
    return len(found) == len(parts) and all(
        getattr(row, name) == value
        for row, part in zip(found, parts, strict=True)
        for name, value in part.items()
    )


def _parts(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines as they are stored: long ones in several parts."""
    return [{**row, "text": text} for row in rows for text in split_text(row["text"])]


def note(tx: Transaction, task_id: str, text: str, level: str = "INFO") -> None:
    """Store a line of the master in a task's log, such as why the task restarts or ends.

    Args:
        tx: stores the line.
        task_id: the task.
        text: without the final line break.
        level: a name of `logging`.
    """
    tx.add(LogRow(task_id=task_id, time=now(), level=level, source="master", text=f"{text}\n"))
    tx.notify(task_topic(task_id))


def _apply_log_policies(tx: Transaction, task_id: str, parts: Sequence[dict[str, Any]]) -> None:
    """Search new lines for the patterns of a trial's log policies, and apply the policies that match."""
    trial = tx.scalar(select(TrialRow).where(TrialRow.task_id == task_id))
    if trial is None:
        return
    for policy in config_of_trial(tx, trial).log_policies:
        if policy.pattern is None:
            continue
        name, pattern = policy.name or policy.pattern, LogPattern(policy.pattern)
        if policy.action == "exclude_node":
            nodes = {part["agent_id"] for part in parts if pattern.is_in(part["text"])}
            if nodes:
                trial.log_policy_matched = name
                _exclude(tx, trial, name, nodes)
        elif _is_applied(trial, policy.action, name):
            continue
        elif any(pattern.is_in(part["text"]) for part in parts):
            trial.log_policy_matched = name
            if policy.action == "cancel_retries":
                trial.is_retry_cancelled = True
                note(
                    tx,
                    task_id,
                    f"Log policy {name!r} matched: a failure of trial {trial.id} is final.",
                    "WARNING",
                )


def _is_applied(trial: TrialRow, action: str | None, name: str) -> bool:
    return trial.is_retry_cancelled if action == "cancel_retries" else trial.log_policy_matched == name


def _exclude(tx: Transaction, trial: TrialRow, policy: str, agents: Collection[str | None]) -> None:
    """Let a trial run on other machines than those that printed lines, once it is run again."""
    live = select(AllocationRow.shares).where(
        AllocationRow.task_id == trial.task_id, AllocationRow.end_time.is_(None)
    )
    own = [share["node"] for share in tx.scalar(live) or ()]
    # Lines that a script sends by itself may name anything.
    found = own if len(own) == 1 else [node for node in own if node in agents]
    new = [node for node in found if node not in trial.excluded_nodes]
    if new:
        trial.excluded_nodes = [*trial.excluded_nodes, *new]
        # The words of Determined, for which its tests and people look.
        text = f"trial {trial.id} therefore will not schedule on {', '.join(new)} when it is run again"
        note(tx, trial.task_id, f"Log policy {policy!r} matched: {text}.", "WARNING")


def read_lines(
    session: Session,
    task_ids: Sequence[str],
    wanted: LogFilter,
    *,
    last_id: int | None = None,
    limit: int = 0,
    descending: bool = False,
) -> list[Row[Any]]:
    """Return lines in the order of their numbers, each with the columns that `encode_lines` takes.

    Args:
        session: to read with.
        task_ids: the tasks whose logs are read.
        wanted: the selection of lines.
        last_id: reading begins after this line, in the order of reading; None for the beginning.
        limit: maximum number of lines; 0 for all.
        descending: last line first.
    """
    query = _filtered(select(*_COLUMNS).where(LogRow.task_id.in_(task_ids)), wanted)
    if last_id is not None:
        query = query.where(LogRow.id < last_id if descending else LogRow.id > last_id)
    query = query.order_by(LogRow.id.desc() if descending else LogRow.id.asc())
    if not wanted.is_regex:
        # By the connection: the session would look in each row for objects.
        return list(session.connection().execute(query.limit(limit) if limit else query).all())
    rows = []
    for row in session.execute(query.execution_options(yield_per=1000)):
        if wanted.accepts(row):
            rows.append(row)
        if len(rows) == limit > 0:
            break
    return rows


@dataclass(frozen=True)
class LogFields:
    """The values that occur in lines, by which they can be filtered; immutable, so that they can be compared.

    Attributes:
        last_id: number of the last line that was looked at.
    """

    allocation_ids: frozenset[str] = frozenset()
    agent_ids: frozenset[str] = frozenset()
    container_ids: frozenset[str] = frozenset()
    rank_ids: frozenset[int] = frozenset()
    sources: frozenset[str] = frozenset()
    stdtypes: frozenset[str] = frozenset()
    last_id: int = field(default=0, compare=False)


def read_fields(session: Session, task_ids: Sequence[str], known: LogFields) -> LogFields:
    """Return the values that occur in the lines of tasks.

    Args:
        session: to read with.
        task_ids: the tasks whose logs are read.
        known: the answer of an earlier call, after which only new lines are looked at.
    """
    of_tasks = (LogRow.task_id.in_(task_ids), LogRow.id > known.last_id)
    last_id = session.scalar(select(func.max(LogRow.id)).where(*of_tasks))
    if last_id is None:
        return known
    columns = (
        *(LogRow.allocation_id, LogRow.agent_id, LogRow.container_id),
        *(LogRow.rank, LogRow.source, LogRow.stdtype),
    )
    rows = session.execute(select(*columns).where(*of_tasks, LogRow.id <= last_id).distinct()).all()
    ranks = frozenset(NO_RANK if row.rank is None else row.rank for row in rows)
    return LogFields(
        known.allocation_ids | _present(row.allocation_id for row in rows),
        known.agent_ids | _present(row.agent_id for row in rows),
        known.container_ids | _present(row.container_id for row in rows),
        known.rank_ids | ranks,
        known.sources | _present(row.source for row in rows),
        known.stdtypes | _present(row.stdtype for row in rows),
        last_id,
    )


def _present(values: Iterable[str | None]) -> frozenset[str]:
    return frozenset(value for value in values if value is not None)


def count_lines(session: Session, task_ids: Sequence[str], wanted: LogFilter) -> int:
    """Return the number of lines; a pattern in `wanted` is ignored, since only `read_lines` can apply it."""
    query = _filtered(select(func.count()).where(LogRow.task_id.in_(task_ids)), wanted)
    return int(session.scalar(query) or 0)


def encode_lines(rows: Iterable[Sequence[Any]], trial_id: int | None = None) -> bytes:
    """Return lines as JSON, as a stream sends them: of a trial's log with `trial_id`, else of a task's log.

    Logs of a million lines are read at once. All but the number, the time and the text is the same in most of their
    lines, and the text, which is in there twice, is encoded once.

    Args:
        rows: of `read_lines`.
        trial_id: number of the trial.
    """
    lines = []
    for number, time, text, *origin in rows:
        before, head, after = _frame(trial_id, *origin)
        at, content = timestamp(time), encode_basestring_ascii(text)[1:]
        lines.append(
            f'{{"result":{{"id":"{number}",{before},"timestamp":"{at}",'
            f'"message":"[{at}] {head}{content},"log":"{content},{after}}}}}\n'
        )
    return "".join(lines).encode()


@functools.lru_cache(maxsize=1024)
def _frame(
    trial_id: int | None,
    task_id: str,
    level: str | None,
    derived_level: str | None,
    container_id: str | None,
    rank: int | None,
    allocation_id: str | None,
    agent_id: str | None,
    source: str | None,
    stdtype: str | None,
) -> tuple[str, str, str]:
    """Return what is around time and text of a line in JSON: whose it is, what clients print before it, the rest."""
    whose: dict[str, Any] = {"taskId": task_id} if trial_id is None else {"trialId": trial_id}
    shown_rank = f" [rank={rank}]" if rank is not None else ""
    shown_level = f" {level}:" if level else ""
    head = f"{(container_id or '')[:8].ljust(8)}{shown_rank} ||{shown_level} "
    found = level or derived_level
    rest = {
        "level": f"LOG_LEVEL_{found}" if found in _LEVELS else "LOG_LEVEL_UNSPECIFIED",
        "allocationId": allocation_id,
        "agentId": agent_id,
        "containerId": container_id,
        "rankId": rank,
        "source": source,
        "stdtype": stdtype,
    }
    before, after = (encode_json(part)[1:-1].decode() for part in (whose, rest))
    return before, encode_basestring_ascii(head)[1:-1], after


def _filtered(query: Select[Any], wanted: LogFilter) -> Select[Any]:
    columns = (
        (LogRow.allocation_id, wanted.allocation_ids),
        (LogRow.agent_id, wanted.agent_ids),
        (LogRow.container_id, wanted.container_ids),
        (LogRow.source, wanted.sources),
        (LogRow.stdtype, wanted.stdtypes),
    )
    for column, values in columns:
        if values:
            query = query.where(column.in_(values))
    if wanted.rank_ids:
        has_rank = LogRow.rank.in_(wanted.rank_ids)
        query = query.where(or_(has_rank, LogRow.rank.is_(None)) if NO_RANK in wanted.rank_ids else has_rank)
    if wanted.levels:
        level = func.coalesce(LogRow.level, LogRow.derived_level)
        has_level = level.in_(wanted.levels)
        query = query.where(or_(has_level, level.is_(None)) if "INFO" in wanted.levels else has_level)
    if wanted.after_id is not None:
        query = query.where(LogRow.id > wanted.after_id)
    if wanted.before_id is not None:
        query = query.where(LogRow.id < wanted.before_id)
    if wanted.before is not None:
        query = query.where(LogRow.time < wanted.before)
    if wanted.after is not None:
        query = query.where(LogRow.time > wanted.after)
    if wanted.search and not wanted.is_regex:
        # Upper and lower case are the same, as in SQLite's LIKE and for Determined.
        query = query.where(LogRow.text.icontains(wanted.search, autoescape=True))
    return query
