"""What a user changes of a search while it runs."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.config import Space
from det_keras.errors import ConfigError
from det_keras.search import Close, Create, ExitedReason, Searcher, Shutdown, ValidateAfter
from search.searches import created, searcher

SPACE = """\
hyperparameters:
  lr: {type: log, base: 10, minval: -4, maxval: -1}
  width: {type: int, minval: 1, maxval: 64}
  net: {rate: {type: double, minval: 0.0, maxval: 1.0}, act: {type: categorical, vals: [relu, gelu, true]}}
  fixed: 3
"""
POINT = {"lr": 0.5, "width": 100, "net": {"rate": 0.5, "act": "gelu"}, "fixed": 3}
METHODS = (
    "name: random, max_trials: 6, max_concurrent_trials: 2",
    "name: random, max_trials: 6, max_concurrent_trials: 2, max_length: {epochs: 9}",
    "name: async_halving, max_trials: 6, max_concurrent_trials: 2, num_rungs: 2, divisor: 3, max_length: {epochs: 9}",
    "name: async_halving, max_trials: 6, max_concurrent_trials: 2, num_rungs: 2, divisor: 3,"
    " max_length: {epochs: 9}, stop_once: true",
    "name: adaptive_asha, max_trials: 6, max_concurrent_trials: 2, max_length: {epochs: 9}",
    "name: tpe, max_trials: 6, max_concurrent_trials: 2, max_length: {epochs: 9}, n_startup_trials: 2",
)
GRID = "hyperparameters: {a: {type: int, minval: 1, maxval: 4, count: 4}, b: {type: categorical, vals: [x, y]}}\n"


def space_of(one: Searcher) -> Space:
    return one.space


class Runner:
    """Runs a search to its end: the oldest trial with work reaches its length, or ends if the search gives none."""

    def __init__(self, one: Searcher, seed: int = 1) -> None:
        self.one = one
        self.draw = random.Random(seed)
        self.hparams: dict[str, object] = {}
        self.live: list[str] = []
        self.lengths: dict[str, int] = {}
        self.ends: list[Shutdown] = []
        self.take(one.initial())

    def take(self, actions) -> None:
        for action in actions:
            if isinstance(action, Create):
                self.hparams[action.request_id] = action.hparams
                self.live.append(action.request_id)
            elif isinstance(action, Shutdown):
                self.ends.append(action)
        new = created(actions)
        if new:
            self.take(self.one.trials_created(new))

    def step(self) -> bool:
        """Let one trial go on; return whether there was one."""
        for trial in self.live:
            operation = self.one.operation(trial)
            if operation is not None and not operation.completed:
                self.lengths[trial] = operation.length
                self.take(self.one.operation_completed(trial, operation.length, self.draw.random(), {}))
                return True
            if operation is None or self.one.is_closed(trial):
                self.live.remove(trial)
                if operation is None:
                    self.take(self.one.validation_reported(trial, self.draw.random(), {}))
                self.take(self.one.trial_exited(trial))
                return True
        return False

    def withdraw(self, wanted) -> None:
        """Narrow the space, and withdraw the newest trial, which has not begun."""
        waiting = [trial for trial in self.live if self.one.may_withdraw(trial)][-1:]
        self.live = [trial for trial in self.live if trial not in waiting]
        self.take(self.one.narrow(wanted, waiting))

    def run(self) -> None:
        while not self.ends:
            assert self.step(), "The search neither ends nor gives work."


@pytest.mark.parametrize("fields", METHODS)
def test_added_trial_changes_no_other_and_is_trained_fully(fields):
    if "tpe" in fields:
        pytest.skip("What it proposes depends on all results, also on those of added trials.")
    plain, steered = Runner(searcher(fields, SPACE)), Runner(searcher(fields, SPACE))
    # Results of the added trial are not drawn from the same stream.
    steered.step()
    plain.step()
    before = set(steered.hparams)
    steered.take(steered.one.add_trial(POINT))
    (added,) = set(steered.hparams) - before
    assert steered.hparams[added] == POINT
    steered.live.remove(added)
    plain.run()
    while steered.step():
        pass
    # The search waits for it alone.
    assert not steered.ends
    operation = steered.one.operation(added)
    assert operation is None or operation.length == 9
    steered.live.append(added)
    steered.run()
    own = {trial: point for trial, point in steered.hparams.items() if trial != added}
    assert own == plain.hparams
    assert {trial: length for trial, length in steered.lengths.items() if trial != added} == plain.lengths
    assert steered.ends == plain.ends == [Shutdown()]


def test_two_added_trials_have_seeds_of_their_own():
    one = searcher(METHODS[0], SPACE)
    one.initial()
    first, second = (one.add_trial(POINT)[0] for _ in range(2))
    assert first.request_id != second.request_id
    assert first.seed != second.seed


def test_estimator_learns_from_an_added_trial():
    def third(loss: float) -> float:
        one = searcher(
            "name: tpe, max_trials: 9, max_concurrent_trials: 1, max_length: {epochs: 2}, n_startup_trials: 1",
            "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n",
        )
        (first,) = created(one.initial())
        one.trial_created(first)
        create, *_ = one.add_trial({"lr": 0.9})
        one.trial_created(create.request_id)
        one.operation_completed(create.request_id, 2, loss, {})
        one.trial_exited(create.request_id)
        one.operation_completed(first, 2, 0.5, {})
        (action, *_) = one.trial_exited(first)
        return float(action.hparams["lr"])

    assert third(0.0) != third(1.0)


def test_progress_is_that_of_the_search():
    one = searcher("name: random, max_trials: 2, max_concurrent_trials: 2", SPACE)
    first, _ = created(one.initial())
    (action,) = one.add_trial(POINT)
    one.trials_created([first, action.request_id])
    one.trial_exited(action.request_id)
    assert one.progress() == 0.0
    one.trial_exited(first)
    assert one.progress() == 0.5


@pytest.mark.parametrize("fields", METHODS[1:])
def test_extended_trial_trains_to_its_length_and_the_search_ends(fields):
    runner = Runner(searcher(fields, SPACE))
    trial = runner.live[0]
    with pytest.raises(ValueError, match="already"):
        runner.one.extend(trial, 1)
    runner.take(runner.one.extend(trial, 20))
    assert runner.one.operation(trial).length == 20
    runner.run()
    assert runner.lengths[trial] == 20
    assert len(runner.hparams) == 6


def test_script_that_decides_cannot_be_extended():
    one = searcher(METHODS[0], SPACE)
    (first, *_) = created(one.initial())
    with pytest.raises(ValueError, match="script decides"):
        one.extend(first, 20)


@pytest.mark.parametrize("fields", METHODS)
def test_further_trials_are_drawn_from_the_narrower_space(fields):
    runner = Runner(searcher(fields, SPACE))
    before = set(runner.hparams)
    runner.one.narrow({"lr": [0.001, 0.01], "net.act": ["gelu", True], "width": [3.5, 6.2]})
    runner.run()
    later = [point for trial, point in runner.hparams.items() if trial not in before]
    assert later
    for point in later:
        assert 0.001 <= point["lr"] <= 0.01
        assert point["net"]["act"] in ("gelu", True)
        assert point["width"] in (4, 5, 6)
        assert point["fixed"] == 3


@pytest.mark.parametrize("fields", METHODS)
def test_waiting_trials_are_replaced_by_others_of_the_narrower_space(fields):
    plain, runner = Runner(searcher(fields, SPACE)), Runner(searcher(fields, SPACE))
    plain.run()
    runner.take(runner.one.add_trial(POINT))
    waiting = [trial for trial in runner.live if runner.one.may_withdraw(trial)]
    assert len(waiting) == len(runner.live) - 1
    runner.live = [trial for trial in runner.live if trial not in waiting]
    runner.take(runner.one.narrow({"lr": [0.001, 0.01]}, waiting))
    assert all(runner.one.is_over(trial) and runner.one.operation(trial) is None for trial in waiting)
    runner.run()
    # They count for nothing: as many others train, all of them in what is left.
    trained = {trial: point for trial, point in runner.hparams.items() if trial not in waiting}
    assert len(trained) == len(plain.hparams) + 1
    assert all(0.001 <= point["lr"] <= 0.01 for point in trained.values() if point != POINT)
    assert runner.ends == [Shutdown()]
    assert runner.one.progress() == plain.one.progress()


def test_single_search_keeps_its_trial():
    one = searcher("name: single", SPACE)
    (trial,) = created(one.initial())
    assert not one.may_withdraw(trial)


def test_grid_creates_other_points_for_those_that_are_withdrawn():
    runner = Runner(searcher("name: grid, max_concurrent_trials: 3", GRID))
    waiting = [trial for trial, point in runner.hparams.items() if point["a"] != 3]
    runner.live = [trial for trial in runner.live if trial not in waiting]
    runner.take(runner.one.narrow({"a": [2, 3]}, waiting))
    runner.run()
    trained = [point for trial, point in runner.hparams.items() if trial not in waiting]
    assert trained == [{"a": a, "b": b} for a, b in ((3, "y"), (3, "x"), (2, "y"), (2, "x"))]
    assert runner.ends == [Shutdown()]
    assert runner.one.progress() == 1.0


def test_grid_whose_trials_are_all_withdrawn_ends():
    space = "hyperparameters: {rate: {type: double, minval: 0, maxval: 1, count: 4}}\n"
    runner = Runner(searcher("name: grid, max_concurrent_trials: 2", space))
    runner.take(runner.one.narrow({"rate": [0.4, 0.6]}, list(runner.live)))
    assert runner.ends == [Shutdown()]


def test_grid_has_all_its_points_until_it_is_narrowed():
    # The last point of this range is calculated as 0.10000000000000002.
    rate = "{type: double, minval: 0.001, maxval: 0.1, count: 4}"
    space = f"hyperparameters: {{rate: {rate}, b: {{type: categorical, vals: [x, null]}}}}\n"
    runner = Runner(searcher("name: grid, max_concurrent_trials: 3", space))
    runner.run()
    assert len(runner.hparams) == 8
    narrowed = Runner(searcher("name: grid, max_concurrent_trials: 3", space))
    narrowed.one.narrow({"rate": [0.001, 0.1]})
    narrowed.run()
    assert len(narrowed.hparams) == 8


def test_grid_whose_points_are_all_left_out_ends():
    runner = Runner(searcher("name: grid, max_concurrent_trials: 1", GRID))
    first = dict(runner.hparams)
    runner.one.narrow({"a": [1.0, 1.0]})
    runner.one.narrow({"b": ["y"]}) if next(iter(first.values()))["b"] == "x" else runner.one.narrow(
        {"b": ["x"]}
    )
    runner.run()
    assert len(runner.hparams) == 2


def test_grid_leaves_out_the_points_outside():
    runner = Runner(searcher("name: grid, max_concurrent_trials: 1", GRID))
    first = set(runner.hparams)
    runner.one.narrow({"a": [2, 3], "b": ["x"]})
    runner.run()
    later = [point for trial, point in runner.hparams.items() if trial not in first]
    assert later == [{"a": 3, "b": "x"}, {"a": 2, "b": "x"}]
    assert runner.ends == [Shutdown()]


@pytest.mark.parametrize("fields", METHODS)
def test_steered_search_is_restored_at_any_event(fields):
    """A search that is stored and restored after each step goes on as one that was not."""

    def steered(*, restored: bool) -> Runner:
        runner = Runner(searcher(fields, SPACE))
        steps = [
            lambda: runner.take(runner.one.add_trial(POINT)),
            lambda: runner.one.narrow({"lr": [0.001, 0.01]}),
            lambda: runner.withdraw({"net.act": ["gelu"]}),
            lambda: (
                runner.one.operation(runner.live[0]) and runner.take(runner.one.extend(runner.live[0], 30))
            ),
        ]
        while not runner.ends:
            if steps:
                steps.pop(0)()
            else:
                runner.step()
            if restored:
                state = json.loads(json.dumps(runner.one.snapshot()))
                runner.one = searcher(fields, SPACE)
                runner.one.restore(state)
        return runner

    assert steered(restored=False).hparams == steered(restored=True).hparams


VALUES = st.one_of(
    st.integers(-10, 100), st.floats(-1, 2), st.sampled_from(["relu", "gelu", True, "tanh", None])
)


@given(
    wanted=st.dictionaries(
        st.sampled_from(["lr", "width", "net.rate", "net.act", "fixed", "unknown", "net"]),
        st.lists(VALUES, max_size=3),
        max_size=3,
    ),
    seed=st.integers(0, 1000),
)
@settings(max_examples=200, deadline=None)
def test_narrowed_space_is_a_part_of_the_space_or_is_refused(wanted, seed):
    whole = space_of(searcher(METHODS[0], SPACE))
    try:
        part = whole.narrowed(wanted)
    except ConfigError:
        return
    drawn = searcher(METHODS[0], SPACE, seed)
    drawn.narrow(wanted)
    for action in drawn.initial():
        if isinstance(action, Create):
            assert whole.contains(action.hparams)
            assert part.contains(action.hparams)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"lr": [0.5, 0.9]}, "leaves nothing"),
        ({"lr": [0.9]}, "a lowest and a highest number"),
        ({"width": [2.2, 2.8]}, "no whole number"),
        ({"net.act": ["tanh"]}, "must be some of 'relu', 'gelu', True"),
        ({"net.atc": ["gelu"]}, "Did you mean `act`"),
        ({"fixed": [3, 3]}, "one value only"),
    ],
)
def test_impossible_part_is_refused_with_what_is_possible(wanted, message):
    with pytest.raises(ConfigError, match=message):
        space_of(searcher(METHODS[0], SPACE)).narrowed(wanted)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": 0.1}, "net.act"),
        ({"lr": "fast", "width": 1, "net.rate": 0.1, "net.act": "relu"}, "must be a number, received 'fast'"),
        ({"lr": 0.1, "width": 1.5, "net.rate": 0.1, "net.act": "relu"}, "must be a whole number"),
        ({"lr": 0.1, "width": 1, "net.rate": 0.1, "net.act": "relu", "with": 2}, "is unknown"),
    ],
)
def test_impossible_trial_is_refused_with_what_is_wrong(values, message):
    with pytest.raises(ConfigError, match=message):
        space_of(searcher(METHODS[0], SPACE)).completed(values)


def test_cancelled_added_trial_counts_for_nothing_but_its_end():
    one = searcher("name: random, max_trials: 1, max_concurrent_trials: 1, max_length: {epochs: 2}", SPACE)
    (first,) = created(one.initial())
    create, length, close = one.add_trial(POINT)
    assert (length, close) == (ValidateAfter(create.request_id, 2), Close(create.request_id))
    one.trials_created([first, create.request_id])
    assert one.trial_exited_early(create.request_id, ExitedReason.USER_CANCELED) == []
    assert one.trial_exited(create.request_id) == []
    assert one.trial_exited(first) == [Shutdown()]
