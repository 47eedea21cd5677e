"""What a search costs: its decisions, its trials through the real master, and what it finds."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import httpx
from measure import report

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.home import Home
from det_keras.master import process
from det_keras.search.simulate import Objective, Outcome, SimulatedTrial, simulate

SLOTS = 2
TRIALS = 200
SPACE = """hyperparameters:
  learning_rate: {type: log, base: 10, minval: -4, maxval: -1}
  dropout: {type: double, minval: 0, maxval: 0.5}
  filters: {type: int, minval: 8, maxval: 48}
  optimizer: {type: categorical, vals: [adam, sgd, rmsprop]}
"""
PROMOTION = "name: adaptive_asha, max_length: {epochs: 64}"
STOPPING = "name: adaptive_asha, time_metric: epochs, max_time: 64"


def searcher(fields: str, seed: int = 0) -> search.Searcher:
    """Return the searcher of a config with these fields."""
    text = f"entrypoint: a\n{SPACE}reproducibility: {{experiment_seed: {seed}}}\nsearcher: {{metric: loss, {fields}}}\n"
    return search.from_config(load_experiment_config(text).config)


def loss(trial: SimulatedTrial, epochs: int) -> float:
    """Return a made-up validation loss, with noise, shaped after the example on digits.

    There the learning rates that end best also learn fastest, `adam` and `rmsprop` leave `sgd` behind, and the
    rest matters less.
    """
    point, chance = trial.hparams, random.Random(f"{trial.seed} {epochs}")
    distance = (math.log10(point["learning_rate"]) + 2.0) ** 2
    bowl = 0.05 * distance + 0.5 * (point["dropout"] - 0.2) ** 2 + 0.00005 * (point["filters"] - 40) ** 2
    floor = 0.05 + bowl + {"adam": 0.0, "rmsprop": 0.02, "sgd": 0.1}[point["optimizer"]]
    pace = (
        0.02 + 0.3 * math.exp(-0.8 * distance) * {"adam": 1.0, "rmsprop": 0.8, "sgd": 0.4}[point["optimizer"]]
    )
    return floor + 2.2 * math.exp(-pace * epochs) + chance.gauss(0.0, 0.005)


def slow_starters(trial: SimulatedTrial, epochs: int) -> float:
    """Return a made-up loss of which the smaller learning rates, which learn more slowly, end better."""
    point, chance = trial.hparams, random.Random(f"{trial.seed} {epochs}")
    rate = math.log10(point["learning_rate"]) + 2.5
    floor = 0.1 + 0.08 * rate**2 + {"adam": 0.0, "rmsprop": 0.03, "sgd": 0.12}[point["optimizer"]]
    return floor + 2.0 * math.exp(-0.08 * 10 ** (0.35 * rate) * epochs) + chance.gauss(0.0, 0.005)


def decisions() -> None:
    """Time decisions at a thousand and at ten thousand trials."""
    for name, fields in (("promoting", PROMOTION), ("stopping", STOPPING)):
        costs: dict[int, list[float]] = {1000: [], 10_000: []}
        for seed in range(5):
            for trials, turns in costs.items():
                one = searcher(f"{fields}, max_trials: {trials}, max_concurrent_trials: 16", seed)
                # Of this process alone: others may keep the machine busy.
                started = time.process_time()
                outcome = simulate(one, loss)
                turns.append((time.process_time() - started) / outcome.decisions)
        small, large = (statistics.median(turns) for turns in costs.values())
        report(
            f"a decision at 10,000 trials / at 1,000, {name}", large / small,
            goal=round(math.log(10_000) / math.log(1000), 2),
            detail=f"{1 / large:,.0f} decisions a second at 10,000 trials, the simulator included",
        )  # fmt: skip


def findings() -> None:
    """Compare what 16 trials of adaptive search find with random search at the same number of epochs."""
    compare("promoting", PROMOTION, loss, goal=1.0)
    compare("stopping", STOPPING, loss, goal=1.0)
    # Where early results mislead, halving drops the best: no goal, but worth knowing.
    compare("stopping, slow starters", STOPPING, slow_starters)


def compare(name: str, fields: str, objective: Objective, goal: float | None = None) -> None:
    """Compare the best of an adaptive search and of a random search that trains as many epochs, over 5 seeds."""
    adaptive, chance, epochs = [], [], []
    for seed in range(5):
        outcome = simulate(searcher(f"{fields}, max_trials: 16", seed), objective, slots=SLOTS)
        as_many = max(1, round(outcome.total_length / 64))
        drawn = simulate(
            searcher(f"name: random, max_trials: {as_many}", seed + 100), objective, full_length=64
        )
        adaptive.append(best(outcome))
        chance.append(best(drawn))
        epochs.append(outcome.total_length)
    median = statistics.median(chance)
    report(
        f"best loss of adaptive_asha / random, {name}", statistics.median(adaptive) / median,
        goal=goal,
        detail=f"medians of 5 seeds: {statistics.median(adaptive):.3f} and {median:.3f} at "
        f"{statistics.median(epochs)} epochs; {sum(one < median for one in adaptive)} of 5 beat random's median",
    )  # fmt: skip


def best(outcome: Outcome) -> float:
    """Return the best loss of a search."""
    found = outcome.best()
    assert found is not None
    return found


SCRIPT = """
import time
begin = time.time()
import os, pathlib
name = os.environ["DET_TRIAL_ID"]
pathlib.Path(os.environ["DET_KERAS_HOME"], "times-" + name).write_text(f"{begin} {time.time()}")
"""


def run_experiment(home: Home, slots: int, trials: int) -> tuple[float, list[tuple[float, float]]]:
    """Run trivial trials through a real master; return the seconds it took, and when each began and ended."""
    running = process.start(home, slots=slots)
    try:
        headers = {"Authorization": f"Bearer {home.token_file.read_text()}"}
        with httpx.Client(base_url=running.url, headers=headers, timeout=60.0, trust_env=False) as client:
            config = (
                "entrypoint: [python3, train.py]\nhyperparameters: {x: {type: double, minval: 0, maxval: 1}}\n"
                f"searcher: {{name: random, metric: loss, max_trials: {trials}, max_concurrent_trials: {slots * 2}}}\n"
            )
            body = {"config": config, "modelDefinition": [entry("train.py", SCRIPT)]}
            answer = client.post("/api/v1/experiments", content=json.dumps(body)).raise_for_status().json()
            path = f"/api/v1/experiments/{answer['experiment']['id']}"
            while (found := client.get(path).json()["experiment"])["endTime"] is None:
                time.sleep(0.25)
        assert found["state"] == "STATE_COMPLETED", found["state"]
        seconds = (moment(found["endTime"]) - moment(found["startTime"])).total_seconds()
    finally:
        process.stop(home, kill_tasks=True)
    times = [tuple(map(float, one.read_text().split())) for one in home.root.glob("times-*")]
    return seconds, sorted((begin, end) for begin, end in times)


def moment(text: str) -> datetime:
    """Return a time of the REST API."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def entry(path: str, content: str) -> dict[str, object]:
    """Return a file as clients send it."""
    import base64

    encoded = base64.b64encode(content.encode()).decode()
    return {"path": path, "type": 48, "content": encoded, "mtime": "0", "mode": 33188, "uid": 0, "gid": 0}


