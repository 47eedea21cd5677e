"""Trains on two workers with one seeded fault each, and without any, and counts what was found.

    python benchmarks/faults.py --faults 100

A weight changed on one rank, one bit of it flipped, an exchange skipped, data in another order: each has to be found
and named within one period of comparing weights, and as many trainings without a fault must raise no alarm. Otherwise
the exit code is 1. Needs Horovod.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1] / "tests" / "distributed"
sys.path.insert(0, str(TESTS))


def main() -> int:
    """Run the trainings and print a line for each kind of fault."""
    from faults import KINDS, problem_of

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--faults", type=int, default=100, help="trainings with a fault, and without")
    faults = parser.parse_args().faults
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", "2", "--"]
        script = [sys.executable, str(TESTS / "scenarios.py"), folder, "seeded_faults", "clean_runs"]
        subprocess.run([*launcher, *script], env={**os.environ, "FAULTS": str(faults)}, check=True)
        seen, elsewhere, alarms = (
            json.loads((Path(folder) / name).read_text())["result"]
            for name in ("seeded_faults/rank-0.json", "seeded_faults/rank-1.json", "clean_runs/rank-0.json")
        )
    problems = [(fault, problem_of(fault, other)) for fault, other in zip(seen, elsewhere, strict=True)]
    bad = Counter(fault["kind"] for fault, problem in problems if problem)
    for kind, count in sorted(Counter(fault["kind"] for fault in seen).items()):
        print(f"{KINDS[kind]:<28} {count - bad[kind]:>4} of {count} found and named")
    for fault, problem in problems:
        if problem:
            print(f"{problem}: {fault}")
    print(f"{'without a fault':<28} {len(alarms):>4} of {faults} with an alarm")
    for alarm in alarms:
        print(alarm)
    return 1 if alarms or any(problem for _, problem in problems) else 0


if __name__ == "__main__":
    sys.exit(main())
