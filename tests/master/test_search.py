"""Searches through the master: what trials report, and what becomes of them."""

from __future__ import annotations

import pytest

from det_keras.search.halving import HalvingSearch
from master.fakes import SINGLE, Client, FakePool, eventually

# Two rungs, at 2 and 4 epochs; every second trial moves up.
ASHA = (
    "entrypoint: python3 train.py\nmax_restarts: 0\nreproducibility: {experiment_seed: 1}\n"
    "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
    "searcher: {name: async_halving, num_rungs: 2, divisor: 2, metric: loss, max_trials: 4,"
    " max_concurrent_trials: 2, LENGTH}\n"
)
STOPPING = ASHA.replace("LENGTH", "time_metric: epochs, max_time: 4")
PROMOTION = ASHA.replace("LENGTH", "max_length: {epochs: 4}")
RANDOM = ASHA.replace("async_halving, num_rungs: 2, divisor: 2", "random").replace(", LENGTH", "")


class Trials:
    """The trials of an experiment, steered by number: 1 for its first."""

    def __init__(self, world, config: str) -> None:
        self.world = world
        self.client: Client = world.client
        self.experiment_id = world.client.create(config)

    def __getitem__(self, number: int):
        return eventually(
            lambda: (
                (found := self.client.trials(self.experiment_id))
                and len(found) >= number
                and found[number - 1]
            )
        )

    def state(self, number: int) -> str:
        return self[number]["state"].removeprefix("STATE_")

    def run(self, number: int, run_id: int = 1) -> str:
        """Return a run's allocation once it was launched."""
        return self.world.wait_for_launch(self[number], run_id)

    def report(self, number: int, epochs: float, loss: object, run_id: int = 1, **more: object) -> None:
        self.run(number, run_id)
        metrics = {"epochs": epochs, "loss": loss, **more}
        self.client.report(self[number]["id"], "validation", int(epochs * 10), metrics, run_id=run_id)

    def operation(self, number: int) -> tuple[str, bool]:
        answer = self.client.get(f"/api/v1/trials/{self[number]['id']}/searcher/operation")
        return answer["op"]["validateAfter"]["length"], answer["completed"]

    def complete(self, number: int, length: int, loss: float) -> None:
        body = {"op": {"length": length}, "searcherMetric": loss}
        self.client.post(f"/api/v1/trials/{self[number]['id']}/searcher/completed_operation", body)

    def is_asked_to_stop(self, number: int, run_id: int = 1) -> bool:
        path = f"/api/v1/allocations/{self.run(number, run_id)}/signals/preemption"
        return self.client.get(path, params={"timeout_seconds": 0})["preempt"]

    def leave(self, number: int, run_id: int = 1, code: int = 0, *, acknowledge: bool = True) -> None:
        allocation = self.run(number, run_id)
        if acknowledge:
            self.client.post(f"/api/v1/allocations/{allocation}/signals/ack_preemption")
        self.world.pool.finish(allocation, code)

    def wait(self, number: int, state: str) -> None:
        eventually(lambda: self.state(number) == state)

    def end(self, state: str):
        return self.client.wait_for_state(self.experiment_id, state)

    def log(self, number: int) -> str:
        return "\n".join(line["message"] for line in self.client.log(self[number]["id"]))


def test_trial_that_falls_behind_is_stopped_and_another_starts(world):
    trials = Trials(world, STOPPING)
    trials.report(1, 2, 0.1)
    assert not trials.is_asked_to_stop(1)
    trials.report(2, 2, 0.2)
    assert trials.is_asked_to_stop(2)
    assert trials.state(2) == "STOPPING_COMPLETED"
    trials.leave(2)
    trials.wait(2, "COMPLETED")
    trials.report(3, 1, 0.9)
    assert not trials.is_asked_to_stop(3)


def test_search_that_stops_ends_with_every_trial_completed(world):
    trials = Trials(world, STOPPING)
    for number in (1, 2, 3, 4):
        trials.report(number, 2, number / 10)
        if number == 1:
            continue
        trials.leave(number)
    trials.report(1, 4, 0.1)
    assert trials.is_asked_to_stop(1)
    trials.leave(1)
    trials.end("COMPLETED")
    assert [trials.state(number) for number in (1, 2, 3, 4)] == ["COMPLETED"] * 4


