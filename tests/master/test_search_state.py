"""The state of searches in the database: the same as that of a searcher in memory, wherever a transaction fails."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.master.database.models import ExperimentRow, SearchEventRow, SearchRow, UserRow
from det_keras.master.database.notifier import Notifier
from det_keras.master.database.store import Store
from det_keras.master.embedded import open_store
from det_keras.master.experiments.search_state import SearchState, read_searcher, store_searches
from det_keras.protocol import states
from det_keras.protocol.values import now
from det_keras.search import Create, ExitedReason
from det_keras.search.random_search import RandomSearch

MORE = "max_trials: 12, max_concurrent_trials: 4"
METHODS = [
    f"{{name: random, metric: loss, {MORE}}}",
    f"{{name: adaptive_asha, metric: loss, {MORE}, time_metric: epochs, max_time: 8, divisor: 2}}",
    f"{{name: adaptive_asha, metric: loss, {MORE}, max_length: {{epochs: 8}}, divisor: 2}}",
    f"{{name: tpe, metric: loss, {MORE}, n_startup_trials: 3}}",
    "{name: grid, metric: loss, max_concurrent_trials: 3}",
]


class Lost(Exception):  # noqa: N818 - a fault that the test makes
    """Fails a transaction."""


class World:
    """A database with an experiment, and the searcher that its state is compared with."""

    def __init__(self, store: Store, method: str) -> None:
        self.store = store
        text = (
            f"entrypoint: a\nsearcher: {method}\nreproducibility: {{experiment_seed: 3}}\n"
            "hyperparameters: {x: {type: double, minval: 0, maxval: 1, count: 5}}\n"
        )
        config = load_experiment_config(text).config
        self.plain = search.from_config(config)
        self.trials: list[str] = []
        with store.writing() as tx:
            if tx.get(UserRow, 1) is None:
                tx.add(UserRow(id=1, username="one", modified_at=now()))
                tx.flush()
            row = ExperimentRow(
                owner_id=1, job_id="j", name="n", labels=[], config=config.to_dict(), original_config=text,
                start_time=now(), state=states.ACTIVE,
            )  # fmt: skip
            tx.add(row)
            tx.flush()
            self.id = row.id

    def apply(self, event: str, *arguments, fails: bool = False) -> None:
        """Pass an event to both searchers; with `fails`, let a transaction fail before."""
        if fails:
            with contextlib.suppress(Lost), self.store.writing() as tx:
                self._state(tx).apply(event, *arguments)
                raise Lost
        with self.store.writing() as tx:
            stored = list(self._state(tx).apply(event, *arguments))
        actions = list(getattr(self.plain, event)(*arguments) or ())
        assert stored == actions
        for action in actions:
            if isinstance(action, Create):
                self.trials.append(action.request_id)
                self.apply("trial_created", action.request_id)

    def check(self) -> None:
        """Compare the searchers: as a reader finds the state, and as the next transaction does."""
        with self.store.reading() as session:
            row = session.get(ExperimentRow, self.id)
            assert read_searcher(session, row).snapshot() == self.plain.snapshot()
            assert read_searcher(session, row).progress() == self.plain.progress()
        with self.store.writing() as tx:
            assert self._state(tx).searcher.snapshot() == self.plain.snapshot()

    def length_of_events(self) -> int:
        """Return the number of characters of the events that the stored state does not include."""
        with self.store.reading() as session:
            query = select(SearchEventRow.event).where(SearchEventRow.experiment_id == self.id)
            return sum(map(len, session.scalars(query)))

    def _state(self, tx) -> SearchState:
        return SearchState(tx, tx.get(ExperimentRow, self.id))


@pytest.fixture
def store(home) -> Iterator[Store]:
    store = open_store(home, Notifier(), {})
    yield store
    store.close()


METRICS = st.one_of(st.floats(0, 1), st.sampled_from([math.inf, -math.inf, math.nan, -0.0]))
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["validated", "progress", "refused", "failed", "canceled", "exited"]),
        st.integers(0, 30),
        METRICS,
        st.integers(1, 8),
        st.sampled_from(["", "", "fails", "stored", "restarted"]),
    ),
    max_size=40,
)
REASONS = {
    "refused": ExitedReason.INVALID_HP,
    "failed": ExitedReason.ERRORED,
    "canceled": ExitedReason.USER_CANCELED,
}


def step(world: World, what: str, trial: str, metric: float, time: int, fails: bool) -> None:
    """Let something happen to a trial."""
    if what == "validated" and world.plain.method.gives_lengths:
        operation = world.plain.operation(trial)
        if operation is not None and not operation.completed:
            world.apply("operation_completed", trial, operation.length, metric, {}, fails=fails)
    elif what == "validated":
        world.apply("validation_reported", trial, metric, {"epochs": time}, fails=fails)
    elif what == "progress":
        world.apply("progress_reported", trial, time / 8, fails=fails)
    elif what in REASONS:
        world.apply("trial_exited_early", trial, REASONS[what], fails=fails)
        world.apply("trial_exited", trial)
    else:
        world.apply("trial_exited", trial, fails=fails)


@pytest.mark.parametrize("method", METHODS)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_state_is_that_of_a_searcher_that_nobody_interrupts(store, method, steps):
    world = World(store, method)
    world.apply("initial")
    for what, index, metric, time, disturbance in steps:
        step(world, what, world.trials[index % len(world.trials)], metric, time, disturbance == "fails")
        if disturbance == "stored":
            store_searches(world.store)
        elif disturbance == "restarted":
            # As in a new process: nothing is left in memory.
            world.store = Store(store.database, Notifier())
    world.check()


def test_error_of_a_search_leaves_the_state_before_it(store, monkeypatch):
    world = World(store, METHODS[0])
    world.apply("initial")

    def fail(*arguments):
        raise ZeroDivisionError

    with store.writing() as tx:
        state = SearchState(tx, tx.get(ExperimentRow, world.id))
        with monkeypatch.context() as patch:
            # The searcher has noted the end of the trial when it asks the method.
            patch.setattr(RandomSearch, "trial_exited", fail)
            with pytest.raises(ZeroDivisionError):
                state.apply("trial_exited", world.trials[0])
        assert state.searcher.snapshot() == world.plain.snapshot()
    world.check()


def test_events_are_never_longer_than_the_state(store):
    world = World(store, "{name: random, metric: loss, max_trials: 50, max_concurrent_trials: 50}")
    world.apply("initial")
    lengths = []
    for number in range(600):
        world.apply("progress_reported", world.trials[number % 50], number / 600)
        lengths.append(world.length_of_events())
    with store.reading() as session:
        state = session.get(SearchRow, world.id).state
    assert 8000 < max(lengths) < 1.1 * len(state)
    assert lengths.count(0) > 1
    world.check()


def test_ended_search_is_one_row(store):
    world = World(store, METHODS[0])
    world.apply("initial")
    assert world.length_of_events() > 0
    with store.writing() as tx:
        SearchState(tx, tx.get(ExperimentRow, world.id)).end()
    assert world.length_of_events() == 0
    world.check()
