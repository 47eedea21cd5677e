"""What det_keras costs, as ratios measured side by side in one run.

    python benchmarks/run.py              # everything, a few minutes
    python benchmarks/run.py fit start    # only these

Each measurement runs in a process of its own. The two sides of a ratio take turns inside it, so that a
busy machine slows both; the median of the turns counts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
MEASUREMENTS = (
    "start",
    "fit",
    "small",
    "state",
    "loop",
    "system_metrics",
    "layers",
    "reports",
    "report_lane",
    "long",
    "data",
    "checkpoint",
    "stores",
    "resume",
    "search",
    "scheduler",
    "distributed",
    "virtual",
    "master",
    "crowd",
    "import",
    "database",
    "ray",
    "web",
    "live",
    "table",
)


def main() -> int:
    """Run the chosen measurements and print one line for each ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", default=list(MEASUREMENTS), metavar="NAME", help=", ".join(MEASUREMENTS)
    )
    names = parser.parse_args().names
    for name in names:
        if name not in MEASUREMENTS:
            parser.error(f"There is no measurement {name!r}. There are: {', '.join(MEASUREMENTS)}.")
    failed = False
    for name in names:
        done = subprocess.run(
            [sys.executable, str(FOLDER / f"bench_{name}.py")], stdout=subprocess.PIPE, text=True, check=False
        )
        failed |= done.returncode != 0
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                show(json.loads(line))
    return 1 if failed else 0


def show(row: dict[str, object]) -> None:
    """Print one measurement: its value, the goal, and what it is made of."""
    value, goal = row["value"], row.get("goal")
    assert isinstance(value, float)
    verdict = "" if goal is None else ("  goal met" if value <= float(str(goal)) else "  goal MISSED")
    bound = "" if goal is None else f" (goal {goal})"
    print(f"{row['name']:<58} {value:8.3f} {row['unit']:<6}{bound:<13}{verdict}", flush=True)
    if row.get("detail"):
        print(f"    {row['detail']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