def test_trial_waits_for_its_promotion_without_a_slot_and_goes_on_from_there(world):
    trials = Trials(world, PROMOTION)
    assert trials.operation(1) == ("2", False)
    trials.run(2)
    trials.complete(1, 2, 0.1)
    assert trials.operation(1) == ("2", True)
    trials.leave(1)
    trials.wait(1, "QUEUED")
    # The third has its slot.
    trials.run(3)
    trials.complete(2, 2, 0.2)
    assert trials.operation(1) == ("4", False)
    trials.leave(2)
    trials.run(1, 2)
    assert trials[1]["restarts"] == 0


def test_script_that_stops_at_its_length_waits_even_if_it_does_not_acknowledge(world):
    trials = Trials(world, PROMOTION)
    trials.report(1, 1, 0.5)
    trials.report(1, 2, 0.1)
    trials.leave(1, acknowledge=False)
    trials.wait(1, "QUEUED")
    trials.run(2)
    trials.complete(2, 2, 0.2)
    trials.leave(2, acknowledge=False)
    trials.run(1, 2)
    # It never gets to the longer length: that must not go round forever.
    trials.leave(1, 2, acknowledge=False)
    trials.wait(1, "COMPLETED")


def test_promoted_trial_that_still_runs_goes_on_in_the_same_process(world):
    trials = Trials(world, PROMOTION)
    trials.run(1)
    trials.run(2)
    trials.complete(1, 2, 0.2)
    trials.complete(2, 2, 0.1)
    assert trials.operation(2) == ("4", False)
    trials.complete(2, 4, 0.1)
    assert trials.operation(2) == ("4", True)


def test_trial_of_a_canceled_search_is_given_no_length_again(world):
    trials = Trials(world, PROMOTION)
    trials.run(1)
    assert trials.operation(1) == ("2", False)
    world.client.move(trials.experiment_id, "cancel")
    trials.complete(1, 2, 0.1)
    assert trials.operation(1) == ("2", True)
    trials.leave(1)
    trials.wait(1, "CANCELED")


def test_search_that_promotes_closes_those_that_wait_in_the_end(world):
    trials = Trials(world, PROMOTION)
    for number in (1, 2, 3, 4):
        trials.run(number)
        trials.complete(number, 2, number / 10)
        trials.leave(number)
    trials.run(1, 2)
    trials.complete(1, 4, 0.1)
    trials.leave(1, 2)
    trials.run(2, 2)
    assert trials.state(4) == "COMPLETED"
    trials.complete(2, 4, 0.2)
    trials.leave(2, 2)
    trials.end("COMPLETED")
    assert [trials.state(number) for number in (1, 2, 3, 4)] == ["COMPLETED"] * 4


def test_trials_that_are_closed_together_end_in_parts_also_after_a_restart(make_world, monkeypatch):
    for module in ("trial_rows", "controller"):
        monkeypatch.setattr(f"det_keras.master.experiments.{module}.MOST_ENDED", 1)
    pool = FakePool(8)
    world = make_world(pool)
    config = PROMOTION.replace("max_trials: 4", "max_trials: 8").replace("trials: 2", "trials: 8")
    trials = Trials(world, config)
    for number in range(1, 9):
        trials.run(number)
        trials.complete(number, 2, number / 10)
        if number in (5, 6, 7):
            trials.leave(number)
            eventually(lambda number=number: trials[number]["runnerState"] == "")
        if number == 7:
            world.master.settler.stop()
    # The last of the first rung closes 5 to 8; the last has a process still.
    assert [trials.state(number) == "COMPLETED" for number in (5, 6, 7, 8)] == [True, False, False, False]
    make_world.stop()
    trials.world = make_world(pool)
    trials.client = trials.world.client
    for number in (6, 7):
        trials.wait(number, "COMPLETED")
    trials.leave(8)
    for number in (1, 2, 3, 4):
        trials.complete(number, 4, number / 10)
        trials.leave(number)
    trials.end("COMPLETED")
    assert [trials.state(number) for number in range(1, 9)] == ["COMPLETED"] * 8


