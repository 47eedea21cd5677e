"""Runs drawn histories of masters, trials and clients under faults, and looks for what was lost, doubled or stuck.

    python benchmarks/histories.py --histories 1000 [--seed N] [--minutes 60] [--only K ...] [--parallel 2]

A history is a new data root with a master, a few experiments, jobs and unmanaged trials, and faults: killed and stopped
masters, supervisors and trials, a full disk, lost and doubled requests and answers, a clock that jumps. History K of
seed N is always the same plan; ``--only K`` runs only this one. A violation prints the plan and what is wrong, keeps
the data root, and makes the exit code 1. A disk is filled only as root, who may mount one in memory.
"""

from __future__ import annotations

import argparse
import os
import pprint
import random
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from fault_histories.history import Result, run_history
from fault_histories.plan import ANSWER_FAULTS, FAULTS, draw_plan
from fault_histories.world import make_template
from forked_masters import MasterServer


class Score:
    """What the histories came to so far."""

    def __init__(self) -> None:
        self.histories = 0
        self.acknowledged = 0
        self.faults: Counter[str] = Counter()
        self.failed: list[Result] = []
        self.longest_s = 0.0
        self._lock = threading.Lock()

    def add(self, result: Result) -> None:
        """Count a history, and print what was violated."""
        with self._lock:
            self.histories += 1
            self.acknowledged += result.acknowledged
            self.faults.update(result.faults)
            self.longest_s = max(self.longest_s, result.took_s)
            if result.violations:
                self.failed.append(result)
                print(f"\nVIOLATED: history {result.seed}, kept in {result.kept}")
                print("\n".join(f"  {text}" for text in result.violations))
                print(f"{pprint.pformat(draw_plan(result.seed), width=120)}\n", flush=True)

    def print(self, took_s: float) -> None:
        """Print the summary."""
        print(f"\n| {'fault':24} | count |\n| {'-' * 24} | ----: |")
        for kind in (*FAULTS, *ANSWER_FAULTS):
            print(f"| {kind:24} | {self.faults[kind]:5} |")
        print(
            f"\nTotal: {self.histories} histories, {self.faults.total()} faults, {self.acknowledged} acknowledged "
            f"requests of clients, {len(self.failed)} histories with violations, {took_s / 60:.1f} minutes "
            f"({took_s / max(1, self.histories):.2f} s a history, the longest {self.longest_s:.1f} s)."
        )


def main() -> int:
    """Run the histories; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--histories", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the plans")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no further history after that")
    parser.add_argument(
        "--only", type=int, nargs="+", metavar="K", help="run only the histories of these numbers"
    )
    parser.add_argument(
        "--parallel", type=int, default=min(2, os.cpu_count() or 1), help="how many at a time"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data roots of all histories")
    arguments = parser.parse_args()
    print(f"Seed {arguments.seed}", flush=True)
    if os.geteuid() != 0:
        print("Disks are not filled: only root may mount them.", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="det-histories-"))
    score, started = Score(), time.monotonic()
    numbers = iter(arguments.only or range(arguments.histories))
    template = make_template(folder)

    def work() -> None:
        masters = MasterServer(shifts_clocks=True)
        try:
            for number in numbers:
                if time.monotonic() - started > 60 * arguments.minutes:
                    return
                seed = f"{arguments.seed}-{number}"
                plan = draw_plan(seed)
                score.add(run_history(plan, folder / seed, template, masters, keeps=arguments.keep))
                if score.histories % 50 == 0:
                    print(f"{score.histories} histories, {len(score.failed)} with violations", flush=True)
        finally:
            masters.close()

    with ThreadPoolExecutor(arguments.parallel) as pool:
        for done in [pool.submit(work) for _ in range(arguments.parallel)]:
            done.result()
    score.print(time.monotonic() - started)
    if not score.failed and not arguments.keep:
        shutil.rmtree(folder)
    return 1 if score.failed else 0


if __name__ == "__main__":
    sys.exit(main())
