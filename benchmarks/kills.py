"""Kills trainings of every kind at random instants until so many kills are done, and compares their ends.

    python benchmarks/kills.py --kills 500 [--seed N] [--kind arrays ...] [--minutes 15]

The kinds are the trainings of tests/keras/kinds.py, killed at drawn moments, and the scripts of tests/scripts and the
ways of calling `fit` of tests/keras/ways.py, killed after drawn batches; without `--kind`, all of them.
A difference prints the training's kills and makes the exit code 1; the same seed draws the same kills.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "keras"))

# Imported where it is used: children of the fork server import this file too, and need none of it.
if TYPE_CHECKING:
    from child_runs import Runner
    from kill_harness import Story

KILLS_PER_TRAINING = 5


class Score:
    """What the trainings came to so far."""

    def __init__(self, goal: int, deadline: float) -> None:
        self.trainings: Counter[str] = Counter()
        self.kills: Counter[str] = Counter()
        self.processes: Counter[str] = Counter()
        self.differences: Counter[str] = Counter()
        self.moments: Counter[str] = Counter()
        self.in_process = 0
        self._goal = goal
        self._deadline = deadline
        self._lock = threading.Lock()

    def is_reached(self) -> bool:
        """Tell whether there are enough kills, or no time is left."""
        return self.kills.total() >= self._goal or time.monotonic() > self._deadline

    def add(self, story: Story, expected: str, name: str) -> None:
        """Count a training, and say so if it ended elsewhere."""
        with self._lock:
            kind = story.kind
            self.trainings[kind] += 1
            self.processes[kind] += len(story.runs)
            self.kills[kind] += len(story.killed)
            self.in_process += len(story.killed) if story.in_process else 0
            for run in story.killed:
                assert run.kill is not None
                self.moments[_instant(run.kill.moment, run.kill.delay_s)] += 1
            if story.digest != expected:
                self.differences[kind] += 1
                print(f"DIFFERENT: {name} after {story.runs}", flush=True)

    def fail(self, name: str, error: Exception) -> None:
        """Count a training that could not go on."""
        with self._lock:
            self.differences[name.rsplit(" ", 1)[-1]] += 1
            print(f"FAILED: {name}: {error}", flush=True)

    def print(self, minutes: float) -> None:
        """Print the tables and the total."""
        kinds = sorted(self.trainings | self.differences)
        print(f"\n| {'kind':26} | kills | trainings | processes | differences |")
        print(f"| {'-' * 26} | ----: | --------: | --------: | ----------: |")
        for kind in kinds:
            counts = (self.trainings[kind], self.processes[kind], self.differences[kind])
            print("| {:26} | {:5} | {:9} | {:9} | {:11} |".format(kind, self.kills[kind], *counts))
        print("\nKilled at: " + ", ".join(f"{name} {count}" for name, count in self.moments.most_common()))
        print(
            f"\nTotal: {self.kills.total()} kills in {self.trainings.total()} trainings of {len(kinds)} kinds "
            f"({self.in_process} with checkpoints written by another process), "
            f"{self.differences.total()} differences, {minutes:.1f} minutes."
        )


def _instant(moment: str, delay_s: float | None) -> str:
    if delay_s is None:
        return moment
    return "any time before training" if moment == "start" else "any time in training"


def kill_after_batches(runner: Runner, name: str, rng: random.Random, number: int) -> tuple[Story, str]:
    """Run a script or a way with two kills; return what happened, and the expected values."""
    from kill_harness import Kill, Run, Story

    kills, reference, run = runner.kill_twice(name, rng, f"{number}")
    story = Story(name, [Kill("batch end", batches) for batches in kills])
    story.digest = str(run.values)
    story.runs = [*map(Run, story.kills), Run(None, story.digest)]
    return story, str(reference.values)


def main() -> int:
    """Kill, compare, print; return the exit code."""
    from kill_harness import Killer, draw_story
    from kinds import KINDS
    from script_diffs import SCRIPTS
    from script_runs import ScriptRunner
    from way_runs import WayRunner
    from ways import WAYS

    kinds = [*KINDS, *SCRIPTS, *WAYS]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=500, help="how many in all")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="of the instants")
    parser.add_argument(
        "--kind", nargs="+", default=kinds, choices=kinds, metavar="KIND", help="trainings to kill"
    )
    parser.add_argument("--minutes", type=float, default=15.0, help="stop after that, whatever is reached")
    arguments = parser.parse_args()
    print(f"Seed {arguments.seed}", flush=True)
    started = time.monotonic()
    score = Score(arguments.kills, started + 60 * arguments.minutes)
    killer = Killer()
    kinds = random.Random(arguments.seed).sample(arguments.kind, len(arguments.kind))
    numbers = itertools.count()

    def keep_killing(folder: Path) -> None:
        while not score.is_reached():
            number = next(numbers)
            kind = kinds[number % len(kinds)]
            name = f"seed {arguments.seed}, training {number}, {kind}"
            rng = random.Random(f"{arguments.seed} {number}")
            try:
                if kind in KINDS:
                    reference = killer.reference(kind, folder)
                    story = draw_story(rng, kind, reference, KILLS_PER_TRAINING)
                    score.add(killer.tell(story, folder / f"{number}"), reference.digest, name)
                else:
                    runner = scripts if kind in SCRIPTS else ways
                    score.add(*kill_after_batches(runner, kind, rng, number), name)
            except Exception as error:  # A training that fails is a finding, and the others go on.
                score.fail(name, error)
            if number % 10 == 9:
                print(f"{score.kills.total()} kills, {score.differences.total()} differences", flush=True)

    with tempfile.TemporaryDirectory(prefix="det-kills-") as folder:
        os.environ["DET_KERAS_HOME"] = str(Path(folder) / "home")
        scripts, ways = ScriptRunner(Path(folder) / "scripts"), WayRunner(Path(folder) / "ways")
        workers = os.cpu_count() or 1
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(keep_killing, Path(folder)) for _ in range(workers)]:
                done.result()
    score.print((time.monotonic() - started) / 60)
    return 1 if score.differences.total() else 0


if __name__ == "__main__":
    sys.exit(main())
