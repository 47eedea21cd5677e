"""Which experiments a list shows, and a call for many of them means: one query for both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from det_keras.master.database.models import ExperimentRow, UserRow
from det_keras.protocol import states

# No experiment has this number.
_LARGEST = (1 << 63) - 1
#: What ACTIVE is shown as, depending on the processes of the trials.
SHOWN_ACTIVE = frozenset({"ACTIVE", "QUEUED", "PULLING", "STARTING", "RUNNING"})


@dataclass(frozen=True)
class Wanted:
    """Which experiments are meant; empty and None are no condition.

    Attributes:
        name: part of the name, in upper or lower case.
        description: part of the description, likewise.
        labels: all of which they have.
        is_archived: whether they are archived.
        states: in which they are shown; see `in_shown_states` for those that processes decide.
        users: names of owners.
        user_ids: numbers of owners.
        project_id: number of their project; 0 for all.
        included: only these numbers.
        excluded: without these numbers.
        least: smallest number.
        most: largest number.
    """

    name: str = ""
    description: str = ""
    labels: Sequence[str] = ()
    is_archived: bool | None = None
    states: Sequence[str] = ()
    users: Sequence[str] = ()
    user_ids: Sequence[int] = ()
    project_id: int = 0
    included: Sequence[int] = ()
    excluded: Sequence[int] = ()
    least: int | None = None
    most: int | None = None


def find_experiments(session: Session, wanted: Wanted) -> list[int]:
    """Return the numbers of experiments, smallest first."""
    query = _query(wanted).with_only_columns(
        ExperimentRow.id, *([ExperimentRow.labels] if wanted.labels else [])
    )
    rows = session.execute(query.order_by(ExperimentRow.id))
    return [row.id for row in rows if not wanted.labels or set(wanted.labels) <= set(row.labels)]


def also_shown(shown: Sequence[str]) -> set[str]:
    """Return the requested states; ACTIVE includes all states as which it is shown."""
    return set(shown) | (SHOWN_ACTIVE if "ACTIVE" in shown else frozenset())


def _query(wanted: Wanted) -> Select[ExperimentRow]:
    query = select(ExperimentRow).join(UserRow, UserRow.id == ExperimentRow.owner_id)
    if wanted.is_archived is not None:
        query = query.where(ExperimentRow.archived == wanted.is_archived)
    if wanted.project_id:
        query = query.where(ExperimentRow.project_id == wanted.project_id)
    if wanted.users:
        query = query.where(UserRow.username.in_(wanted.users))
    if wanted.user_ids:
        query = query.where(ExperimentRow.owner_id.in_(wanted.user_ids))
    if wanted.included:
        query = query.where(ExperimentRow.id.in_(wanted.included))
    if wanted.excluded:
        query = query.where(ExperimentRow.id.not_in(wanted.excluded))
    # One more or less than a number of 64 bits may be none.
    if wanted.least is not None:
        query = query.where(ExperimentRow.id >= min(wanted.least, _LARGEST))
    if wanted.most is not None:
        query = query.where(ExperimentRow.id <= max(wanted.most, -_LARGEST))
    if wanted.states:
        stored = {states.ACTIVE if state in SHOWN_ACTIVE else state for state in wanted.states}
        query = query.where(ExperimentRow.state.in_(stored))
    for column, text in (
        (ExperimentRow.name, wanted.name),
        (ExperimentRow.description, wanted.description),
    ):
        if text:
            query = query.where(func.lower(column).contains(text.lower(), autoescape=True))
    return query