def test_validation_answers_a_script_that_asks_for_no_length_and_one_that_runs_on_is_stopped(world):
    trials = Trials(world, PROMOTION)
    trials.report(1, 1, 0.5)
    assert trials.operation(1) == ("2", False)
    trials.report(1, 2, 0.4)
    assert trials.operation(1) == ("2", True)
    assert not trials.is_asked_to_stop(1)
    trials.report(1, 3, 0.3)
    assert trials.is_asked_to_stop(1)
    # The same report once more, late, is no running on.
    trials.report(2, 2, 0.5)
    trials.client.report(trials[2]["id"], "validation", 20, {"epochs": 2, "loss": 0.5, "more": 1})
    assert not trials.is_asked_to_stop(2)


def test_script_that_came_to_its_end_answers_later_rungs_by_what_it_recorded(world):
    trials = Trials(world, PROMOTION)
    trials.run(2)
    for epoch in (1, 2, 3, 4):
        trials.report(1, epoch, 1 / epoch)
    trials.leave(1, acknowledge=False)
    trials.wait(1, "COMPLETED")
    # Its promotion is decided now, and answered at once: the next work is a new trial.
    trials.complete(2, 2, 0.9)
    trials.leave(2)
    trials.run(3)
    trials.run(4)
    trials.complete(3, 2, 0.95)
    trials.complete(4, 2, 0.97)
    trials.leave(3)
    trials.leave(4)
    trials.run(2, 2)
    trials.complete(2, 4, 0.5)
    trials.leave(2, 2)
    trials.end("COMPLETED")
    assert world.client.trial(trials[1]["id"])["searcherMetricValue"] == 0.25


def test_script_that_ends_short_of_its_length_takes_the_last_place(world):
    trials = Trials(world, PROMOTION)
    trials.report(1, 1, 0.01)
    trials.leave(1, acknowledge=False)
    trials.wait(1, "COMPLETED")
    trials.run(2)
    trials.complete(2, 2, 0.9)
    assert trials.operation(2) == ("4", False)


@pytest.mark.parametrize("config", [STOPPING, RANDOM], ids=["halving", "random"])
def test_metric_that_is_never_reported_ends_in_an_error_that_lists_what_was(world, config):
    trials = Trials(world, config)
    for number in (1, 2, 3, 4):
        trials.run(number)
        world.client.report(trials[number]["id"], "validation", 10, {"epochs": 1, "val_loss": 0.5})
    trials.end("ERROR")
    hint = "(it has one under `val_loss`: set `searcher.metric: val_loss`)"
    assert f"`loss` {hint}; the reported metrics are `epochs`, `val_loss`" in trials.log(1)


@pytest.mark.parametrize("metrics", [{"loss": 0.5}, {"loss": 0.5, "epochs": "NaN"}], ids=["none", "NaN"])
def test_time_metric_that_is_no_number_ends_the_trial_and_not_the_search(world, metrics):
    trials = Trials(world, STOPPING)
    trials.run(1)
    world.client.report(trials[1]["id"], "validation", 10, metrics)
    trials.wait(1, "ERROR")
    assert "time metric `epochs`; the reported metrics are `loss`" in trials.log(1)
    trials.report(2, 2, 0.5)
    assert trials.state(2) == "RUNNING"


def test_one_trial_without_the_metric_is_only_told(world):
    experiment_id, trial, allocation = world.launch(SINGLE)
    world.client.report(trial["id"], "validation", 10, {"accuracy": 0.5})
    world.pool.finish(allocation)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    assert "the reported metrics are `accuracy`" in "\n".join(
        line["message"] for line in world.client.log(trial["id"])
    )