def throughput() -> None:
    """Run 200 trivial trials through the master, and as processes through others that are installed."""
    with tempfile.TemporaryDirectory() as folder:
        ours, _ = run_experiment(Home(Path(folder)).create(), SLOTS, TRIALS)
    report(
        f"{TRIALS} trials of the master", ours, unit="s",
        goal=TRIALS / 10,
        detail=f"{TRIALS / ours:.1f} a second on {SLOTS} slots",
    )  # fmt: skip
    for name, module, run in (
        ("Optuna on SQLite, a process each", "optuna", optuna_processes),
        ("Optuna on SQLite, in its own process", "optuna", optuna_in_process),
        ("Ray Tune, random search", "ray", ray_tune),
    ):
        if importlib.util.find_spec(module) is None:
            print(f"{name}: not installed, not measured", file=sys.stderr)
            continue
        seconds = run()
        report(
            f"trials of {name}",
            TRIALS / seconds,
            unit="1/s",
            detail=f"{seconds / ours:.2f} of the time that the master takes",
        )


def optuna_processes() -> float:
    """Time as many trials of Optuna, each a Python process of its own, as ours are."""
    return optuna_study(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))


def optuna_in_process() -> float:
    """Time as many trials of Optuna that do nothing."""
    return optuna_study(lambda: None)


def optuna_study(work: Callable[[], object]) -> float:
    """Time a study of Optuna on SQLite."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> float:
        work()
        return trial.suggest_float("x", 0, 1)

    with tempfile.TemporaryDirectory() as folder:
        study = optuna.create_study(
            storage=f"sqlite:///{folder}/study.db", sampler=optuna.samplers.RandomSampler(seed=0)
        )
        started = time.perf_counter()
        study.optimize(objective, n_trials=TRIALS, n_jobs=SLOTS)
        return time.perf_counter() - started


def ray_tune() -> float:
    """Time as many trials of Ray Tune that do nothing, once it has started."""
    import ray
    from ray import tune

    ray.init(num_cpus=SLOTS, include_dashboard=False, logging_level="ERROR")
    try:
        tuner = tune.Tuner(
            lambda config: {"loss": config["x"]},
            param_space={"x": tune.uniform(0, 1)},
            tune_config=tune.TuneConfig(num_samples=TRIALS),
            run_config=tune.RunConfig(verbose=0),
        )
        started = time.perf_counter()
        tuner.fit()
        return time.perf_counter() - started
    finally:
        ray.shutdown()


def gap() -> None:
    """Measure how long a slot stands idle between two trials, without the start of Python itself."""
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder)).create()
        _, times = run_experiment(home, 1, 40)
        with sqlite3.connect(home.database) as database:
            assert database.execute("SELECT count(*) FROM allocations WHERE end_time IS NULL").fetchone() == (
                0,
            )
    starts = []
    for _ in range(20):
        started = time.time()
        printed = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time())"],
            capture_output=True,
            text=True,
            check=True,
        )
        starts.append(float(printed.stdout) - started)
    python = statistics.median(starts)
    gaps = [later[0] - earlier[1] for earlier, later in itertools.pairwise(times)]
    report(
        "gap between two trials on a slot, above Python's start", 1000 * (statistics.median(gaps) - python), unit="ms",
        goal=100,
        detail=f"from the last line of one to the first of the next {1000 * statistics.median(gaps):.0f} ms, of which "
        f"the start of Python is {1000 * python:.0f} ms; at most {1000 * max(gaps):.0f} ms",
    )  # fmt: skip


if __name__ == "__main__":
    decisions()
    findings()
    gap()
    throughput()
