"""Searches whose master is killed again and again: every trial runs as it would have, and once at a time."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from amount import AMOUNT
from database.server import rows_of
from sqlalchemy import text

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.search import ExitedReason
from det_keras.search.simulate import SimulatedExit, SimulatedTrial, simulate
from master.fakes import file_entry

pytestmark = [pytest.mark.process, pytest.mark.kill]

KILLS = {"random": 4, "adaptive_asha": 12} if AMOUNT == "all" else {"random": 2, "adaptive_asha": 6}
TRIALS = 30
PRELUDE = Path(__file__).with_name("trial_script.py").read_bytes()
# What a trial does is decided by its hyperparameter: refuse it, fail, or train.
SCRIPT = """
import math
x = json.loads(os.environ["DET_HPARAMS"])["x"]
root = pathlib.Path(ROOT)
mark = root / f"running-{TRIAL_ID}"
try:
    mark.touch(exist_ok=False)
except FileExistsError:
    (root / f"doubled-{TRIAL_ID}").touch()
try:
    if x < 0.08:
        call("POST", f"/api/v1/trials/{TRIAL_ID}/early_exit", {"reason": "EXITED_REASON_INVALID_HP"})
    elif x < 0.2:
        sys.exit(1)
    else:
        for epoch in range(1, 5):
            time.sleep(0.05)
            report("validation", epoch, loss=(x - 0.5) ** 2 + 1 / epoch, epochs=epoch)
            if should_stop():
                acknowledge()
                break
finally:
    mark.unlink()
"""
CONFIG = (
    "entrypoint: [python3, train.py]\nmax_restarts: 1\nreproducibility: {experiment_seed: 5}\n"
    "hyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
)
METHODS = {
    "random": f"searcher: {{name: random, metric: loss, max_trials: {TRIALS}, max_concurrent_trials: 3}}\n",
    "adaptive_asha": (
        f"searcher: {{name: adaptive_asha, metric: loss, max_trials: {TRIALS}, max_concurrent_trials: 3, "
        "time_metric: epochs, max_time: 4, divisor: 2}\n"
    ),
}


def undisturbed(config: str) -> Counter[tuple[float, str, int]]:
    """Return hyperparameter, final state and restarts of every trial of the search that nobody interrupts."""

    def behave(trial: SimulatedTrial, epoch: int) -> float:
        x = trial.hparams["x"]
        if x < 0.2:
            raise SimulatedExit(ExitedReason.INVALID_HP if x < 0.08 else ExitedReason.ERRORED)
        return (x - 0.5) ** 2 + 1 / epoch

    outcome = simulate(
        search.from_config(load_experiment_config(config).config), behave, slots=2, full_length=4
    )
    failed = ExitedReason.ERRORED
    return Counter(
        (trial.hparams["x"], "ERROR" if trial.reason is failed else "COMPLETED", int(trial.reason is failed))
        for trial in outcome.trials
    )


def kill(real) -> None:
    """Kill the master, and start it again."""
    process = psutil.Process(real.running.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(60)
    real.http.close()
    real.start()


@pytest.mark.parametrize("method", METHODS)
def test_search_whose_master_is_killed_anywhere_is_the_undisturbed_one(real, method):
    chance = random.Random(method)
    config = CONFIG + METHODS[method] + real.own_variables
    files = [file_entry("train.py", PRELUDE + SCRIPT.encode())]
    experiment_id = real.client.create(config, modelDefinition=files)
    for _ in range(KILLS[method]):
        # Nothing can be waited for: any moment may be the one that breaks something.
        time.sleep(chance.uniform(0.0, 0.4))
        assert real.client.experiment(experiment_id)["endTime"] is None, "Too late to be of interest."
        kill(real)
    real.client.wait_for_state(experiment_id, "COMPLETED", 120)

    trials = real.client.get(f"/api/v1/experiments/{experiment_id}/trials", params={"limit": 1000})["trials"]
    found = Counter(
        (one["hparams"]["x"], one["state"].removeprefix("STATE_"), one["restarts"]) for one in trials
    )
    assert found == undisturbed(config)
    assert not list(real.home.root.glob("doubled-*"))
    assert not list(real.home.root.glob("running-*"))
    with rows_of(real.home) as connection:
        assert connection.scalar(text("SELECT count(*) FROM allocations WHERE end_time IS NULL")) == 0
    both_slots = (
        CONFIG
        + "resources: {slots_per_trial: 2}\n"
        + METHODS["random"].replace(f"max_trials: {TRIALS}", "max_trials: 1")
    )
    real.client.wait_for_state(
        real.client.create(
            both_slots.replace("x: {type: double, minval: 0, maxval: 1}", "x: 0.9"), modelDefinition=files
        ),
        "COMPLETED",
        30,
    )