def test_diverged_trial_ranks_last_and_is_told_once(world):
    trials = Trials(world, STOPPING)
    trials.report(1, 1, "NaN")
    trials.report(1, 2, "NaN")
    assert trials.log(1).count("ranks after every number") == 1
    trials.report(2, 2, 1e9)
    assert not trials.is_asked_to_stop(2)
    trials.report(1, 3, "-Infinity")
    assert world.client.experiment(trials.experiment_id)["bestTrialSearcherMetric"] == 1e9
    # It reported something, so that its end is not an error.
    trials.leave(1, acknowledge=False)
    trials.wait(1, "COMPLETED")


def test_trial_that_reports_nothing_at_all_fails_where_trials_are_compared(world):
    trials = Trials(world, STOPPING)
    trials.leave(1, acknowledge=False)
    trials.wait(1, "ERROR")


def test_script_that_fails_after_its_last_length_runs_again(world):
    config = SINGLE.replace("metric: loss", "metric: loss, max_length: {batches: 10}")
    trials = Trials(world, config)
    trials.run(1)
    trials.complete(1, 10, 0.5)
    trials.leave(1, code=1, acknowledge=False)
    trials.run(1, 2)
    assert trials.operation(1) == ("10", True)
    trials.leave(1, 2)
    trials.end("COMPLETED")
    assert trials[1]["restarts"] == 1


@pytest.mark.parametrize("config", [STOPPING, PROMOTION], ids=["stopping", "promotion"])
def test_refused_hyperparameters_are_replaced(world, config):
    trials = Trials(world, config)
    trials.run(1)
    path = f"/api/v1/trials/{trials[1]['id']}/early_exit"
    world.client.post(path, {"reason": "EXITED_REASON_INVALID_HP"})
    trials.leave(1, acknowledge=False)
    trials.wait(1, "COMPLETED")
    trials.run(3)
    assert trials.state(2) == "RUNNING"


@pytest.mark.parametrize("config", [STOPPING, PROMOTION], ids=["stopping", "promotion"])
def test_failed_trial_makes_room_and_the_search_goes_on(world, config):
    trials = Trials(world, config)
    trials.leave(1, code=1, acknowledge=False)
    trials.wait(1, "ERROR")
    trials.run(3)
    assert world.client.experiment(trials.experiment_id)["state"] == "STATE_RUNNING"


@pytest.mark.parametrize("config", [STOPPING, PROMOTION], ids=["stopping", "promotion"])
def test_error_in_a_search_method_ends_only_its_experiment(world, config, monkeypatch):
    trials, other = Trials(world, config), Trials(world, SINGLE)
    trials.run(1)

    def fail(*args):
        raise ValueError("an error of the method")

    with monkeypatch.context() as patch:
        patch.setattr(HalvingSearch, "validation_completed", fail)
        if config == STOPPING:
            trials.report(1, 2, 0.5)
        else:
            trials.complete(1, 2, 0.5)
    for number in (1, 2):
        trials.leave(number, acknowledge=False)
    trials.end("ERROR")
    other.leave(1, acknowledge=False)
    other.end("COMPLETED")


@pytest.mark.parametrize("config", [STOPPING, PROMOTION], ids=["stopping", "promotion"])
def test_search_whose_every_trial_fails_is_an_error(world, config):
    trials = Trials(world, config)
    for number in (1, 2, 3, 4):
        trials.leave(number, code=1, acknowledge=False)
    trials.end("ERROR")
    assert len(world.client.trials(trials.experiment_id)) == 4


def test_restarts_leave_the_search_alone(world):
    trials = Trials(world, STOPPING.replace("max_restarts: 0", "max_restarts: 1"))
    trials.report(1, 2, 0.1)
    trials.leave(1, code=1, acknowledge=False)
    trials.run(1, 2)
    # It repeats the validation at the rung that it passed already.
    trials.report(1, 2, 0.1, run_id=2)
    trials.report(1, 4, 0.1, run_id=2)
    assert trials.is_asked_to_stop(1, 2)
    assert len(world.client.trials(trials.experiment_id)) == 3


