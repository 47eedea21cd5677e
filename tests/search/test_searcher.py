"""Searches as pure state machines: events in, actions out."""

from __future__ import annotations

import json

import pytest

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.errors import ConfigError
from det_keras.search import Close, Create, ExitedReason, Searcher, Shutdown, ValidateAfter
from search.searches import created, searcher


def test_first_trial_of_a_seed_is_the_one_of_the_specification():
    one = searcher("name: single", "hyperparameters: {x: 1}\n")
    (action,) = one.initial()
    assert action == Create("66dce15f-b33d-4acb-9c03-62f30e95f52e", {"x": 1}, 996406378)


def test_single_runs_one_trial_and_ends():
    one = searcher("name: single", "")
    (trial,) = created(one.initial())
    assert one.trial_created(trial) == []
    assert one.operation(trial) is None
    assert one.trial_exited(trial) == [Shutdown()]
    assert one.trial_exited(trial) == []


def test_length_is_given_once_and_the_trial_closed():
    one = searcher("name: single, max_length: {batches: 100}", "")
    create, *rest = one.initial()
    assert rest == [ValidateAfter(create.request_id, 100), Close(create.request_id)]
    assert one.has_work(create.request_id)
    assert one.is_closed(create.request_id)
    one.trial_created(create.request_id)
    for wrong in (99, 101):
        with pytest.raises(ValueError, match="100"):
            one.operation_completed(create.request_id, wrong, 0.5, {})
    assert one.operation_completed(create.request_id, 100, 0.5, {}) == []
    assert not one.has_work(create.request_id)
    with pytest.raises(ValueError, match="before"):
        one.operation_completed(create.request_id, 100, 0.5, {})


def test_random_keeps_its_concurrency_until_all_trials_were_made():
    one = searcher("name: random, max_trials: 5, max_concurrent_trials: 2")
    live = created(one.initial())
    assert len(live) == 2
    total = 2
    while live:
        actions = one.trial_exited(live.pop(0))
        live += created(actions)
        total += len(created(actions))
    assert total == 5
    assert actions == [Shutdown()]


def test_no_limit_starts_all_at_once():
    assert len(created(searcher("name: random, max_trials: 5, max_concurrent_trials: 0").initial())) == 5


def test_invalid_hyperparameters_are_replaced_and_do_not_count():
    one = searcher("name: random, max_trials: 2, max_concurrent_trials: 1")
    (first,) = created(one.initial())
    one.trial_created(first)
    assert one.trial_exited_early(first, ExitedReason.INVALID_HP) == []
    (second,) = created(one.trial_exited(first))
    one.trial_created(second)
    (third,) = created(one.trial_exited(second))
    one.trial_created(third)
    assert one.progress() == 0.5
    assert one.trial_exited(third) == [Shutdown()]


def test_single_samples_its_space_once():
    space = "hyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
    points = []
    for method in ("single", "random, max_trials: 1"):
        (create, *_) = searcher(f"name: {method}", space).initial()
        points.append(create.hparams["x"])
    assert points[0] == points[1]
    assert 0 <= points[0] <= 1


def test_single_is_not_replaced():
    one = searcher("name: single", "")
    (first,) = created(one.initial())
    one.trial_exited_early(first, ExitedReason.INVALID_HP)
    assert one.trial_exited(first) == [Shutdown()]


def test_search_whose_every_point_is_refused_ends_with_an_explanation():
    one = searcher("name: random, max_trials: 1")
    live = created(one.initial())
    for _ in range(100):
        one.trial_exited_early(live[-1], ExitedReason.INVALID_HP)
        actions = one.trial_exited(live[-1])
        live += created(actions)
        if not created(actions):
            break
    assert len(live) == 11
    assert actions[0].failure
    assert "hyperparameters" in actions[0].reason


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ([ExitedReason.ERRORED, ExitedReason.ERRORED], Shutdown(failure=True)),
        ([ExitedReason.ERRORED, None], Shutdown()),
        ([ExitedReason.USER_CANCELED, ExitedReason.USER_CANCELED], Shutdown(cancel=True)),
        ([ExitedReason.USER_CANCELED, ExitedReason.ERRORED], Shutdown()),
    ],
)
def test_end_of_the_search_tells_how_its_trials_ended(reasons, expected):
    one = searcher("name: random, max_trials: 2")
    last: list = []
    for trial, reason in zip(created(one.initial()), reasons, strict=True):
        if reason is not None:
            one.trial_exited_early(trial, reason)
        last = one.trial_exited(trial)
    assert last == [expected]


