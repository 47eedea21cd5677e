"""Searches that their users change while they run, through the master."""

from __future__ import annotations

import pytest

from det_keras.master.database.lookups import find_experiment
from det_keras.master.experiments.search_state import read_searcher
from master.fakes import FakePool, eventually
from master.test_search import PROMOTION, RANDOM, Trials

GRID = """\
entrypoint: python3 train.py
hyperparameters: {width: {type: int, minval: 1, maxval: 8, count: 8}, name: {type: categorical, vals: [a, b]}}
searcher: {name: grid, metric: loss, max_concurrent_trials: 2}
"""


def refused(world, path: str, body: object, status: int = 400) -> str:
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.post(f"/api/v1{path}", json=body, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()["error"]["error"]


def test_added_trial_runs_beside_those_of_the_search(world):
    trials = Trials(world, RANDOM)
    path = f"/api/v1/experiments/{trials.experiment_id}/trials"
    answer = world.client.post(path, {"hparams": {"lr": 7.5}})
    assert answer["hparams"] == {"lr": 7.5}
    assert [trial["id"] for trial in world.client.trials(trials.experiment_id)][-1] == answer["trialId"]
    # The search has four trials, two at a time; the experiment ends when the fifth has ended too.
    for number in (1, 2, 4, 5):
        trials.report(number, 1, 0.5)
        trials.leave(number, acknowledge=False)
        trials.wait(number, "COMPLETED")
    assert world.client.experiment(trials.experiment_id)["state"] != "STATE_COMPLETED"
    trials.report(3, 1, 0.1)
    trials.leave(3, acknowledge=False)
    shown = trials.end("COMPLETED")
    assert shown["numTrials"] == 5
    assert shown["bestTrialId"] == answer["trialId"]


def test_extended_trial_of_halving_gets_its_length_and_another_takes_its_place(world):
    trials = Trials(world, PROMOTION)
    trials.run(1)
    assert trials.operation(1) == ("2", False)
    world.client.post(f"/api/v1/trials/{trials[1]['id']}/extend", {"length": 9})
    assert trials.operation(1) == ("9", False)
    # Another trial takes its place in the search; there is no slot for it yet.
    assert trials.state(3) == "QUEUED"
    trials.report(1, 9, 0.5)
    trials.leave(1, acknowledge=False)
    trials.wait(1, "COMPLETED")


def test_stopped_trial_has_completed_and_its_search_continues(world):
    trials = Trials(world, RANDOM)
    trials.report(1, 1, 0.5)
    world.client.post(f"/api/v1/trials/{trials[1]['id']}/stop")
    assert trials.is_asked_to_stop(1)
    trials.leave(1)
    trials.wait(1, "COMPLETED")
    trials.run(3)


def test_narrowed_search_draws_from_what_is_left_and_says_so(world):
    trials = Trials(world, GRID)
    path = f"/api/v1/experiments/{trials.experiment_id}/searcher"
    for number in (1, 2):
        trials.run(number)
    first = [trials[number]["hparams"] for number in (1, 2)]
    world.client.post(f"{path}/narrow", {"hyperparameters": {"width": [2, 4], "name": ["b"]}})
    shown = world.client.get(f"{path}/space")
    assert shown["narrowings"] == [{"width": [2, 4], "name": ["b"]}]
    assert shown["hyperparameters"]["width"] == {"type": "int", "minval": 2, "maxval": 4, "count": 8}
    for number in range(1, 6):
        trials.report(number, 1, 0.5)
        trials.leave(number, acknowledge=False)
    trials.end("COMPLETED")
    found = [trial["hparams"] for trial in world.client.trials(trials.experiment_id)]
    assert found == [*first, *({"width": width, "name": "b"} for width in (4, 3, 2))]


WIDE = RANDOM.replace("max_concurrent_trials: 2", "max_concurrent_trials: 4")


def test_waiting_trials_outside_are_replaced_also_by_a_master_that_starts_again(make_world):
    pool = FakePool()
    world = make_world(pool)
    trials = Trials(world, WIDE)
    path = f"/api/v1/experiments/{trials.experiment_id}"
    for number in (1, 2):
        trials.run(number)
    added = world.client.post(f"{path}/trials", {"hparams": {"lr": 0.9}})["trialId"]
    drawn = [trials[number]["hparams"]["lr"] for number in (1, 2, 3, 4)]
    # One of the two that wait stays.
    low, high = sorted(drawn[2:])
    kept, gone = (3, 4) if drawn[2] == high else (4, 3)
    space = {"lr": [(low + high) / 2, (low + high) / 2 + 0.05 if high < 0.5 else 1.0]}
    assert space["lr"][0] <= high <= space["lr"][1]
    world.client.post(f"{path}/searcher/narrow", {"hyperparameters": space})
    assert trials.state(gone) == "CANCELED"
    assert "narrowed" in trials.log(gone)
    assert trials.state(kept) == trials.state(5) == trials.state(6) == "QUEUED"
    replacement = trials[6]["hparams"]["lr"]
    assert space["lr"][0] <= replacement <= space["lr"][1]
    with world.master.store.reading() as session:
        stored = read_searcher(session, find_experiment(session, trials.experiment_id)).snapshot()
    with world.master.store.writing() as tx:
        assert tx.take(("search", trials.experiment_id)).searcher.snapshot() == stored
    make_world.stop()
    world = make_world(pool)
    trials.world, trials.client = world, world.client
    for number in (1, 2, kept, 5, 6):
        trials.report(number, 1, 0.5)
        trials.leave(number, acknowledge=False)
        trials.wait(number, "COMPLETED")
    trials.end("COMPLETED")
    found = world.client.trials(trials.experiment_id)
    assert [trial["id"] for trial in found if trial["state"] == "STATE_CANCELED"] == [trials[gone]["id"]]
    assert len(found) == 6
    assert found[4]["id"] == added


def test_state_in_the_database_is_that_in_memory(world):
    trials = Trials(world, PROMOTION)
    for number in (1, 2):
        trials.run(number)
    path = f"/api/v1/experiments/{trials.experiment_id}"
    world.client.post(f"{path}/trials", {"hparams": {"lr": 0.25}})
    world.client.post(f"{path}/searcher/narrow", {"hyperparameters": {"lr": [0.1, 0.2]}})
    world.client.post(f"/api/v1/trials/{trials[2]['id']}/extend", {"length": 9})
    with world.master.store.reading() as session:
        stored = read_searcher(session, find_experiment(session, trials.experiment_id)).snapshot()
    with world.master.store.writing() as tx:
        kept = tx.take(("search", trials.experiment_id))
        assert kept.searcher.snapshot() == stored


def test_what_is_impossible_is_refused_with_its_reason(world):
    trials = Trials(world, RANDOM)
    path = f"/experiments/{trials.experiment_id}"
    assert "lr: is missing" in refused(world, f"{path}/trials", {"hparams": {}})
    assert "must be a number" in refused(world, f"{path}/trials", {"hparams": {"lr": "fast"}})
    assert "Did you mean `lr`" in refused(
        world, f"{path}/searcher/narrow", {"hyperparameters": {"lrr": [0, 1]}}
    )
    assert "leaves nothing" in refused(world, f"{path}/searcher/narrow", {"hyperparameters": {"lr": [2, 3]}})
    assert "script decides" in refused(world, f"/trials/{trials[1]['id']}/extend", {"length": 9})
    assert "length" in refused(world, f"/trials/{trials[1]['id']}/extend", {"length": 0})
    # Nothing of it has harmed the search.
    assert world.client.experiment(trials.experiment_id)["state"] in ("STATE_ACTIVE", "STATE_RUNNING")
    world.client.move(trials.experiment_id, "kill")
    trials.end("CANCELED")
    for place, body in (
        (f"{path}/trials", {"hparams": {"lr": 1}}),
        (f"/trials/{trials[1]['id']}/extend", {"length": 9}),
    ):
        assert "has ended" in refused(world, place, body)


def test_trial_that_was_added_to_a_paused_search_waits(world):
    experiment_id = world.client.create(RANDOM, activate=False)
    trial = world.client.post(f"/api/v1/experiments/{experiment_id}/trials", {"hparams": {"lr": 0.5}})[
        "trialId"
    ]
    assert world.client.get(f"/api/v1/trials/{trial}")["trial"]["state"] == "STATE_PAUSED"
    world.client.move(experiment_id, "activate")
    eventually(lambda: world.client.get(f"/api/v1/trials/{trial}")["trial"]["state"] != "STATE_PAUSED")


@pytest.mark.parametrize("place", ["/trials/999/stop", "/experiments/999/searcher/narrow"])
def test_unknown_numbers_are_not_found(world, place):
    assert "999" in refused(world, place, {"hyperparameters": {}}, 404)
