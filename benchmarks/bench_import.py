"""The import of runs of other trackers: 1,000 runs of 10,000 points each, and the same import once more.

The points are 10 metrics at 1,000 steps, or with ``--metrics 1`` one metric at 10,000 steps, of which each is a row of
the database. The clock runs from the start of `det import` to its end; the master runs already.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import report

# isort: split
from det_keras.home import Home
from det_keras.master import process

RUNS = int(os.environ.get("DET_KERAS_RUNS", "1000"))
POINTS = 10_000
GOAL_S = 60.0
START_MS = 1_700_000_000_000


def write_mlflow(store: Path, runs: int, metrics: int) -> None:
    """Write a store of files as MLflow does."""
    experiment = store / "1"
    experiment.mkdir(parents=True)
    (experiment / "meta.yaml").write_text("experiment_id: '1'\nlifecycle_stage: active\nname: digits\n")
    draw = random.Random(1)
    steps = POINTS // metrics
    for number in range(runs):
        run_id = f"{number:032x}"
        run = experiment / run_id
        (run / "metrics").mkdir(parents=True)
        (run / "params").mkdir()
        (run / "params" / "learning_rate").write_text(str(draw.random()))
        (run / "meta.yaml").write_text(
            f"end_time: {START_MS + steps}\nexperiment_id: '1'\nlifecycle_stage: active\nrun_id: {run_id}\n"
            f"run_name: run-{number}\nstart_time: {START_MS}\nstatus: 3\n"
        )
        names = [f"metric_{index}" for index in range(metrics - 1)] + ["val_loss" if metrics > 1 else "loss"]
        for name in names:
            lines = [f"{START_MS + step} {draw.random()} {step}\n" for step in range(steps)]
            (run / "metrics" / name).write_text("".join(lines))


def processor_s(pid: int) -> float:
    """Return the processor time of a process, and of all children of this one that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = os.times()
    return used + children.children_user + children.children_system


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--metrics", type=int, default=10, help="number of metrics of a run")
    metrics = parser.parse_args().metrics
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "mlruns"
        write_mlflow(store, RUNS, metrics)
        home = Home(Path(folder) / "home").create()
        master = process.start(home)
        try:

            def imported() -> tuple[float, float, str]:
                """Return the time and the processor time of an import with that of the master, and what it prints."""
                began, before = time.perf_counter(), processor_s(master.pid)
                done = subprocess.run(
                    [sys.executable, "-m", "det_keras.cli", "import", "mlflow", str(store)],
                    env={**os.environ, "DET_KERAS_HOME": str(home.root)},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                used = processor_s(master.pid) - before
                return time.perf_counter() - began, used, done.stdout.strip()

            first_s, first_cpu_s, first = imported()
            again_s, _, again = imported()
        finally:
            process.stop(home)
        size = sum(path.stat().st_size for path in home.root.rglob("*") if path.is_file())
    name = f"import of {RUNS} runs of MLflow with {POINTS} points each"
    detail = (
        f"{first}; {RUNS * POINTS / first_s:.0f} points a second; {first_cpu_s:.1f} s of processor time of both "
        f"processes; the data root has {size >> 20} MiB"
    )
    report(name, first_s, unit="s", goal=GOAL_S * RUNS / 1000, detail=detail)
    report("the same import again", again_s, unit="s", detail=again)


if __name__ == "__main__":
    main()