def test_second_early_exit_of_a_trial_is_ignored():
    one = searcher("name: single", "")
    (trial,) = created(one.initial())
    one.trial_exited_early(trial, ExitedReason.ERRORED)
    one.trial_exited_early(trial, ExitedReason.USER_CANCELED)
    assert one.trial_exited(trial) == [Shutdown(failure=True)]


def test_grid_runs_every_point_from_the_end():
    space = "hyperparameters: {a: {type: int, minval: 0, maxval: 2, count: 2}, b: {type: categorical, vals: [x, y]}}\n"
    one = searcher("name: grid, max_concurrent_trials: 1", space)
    actions, points = one.initial(), []
    while created(actions):
        (create,) = (action for action in actions if isinstance(action, Create))
        points.append((create.hparams["a"], create.hparams["b"]))
        actions = one.trial_exited(create.request_id)
    assert points == [(2, "y"), (2, "x"), (0, "y"), (0, "x")]


def test_progress_counts_closed_trials_in_full():
    one = searcher("name: random, max_trials: 4, max_concurrent_trials: 2, max_length: {batches: 100}")
    first, second = created(one.initial())
    one.trial_created(first)
    one.trial_created(second)
    one.trial_exited(first)
    one.progress_reported(second, 50)
    assert one.progress() == 0.375
    one.progress_reported(second, float("nan"))
    assert one.progress() == 0.375


def story(one: Searcher, snapshots: bool) -> list:
    """Play a search to its end, restored from its snapshot after every event or not."""

    def restored(old: Searcher) -> Searcher:
        if not snapshots:
            return old
        fresh = searcher("name: random, max_trials: 6, max_concurrent_trials: 2, max_length: {batches: 10}")
        fresh.restore(json.loads(json.dumps(old.snapshot())))
        return fresh

    actions = one.initial()
    told, live = list(actions), created(actions)
    count = 0
    while live:
        trial = live.pop(0)
        count += 1
        for event in (
            lambda one, trial=trial: one.trial_created(trial),
            lambda one, trial=trial: one.operation_completed(trial, 10, 0.5, {}),
            lambda one, trial=trial, count=count: (
                one.trial_exited_early(trial, ExitedReason.INVALID_HP) if count == 2 else []
            ),
            lambda one, trial=trial: one.trial_exited(trial),
        ):
            one = restored(one)
            actions = event(one)
            told += actions
            live += created(actions)
    return told


def test_search_restored_after_every_event_is_the_undisturbed_one():
    fields = "name: random, max_trials: 6, max_concurrent_trials: 2, max_length: {batches: 10}"
    assert story(searcher(fields), snapshots=True) == story(searcher(fields), snapshots=False)


def test_method_that_does_not_exist_here_is_named():
    config = load_experiment_config("entrypoint: a\nsearcher: {name: single, metric: m}\n").config
    object.__setattr__(config.searcher, "name", "luck")
    with pytest.raises(ConfigError, match="luck"):
        search.from_config(config)


def test_trial_that_is_reopened_is_waited_for_and_moves_the_method_no_more():
    one = searcher("name: random, max_trials: 3, max_concurrent_trials: 1")
    (first,) = created(one.initial())
    one.trial_exited_early(first, ExitedReason.ERRORED)
    (second,) = created(one.trial_exited(first))
    (third,) = created(one.trial_exited(second))
    assert one.trial_exited(third) == [Shutdown()]

    one.reopen([first])
    one.restore(json.loads(json.dumps(one.snapshot())))
    assert not one.is_over(first)
    assert one.validation_reported(first, 0.5, {"loss": 0.5}) == []
    assert one.trial_exited_early(first, ExitedReason.ERRORED) == []
    assert one.trial_exited(first) == [Shutdown()]
