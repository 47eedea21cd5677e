"""Who a transaction belongs to: each change that a call makes is recorded in the transaction of the change itself.

The authentication of a call leaves its author in a context variable, and `Store.writing` asks for it. So a route needs
not record anything, and nothing is recorded that was not committed. A body is never read: it may hold secrets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import event, insert, inspect, select
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.orm.unitofwork import UOWTransaction

from det_keras.master.database.acts import PLAIN_VERBS, Act, Noun, act_of, is_report
from det_keras.master.database.models import (
    AccessTokenRow,
    AuditRow,
    Base,
    CheckpointRow,
    ExperimentRow,
    SharedLinkRow,
    TaskRow,
    TrialRow,
    UserRow,
)
from det_keras.protocol.values import now

# The columns whose values are told, with the word for each. Of others a call that only changes says the names.
_TOLD = {
    "active": "active",
    "aliases": "aliases",
    "admin": "administrator",
    "archived": "archived",
    "is_archived": "archived",
    "is_revoked": "revoked",
    "last_version": "newest version",
    "name": "name",
    "owner_id": "owner",
    "project_id": "project",
    "queue_position": "place in the queue",
    "state": "state",
    "username": "name",
    "workspace_id": "workspace",
}
_NAMED = {"password_hash": "password", "meta": "metadata", "checkpoint_storage": "checkpoint storage"}
# Of nouns that have several.
_KINDS: dict[type[Base], str] = {ExperimentRow: "experiment", TaskRow: "job", TrialRow: "trial"}
# What follows from the change itself.
_FOLLOWS = frozenset(
    {
        "end_time",
        "folded_name",
        "is_pruning_due",
        "last_auth_at",
        "last_updated_time",
        "modified_at",
        "pending_deletion",
        "progress",
    }
)
_LONGEST_DETAIL = 500
_LONGEST_VALUE = 80


@dataclass
class Author:
    """Whose call a transaction belongs to.

    Attributes:
        scope: of the call; the router adds the route.
        user_id: the user; None while nobody is logged in.
        username: its name.
        token_id: number of its access token; None for a login.
        allocation_id: of a task that acts for its user; None for none.
        recorded: what is recorded already: a call may have several transactions.
    """

    scope: MutableMapping[str, Any]
    user_id: int | None = None
    username: str = ""
    token_id: int | None = None
    allocation_id: str | None = None
    recorded: set[tuple[str, str]] = field(default_factory=set)

    @property
    def address(self) -> str:
        """The client's address."""
        client = self.scope.get("client") or ("",)
        return str(client[0])

    @property
    def route(self) -> str:
        """The pattern of the path; the path itself before the call was routed."""
        return str(getattr(self.scope.get("route"), "path", self.scope["path"]))

    @property
    def is_reporting(self) -> bool:
        """Whether the call is a report of a training, which is not recorded."""
        return is_report(self.scope["method"], self.route)

    def act(self) -> Act:
        """Return what the call does."""
        return act_of(self.scope["method"], self.route, self.scope.get("path_params") or {})

    def facts(self) -> dict[str, Any]:
        """Return the columns of the record that are the same for all that the call changes."""
        return {
            "made_at": now(),
            "user_id": self.user_id,
            "username": self.username,
            "token_id": self.token_id,
            "allocation_id": self.allocation_id,
            "address": self.address,
        }


_author: ContextVar[Author | None] = ContextVar("author", default=None)


@contextlib.contextmanager
def acting(author: Author) -> Iterator[None]:
    """Attribute the transactions of the block to an author."""
    token = _author.set(author)
    try:
        yield
    finally:
        _author.reset(token)


def author() -> Author | None:
    """Return whose call is being answered; None outside of calls, and for reports of trainings."""
    found = _author.get()
    return None if found is None or found.is_reporting else found


def logged_in(user: UserRow) -> None:
    """Attribute what follows in this call, which had no login, to a user."""
    found = _author.get()
    if found is not None:
        found.user_id, found.username = user.id, user.username


