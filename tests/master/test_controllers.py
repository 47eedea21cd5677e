"""One contract for both controllers: of experiments that the master runs, and of those that report from outside."""

from __future__ import annotations

import pytest

from det_keras.master.database.lookups import find_experiment, find_trial
from det_keras.master.errors import ApiError, FailedPreconditionError, InvalidArgumentError
from det_keras.master.experiments.reporting import controller_of
from det_keras.protocol import states
from master.fakes import eventually

CONFIG = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


@pytest.fixture(params=["managed", "unmanaged"])
def moved(request, world):
    """Return a function that calls ``action(controller, trial)`` and returns the states of experiment and trial."""
    client = world.client
    if request.param == "managed":
        experiment_id, trial, _ = world.launch(CONFIG)
    else:
        answer = client.post("/api/v1/experiments", {"config": CONFIG, "unmanaged": True})
        experiment_id = answer["experiment"]["id"]
        body = {"experimentId": experiment_id, "hparams": {}, "unmanaged": True}
        trial = client.post("/api/v1/trials", body)["trial"]
        client.post(f"/api/v1/trials/{trial['id']}/start", {"trialId": trial["id"], "resume": False})

    def move(action=lambda controller, trial: None):
        with world.master.store.writing() as tx:
            row = find_trial(tx, trial["id"])
            action(controller_of(tx, find_experiment(tx, experiment_id)), row)
        with world.master.store.reading() as session:
            return find_experiment(session, experiment_id).state, find_trial(session, trial["id"]).state

    move.world, move.kind = world, request.param
    return move


def ended(move):
    """End the experiment, with its processes."""
    move(lambda controller, _: controller.stop(states.STOPPING_KILLED))
    for allocation_id in list(move.world.pool.launched):
        move.world.pool.finish(allocation_id, 137)
    eventually(lambda: move()[0] in states.TERMINAL)
    return move()


def test_stopping_ends_experiment_and_trial(moved):
    assert ended(moved) == (states.CANCELED, states.CANCELED)


def test_what_is_over_stays_as_it_is(moved):
    over = ended(moved)
    assert moved(lambda controller, _: controller.stop(states.STOPPING_ERROR)) == over
    assert moved(lambda controller, trial: controller.stop_trial(trial, states.STOPPING_ERROR)) == over
    assert moved(lambda controller, trial: controller.progressed(trial, 0.5, is_fraction=True)) == over
    for move in (lambda controller, _: controller.activate(), lambda controller, _: controller.pause()):
        with pytest.raises(FailedPreconditionError):
            moved(move)
    assert moved() == over


def test_an_unknown_reason_for_an_early_exit_is_refused(moved):
    before = moved()
    with pytest.raises(InvalidArgumentError, match="must be one of EXITED_REASON_INVALID_HP"):
        moved(lambda controller, trial: controller.early_exit(trial, "EXITED_REASON_BORED"))
    assert moved() == before


def test_progress_stays_between_nothing_and_all(moved):
    for sent in (-1.0, 0.25, 7.0):
        moved(lambda controller, trial, sent=sent: controller.progressed(trial, sent, is_fraction=True))
        found = []
        moved(lambda _, trial, found=found: found.append(trial.progress))
        assert found == [min(1.0, max(0.0, sent))]


def test_a_length_that_was_not_given_cannot_be_completed(moved):
    def complete(controller, trial):
        operation = controller.operation(trial)
        controller.operation_completed(trial, 10**9 if operation is None else operation.length + 1, 0.5, {})

    with pytest.raises(ApiError):
        moved(complete)


def test_a_validation_leaves_a_running_trial_running(moved):
    before = moved()
    assert moved(lambda controller, trial: controller.validated(trial, {"loss": 0.5})) == before