def test_pause_and_activation_keep_those_who_wait_waiting(world):
    trials = Trials(world, PROMOTION)
    trials.run(2)
    trials.complete(1, 2, 0.5)
    trials.leave(1)
    trials.run(3)
    world.client.move(trials.experiment_id, "pause")
    trials.leave(2)
    trials.leave(3)
    world.client.wait_for_state(trials.experiment_id, "PAUSED")
    world.client.move(trials.experiment_id, "activate")
    trials.run(2, 2)
    trials.run(3, 2)
    assert trials.state(1) == "QUEUED"
    assert f"{trials[1]['taskId']}.2" not in world.pool.launched


def test_search_goes_on_from_the_database(make_world):
    from master.fakes import FakePool

    pool = FakePool()
    world = make_world(pool)
    trials = Trials(world, PROMOTION)
    trials.run(2)
    trials.complete(1, 2, 0.1)
    trials.leave(1)
    trials.run(3)
    make_world.stop()
    trials.world = make_world(pool)
    trials.client = trials.world.client
    trials.complete(2, 2, 0.2)
    trials.leave(2)
    trials.run(1, 2)


def test_preview_tells_rungs_and_one_simulated_run(client):
    searcher = {
        "name": "adaptive_asha",
        "metric": "m",
        "max_trials": 16,
        "time_metric": "epochs",
        "max_time": 64,
    }
    config = {"entrypoint": "a", "searcher": searcher}
    summary = client.post("/api/v1/preview-hp-search", {"config": config})["summary"]
    found = [(trials["count"], trials["unit"]["value"]) for trials in summary["trials"]]
    assert found == [(9, 4), (5, 16), (2, 64)]
    assert {(trials["unit"]["name"], trials["unit"]["maxLength"]) for trials in summary["trials"]} == {
        ("epochs", False)
    }
    simulation = summary["simulation"]
    assert sum(trials["count"] for trials in simulation["trials"]) == 16
    assert simulation["mostAtOnce"] == 2
    assert 16 * 4 <= simulation["totalLength"] <= 16 * 64


GANG = "entrypoint: a\nsearcher: {name: single, metric: loss}\nresources: {slots_per_trial: 2}\n"


def test_gang_lends_its_slots_once_and_then_gets_them(world):
    small = Trials(world, RANDOM.replace("max_trials: 4", "max_trials: 20"))
    first, second = small.run(1), small.run(2)
    gang = Trials(world, GANG)
    gang.wait(1, "QUEUED")
    world.pool.finish(first)
    third = small.run(3)
    world.pool.finish(third)
    fourth = small.run(4)
    world.pool.finish(fourth)
    small.wait(4, "COMPLETED")
    world.pool.finish(second)
    gang.run(1)
    small.wait(5, "QUEUED")


def test_smaller_priority_starts_first_and_can_be_changed_while_it_waits(world):
    busy = Trials(world, GANG)
    running = busy.run(1)
    normal = Trials(world, GANG)
    urgent = Trials(world, GANG)
    path = f"/api/v1/experiments/{urgent.experiment_id}"
    world.client.call("PATCH", path, {"resources": {"priority": 1}})
    world.pool.finish(running)
    urgent.run(1)
    assert normal.state(1) == "QUEUED"


def test_max_slots_bounds_what_an_experiment_uses_at_once(world):
    trials = Trials(world, RANDOM + "resources: {max_slots: 1}\n")
    first = trials.run(1)
    other = Trials(world, SINGLE)
    other.run(1)
    assert trials.state(2) == "QUEUED"
    world.pool.finish(first)
    trials.run(2)


@pytest.mark.parametrize("order", ["ASC", "DESC"])
def test_trials_are_sorted_by_their_metric_and_those_without_one_are_last(world, order):
    trials = Trials(world, RANDOM.replace("max_concurrent_trials: 2", "max_concurrent_trials: 3"))
    for number, loss in ((1, 0.5), (2, 0.25)):
        trials.report(number, 1, loss)
    params = {"sortBy": "SORT_BY_BEST_VALIDATION_METRIC", "orderBy": f"ORDER_BY_{order}"}
    found = world.client.get(f"/api/v1/experiments/{trials.experiment_id}/trials", params=params)["trials"]
    expected = [0.25, 0.5] if order == "ASC" else [0.5, 0.25]
    assert [trial["searcherMetricValue"] for trial in found] == [*expected, None]