class Changes:
    """What a transaction changed, for the record.

    Args:
        author: to whom it belongs.
    """

    def __init__(self, author: Author) -> None:
        self._author = author
        self._act = author.act()
        self._is_changed = False
        # Changed rows, each with whether it was added, and its columns with the values before and after.
        self._rows: dict[int, tuple[Base, bool, dict[str, tuple[Any, Any]]]] = {}

    def needs(self, row: object) -> bool:
        """Return whether a changed row says something new: of a wide search, thousands of other rows change."""
        return not self._is_changed or isinstance(row, self._act.noun.rows)

    def note(self, row: Base, *, is_new: bool) -> None:
        """Add a changed row."""
        self._is_changed = True
        if not isinstance(row, self._act.noun.rows):
            return
        _, was_new, columns = self._rows.setdefault(id(row), (row, is_new, {}))
        for attribute in [] if was_new else inspect(row).attrs:
            history = attribute.history
            if history.has_changes() and history.added:
                before = columns.get(attribute.key, (history.deleted or [None]))[0]
                columns[attribute.key] = (before, history.added[0])

    def note_statement(self) -> None:
        """Add a change whose rows are not known."""
        self._is_changed = True

    def record(self, session: Session) -> set[tuple[str, str]]:
        """Add the rows of the record, and return what they are about."""
        session.flush()
        if not self._is_changed:
            return set()
        found = {
            key: row
            for key, row in self._objects(session, self._act).items()
            if key not in self._author.recorded
        }
        if found:
            facts = self._author.facts()
            session.execute(insert(AuditRow), [{**facts, **row} for row in found.values()])
        return set(found)

    def _objects(self, session: Session, act: Act) -> dict[tuple[str, str], dict[str, Any]]:
        found: dict[tuple[str, str], tuple[Base | None, bool, dict[str, tuple[Any, Any]]]] = {
            (_kind(act.noun, row), _id(row)): (row, is_new, columns)
            for row, is_new, columns in self._rows.values()
        }
        if act.id is not None:
            changed = [one for one in found.values() if one[0] is not None and _is_named(one[0], act)]
            named = changed[0] if changed else (_find(session, act.noun, act.id), False, {})
            found = {(_kind(act.noun, named[0]), act.id if named[0] is None else _id(named[0])): named}
        elif act.noun.is_recorded_once or (act.verb == "create" and any(one[1] for one in found.values())):
            found = {key: one for key, one in found.items() if one[1]}
        elif not found:
            is_login = act.noun.kind == "user" and self._author.user_id is not None
            found = {(act.noun.kind, str(self._author.user_id) if is_login else ""): (None, False, {})}
        shaped = {}
        for (kind, key), (row, is_new, columns) in found.items():
            shaped[kind, key] = {
                **_place(session, act, row),
                "verb": "create" if is_new and act.verb in PLAIN_VERBS else act.verb,
                "kind": kind,
                "object_id": key,
                "owner_id": self._owner(session, act, row),
                "detail": _detail(act, columns),
            }
        return shaped

    def _owner(self, session: Session, act: Act, row: Base | None) -> int | None:
        if row is None:
            return self._author.user_id if act.noun.kind == "user" else None
        return _owner_of(session, row)


def attribute_changes(session_class: type[Session]) -> None:
    """Note the changes of all sessions of a class in their attribute `changes`, unless it is None."""
    event.listen(session_class, "after_flush", _flushed)
    event.listen(session_class, "do_orm_execute", _executed)


def _flushed(session: Session, _: UOWTransaction) -> None:
    changes: Changes | None = session.changes  # type: ignore[attr-defined]  # of `Transaction`
    if changes is None:
        return
    for row in (*session.new, *session.deleted):
        changes.note(row, is_new=row in session.new)
    for row in session.dirty:
        if changes.needs(row) and session.is_modified(row):
            changes.note(row, is_new=False)


def _executed(state: ORMExecuteState) -> None:
    changes: Changes | None = state.session.changes  # type: ignore[attr-defined]  # of `Transaction`
    if changes is not None and (state.is_update or state.is_delete or state.is_insert):
        changes.note_statement()


def _find(session: Session, noun: Noun, identity: str) -> Base | None:
    if len(noun.rows) != 1:
        return None
    table = noun.rows[0]
    (key,) = inspect(table).primary_key
    if key.type.python_type is not int:
        return session.get(table, identity)
    if noun.name is not None and not identity.isdecimal():
        column = inspect(table).columns[noun.name]
        found: Base | None = session.scalar(select(table).where(column == identity.casefold()))
        return found
    # Longer ones are no numbers of rows.
    return (
        session.get(table, int(identity))
        if identity.isdecimal() and len(identity) < len(str(1 << 63))
        else None
    )


def _is_named(row: Base, act: Act) -> bool:
    """Return whether a changed row is the one that the route names."""
    assert act.id is not None
    name = None if act.noun.name is None else getattr(row, act.noun.name)
    return act.id == _id(row) or (name is not None and name == act.id.casefold())


def _id(row: Base) -> str:
    (key,) = inspect(row).mapper.primary_key
    return str(getattr(row, key.name))


def _kind(noun: Noun, row: Base | None) -> str:
    """Return the kind of a thing, by its row if the noun has several kinds."""
    return noun.kind if row is None or len(noun.rows) == 1 else _KINDS[type(row)]


def _place(session: Session, act: Act, row: Base | None) -> dict[str, str]:
    """Return the thing to which another one belongs."""
    if act.parent is not None:
        return {"of_kind": act.parent[0].kind, "of_id": act.parent[1]}
    if isinstance(row, TrialRow):
        return {"of_kind": "experiment", "of_id": str(row.experiment_id)}
    if isinstance(row, CheckpointRow):
        return {"of_kind": "trial", "of_id": str(row.trial_id)}
    return {"of_kind": "", "of_id": ""}


def _owner_of(session: Session, row: Base | None) -> int | None:
    if isinstance(row, CheckpointRow):
        return _owner_of(session, session.get(TrialRow, row.trial_id))
    if isinstance(row, TrialRow):
        return _owner_of(session, session.get(ExperimentRow, row.experiment_id))
    if isinstance(row, AccessTokenRow):
        return row.user_id
    if isinstance(row, SharedLinkRow):
        return row.maker_id
    if isinstance(row, UserRow):
        return row.id
    return getattr(row, "owner_id", None)


def _detail(act: Act, columns: Mapping[str, tuple[Any, Any]]) -> str:
    parts = [act.detail[:_LONGEST_VALUE]] if act.detail else []
    for name, (before, after) in columns.items():
        if name in _TOLD and before != after:
            parts.append(f"{_TOLD[name]} {_text(before)} → {_text(after)}")
        elif act.verb in PLAIN_VERBS and name not in _FOLLOWS:
            parts.append(_NAMED.get(name, name))
    return ", ".join(parts)[:_LONGEST_DETAIL]


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)[:_LONGEST_VALUE]
