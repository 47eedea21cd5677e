"""Trials on Ray: a launch beside a bare actor that runs the same script, and a search beside Ray Tune's.

The cluster is `ray.cluster_utils.Cluster`: a head without slots and two nodes of this machine. Ray Tune runs where it
is installed (`pip install "ray[tune]"`): the same function of the hyperparameter, the same number of trials and rungs,
as many at once, on the same cluster.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from ray_machines import Machines

from det_keras.connection.masters import open_session
from det_keras.connection.settings import Settings
from det_keras.home import Home
from det_keras.master import process
from det_keras.protocol.values import parse_timestamp

LAUNCHES, ROUNDS = 7, 3
TRIALS, EPOCHS, SLOTS = 32, 8, 4
# One unit of work: what an epoch of a small model takes.
EPOCH_S = 0.1

BARE = """
import sys
import time
import subprocess
import ray

class Bare:
    def run(self, argv):
        return subprocess.run(argv).returncode

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
for _ in range(int(sys.argv[3])):
    started = time.time()
    actor = ray.remote(Bare).options(num_cpus=1).remote()
    done = actor.run.remote([sys.executable, sys.argv[2]])
    ray.get(done)
    ray.kill(actor)
    print(started, flush=True)
"""
MARK = """
import os, sys, time
with open({path!r}, "a") as file:
    file.write(f"{{time.time()}}\\n")
"""
TRAIN = f"""
import time
from det_keras import core

with core.init() as context:
    lr = context.info.trial.hparams["lr"]
    for epoch in range(1, {EPOCHS} + 1):
        time.sleep({EPOCH_S})
        context.train.report_validation_metrics(epoch, {{"loss": (lr - 0.3) ** 2 + 1 / epoch, "epochs": epoch}})
        if context.preempt.should_preempt():
            break
"""
SEARCH = f"""
name: asha
entrypoint: python3 train.py
hyperparameters: {{lr: {{type: double, minval: 0, maxval: 1}}}}
reproducibility: {{experiment_seed: 1}}
searcher: {{name: async_halving, metric: loss, max_trials: {TRIALS}, max_concurrent_trials: {SLOTS},
  time_metric: epochs, max_time: {EPOCHS}, num_rungs: 4, divisor: 2}}
"""
TUNE = f"""
import sys, time
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler

def train(config):
    for epoch in range(1, {EPOCHS} + 1):
        time.sleep({EPOCH_S})
        tune.report({{"loss": (config["lr"] - 0.3) ** 2 + 1 / epoch}})

ray.init(sys.argv[1], log_to_driver=False, logging_level="ERROR")
started = time.time()
tuner = tune.Tuner(
    train,
    param_space={{"lr": tune.uniform(0, 1)}},
    tune_config=tune.TuneConfig(
        num_samples={TRIALS}, max_concurrent_trials={SLOTS}, metric="loss", mode="min",
        scheduler=ASHAScheduler(max_t={EPOCHS}, grace_period=1, reduction_factor=2),
    ),
    run_config=tune.RunConfig(verbose=0, storage_path=sys.argv[2]),
)
results = tuner.fit()
print(sum(result.metrics["training_iteration"] for result in results), time.time() - started)
"""


class Ours:
    """A master on the cluster."""

    def __init__(self, address: str, folder: Path) -> None:
        self.home = Home(folder / "home")
        self._folder = folder / "context"
        self._folder.mkdir()
        process.start(self.home, options=process.MasterOptions(ray=address))

    def run(self, config: str, script: str) -> float:
        """Run an experiment to its end; return how long it took, in seconds."""
        (self._folder / "train.py").write_text(script, encoding="utf-8")
        path = self._folder.parent / "config.yaml"
        path.write_text(config, encoding="utf-8")
        started = time.time()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "det_keras.cli",
                "experiment",
                "create",
                str(path),
                str(self._folder),
                "--follow",
            ],
            check=True,
            env={**os.environ, "DET_KERAS_HOME": str(self.home.root)},
            stdout=subprocess.DEVNULL,
        )
        return time.time() - started

    def epochs_of_newest(self) -> int:
        """Return the number of epochs that the trials of the newest experiment trained."""
        with open_session(Settings(self.home)) as session:
            newest = max(item["id"] for item in session.api.experiments.all())
            return sum(trial["totalBatchesProcessed"] for trial in session.api.experiments.trials(newest))

    def submitted_at(self, experiment_id: int) -> float:
        """Return when the master created the only trial of an experiment."""
        with open_session(Settings(self.home)) as session:
            (trial,) = session.api.experiments.trials(experiment_id)
        return parse_timestamp(trial["startTime"]).timestamp()


def launches(machines: Machines, ours: Ours, folder: Path) -> None:
    """Compare the time from the request of a task to the first line of its script."""
    bare, marks = folder / "bare.py", folder / "marks"
    bare.write_text(BARE, encoding="utf-8")
    script = folder / "mark.py"
    script.write_text(MARK.format(path=str(marks)), encoding="utf-8")
    theirs, mine = [], []
    config = "name: launch\nentrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"
    for number in range(LAUNCHES):
        marks.write_text("")
        done = subprocess.run(
            [sys.executable, str(bare), machines.address, str(script), "1"],
            check=True,
            capture_output=True,
            text=True,
        )
        theirs.append(float(marks.read_text()) - float(done.stdout.split()[-1]))
        marks.write_text("")
        ours.run(config, script.read_text())
        mine.append(float(marks.read_text()) - ours.submitted_at(number + 1))
    mine_s, theirs_s = statistics.median(mine), statistics.median(theirs)
    report(
        "launch of a trial on Ray, more than a bare actor",
        mine_s - theirs_s,
        unit="s",
        goal=0.3,
        detail=f"{mine_s:.2f} s, bare actor {theirs_s:.2f} s",
    )


def searches(machines: Machines, ours: Ours, folder: Path) -> None:
    """Compare the wall time of a search with Ray Tune's."""
    if importlib.util.find_spec("ray.tune") is None or importlib.util.find_spec("pyarrow") is None:
        print("Ray Tune is not installed: pip install 'ray[tune]'", file=sys.stderr)
        return
    tune = folder / "tune.py"
    tune.write_text(TUNE, encoding="utf-8")

    def theirs() -> tuple[int, float]:
        done = subprocess.run(
            [sys.executable, str(tune), machines.address, str(folder / "results")],
            check=True,
            capture_output=True,
            text=True,
        )
        epochs, wall_s = done.stdout.split()[-2:]
        return int(epochs), float(wall_s)

    mine = [(ours.run(SEARCH, TRAIN), ours.epochs_of_newest()) for _ in range(ROUNDS)]
    others = [theirs() for _ in range(ROUNDS)]
    ratio = statistics.median(mine_s for mine_s, _ in mine) / statistics.median(
        wall_s for _, wall_s in others
    )
    # The two draw other hyperparameters, so that their searches stop other trials.
    detail = "; ".join(
        f"{mine_s:.1f} s for {mine_epochs} epochs, Ray Tune {wall_s:.1f} s for {epochs}"
        for (mine_s, mine_epochs), (epochs, wall_s) in zip(mine, others, strict=True)
    )
    report(f"search of {TRIALS} trials on Ray / Ray Tune's", ratio, goal=1.0, detail=detail)


def main() -> None:
    """Measure."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machines = Machines(2, 2)
        try:
            ours = Ours(machines.address, folder)
            try:
                launches(machines, ours, folder)
                searches(machines, ours, folder)
            finally:
                process.stop(ours.home, kill_tasks=True)
        finally:
            machines.close()


if __name__ == "__main__":
    main()
