"""The state of an experiment's search, in the database and in memory.

The database has the state as of some event, and the events since then. An event is one call of the `Searcher`, which is
deterministic: the same calls give the same state. So an event costs a short row, whatever the number of trials. When
the events have become as long as the state, the state is stored and they are deleted.

Between transactions the searcher is kept in memory. A transaction that fails loses it, and the next one reads it again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from det_keras import search
from det_keras.master.database.lookups import config_of
from det_keras.master.database.models import ExperimentRow, SearchEventRow, SearchRow
from det_keras.master.database.store import Store, Transaction
from det_keras.search import Action, ExitedReason, Searcher

# The state of the random numbers alone takes this long.
_SHORTEST_STATE = 8192
_EVENTS: Mapping[str, Callable[..., Sequence[Action] | None]] = {
    "initial": Searcher.initial,
    "trial_created": Searcher.trial_created,
    "trials_created": Searcher.trials_created,
    "validation_reported": Searcher.validation_reported,
    "operation_completed": Searcher.operation_completed,
    "progress_reported": Searcher.progress_reported,
    "gave_up": Searcher.gave_up,
    "trial_exited_early": lambda searcher, request_id, reason: searcher.trial_exited_early(
        request_id, ExitedReason(reason)
    ),
    "trial_exited": Searcher.trial_exited,
    "add_trial": Searcher.add_trial,
    "extend": Searcher.extend,
    "narrow": Searcher.narrow,
}


@dataclass
class _Kept:
    """A searcher in memory.

    Attributes:
        searcher: in its state after the last event.
        number: how many events it has received.
        stored: how many of them the stored state includes.
        events_length: number of characters of the other events.
        state_length: number of characters of the stored state.
    """

    searcher: Searcher
    number: int
    stored: int
    events_length: int
    state_length: int

    @property
    def is_due(self) -> bool:
        """Whether the state is to be stored."""
        longest = max(self.state_length, _SHORTEST_STATE)
        return self.events_length >= longest or not self.searcher.method.is_replayable


class SearchState:
    """The search of one experiment, within one transaction.

    Args:
        tx: the transaction.
        experiment: the experiment's row in `tx`.
    """

    def __init__(self, tx: Transaction, experiment: ExperimentRow) -> None:
        self._tx = tx
        self._experiment = experiment

    @property
    def searcher(self) -> Searcher:
        """The searcher in its state after the last event; it may be asked, but only `apply` may change it."""
        return self._kept().searcher

    def apply(self, event: str, *arguments: Any) -> Sequence[Action]:
        """Pass an event to the searcher, and record it.

        Args:
            event: name of a method of `Searcher`.
            arguments: its arguments, as plain values for JSON.

        Returns:
            The search's decisions.
        """
        kept = self._kept()
        try:
            actions = _EVENTS[event](kept.searcher, *arguments)
        except Exception:
            # It may have changed a part of its state.
            self._tx.kept.pop(self._key, None)
            raise
        text = json.dumps([event, *arguments], separators=(",", ":"))
        kept.number += 1
        kept.events_length += len(text)
        self._tx.add(SearchEventRow(experiment_id=self._experiment.id, number=kept.number, event=text))
        if kept.is_due:
            _store(self._tx, self._experiment.id, kept)
        return actions or ()

    def replace(self, searcher: Searcher) -> None:
        """Continue with another searcher."""
        kept = self._kept()
        kept.searcher = searcher
        _store(self._tx, self._experiment.id, kept)

    def end(self) -> None:
        """Store the state of a search that gets no further event."""
        kept = self._kept()
        if kept.number > kept.stored:
            _store(self._tx, self._experiment.id, kept)
        self._tx.kept.pop(self._key, None)

    @property
    def _key(self) -> tuple[str, int]:
        return _key(self._experiment.id)

    def _kept(self) -> _Kept:
        kept = self._tx.take(self._key)
        if kept is None:
            kept = self._tx.kept[self._key] = _read(self._tx, self._experiment)
        assert isinstance(kept, _Kept)
        return kept


def read_searcher(session: Session, experiment: ExperimentRow) -> Searcher:
    """Return the searcher of an experiment, in its state after the last event, for reading only."""
    return _read(session, experiment).searcher


def store_searches(store: Store) -> None:
    """Store the state of all searches in memory, so that another release of this package repeats no event."""
    with store.writing() as tx:
        for key in tx.all_kept():
            kept = tx.take(key)
            if isinstance(kept, _Kept) and kept.number > kept.stored:
                _, experiment_id = key
                _store(tx, experiment_id, kept)


def _key(experiment_id: int) -> tuple[str, int]:
    return "search", experiment_id


def _read(session: Session, experiment: ExperimentRow) -> _Kept:
    searcher = search.from_config(config_of(experiment))
    stored, state_length = 0, 0
    query = select(SearchRow.number, SearchRow.state).where(SearchRow.experiment_id == experiment.id)
    for number, state in session.execute(query):
        stored, state_length = number, len(state)
        searcher.restore(json.loads(state))
    kept = _Kept(searcher, stored, stored, 0, state_length)
    events = (
        select(SearchEventRow.number, SearchEventRow.event)
        .where(SearchEventRow.experiment_id == experiment.id)
        .order_by(SearchEventRow.number)
    )
    for kept.number, text in session.execute(events):
        name, *arguments = json.loads(text)
        _EVENTS[name](searcher, *arguments)
        kept.events_length += len(text)
    return kept


def _store(tx: Transaction, experiment_id: int, kept: _Kept) -> None:
    state = json.dumps(kept.searcher.snapshot(), separators=(",", ":"))
    tx.merge(SearchRow(experiment_id=experiment_id, number=kept.number, state=state))
    tx.flush()
    tx.execute(
        delete(SearchEventRow).where(SearchEventRow.experiment_id == experiment_id),
        execution_options={"synchronize_session": False},
    )
    kept.stored, kept.state_length, kept.events_length = kept.number, len(state), 0
