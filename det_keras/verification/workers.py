"""`det experiment create --verify-resume --workers 1,2,4`: compares trainings on different numbers of workers.

With `reproducibility.virtual_workers` all of them end the same, and so does one that is killed and resumes with another
number of workers each time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from det_keras.checkpoint_comparison import differences, digest
from det_keras.verification.resume import (
    BATCHES,
    KILLS,
    TrialRuns,
    VerifiedScript,
    steps_of,
    trial_runs,
)


def parse_numbers(text: str) -> list[int]:
    """Return the numbers of workers that the user named, such as ``1,2,4``.

    Raises:
        ValueError: `text` has another form.
    """
    numbers = [int(part) for part in text.split(",")]
    if len(set(numbers)) < 2 or min(numbers) < 1:
        raise ValueError(text)
    return list(dict.fromkeys(numbers))


def verify_workers(script: VerifiedScript, numbers: Sequence[int]) -> int:
    """Train on each number of workers, and once killed with changing numbers; compare and print what was found.

    Args:
        script: the script.
        numbers: two or more numbers of workers.

    Returns:
        0 if all trainings ended the same, 1 if not.

    Raises:
        DetError: the script fails, or makes no checkpoint.
    """
    with trial_runs(script) as runs:
        for number in numbers:
            print(f"Training {BATCHES} batches on {_workers(number)}...", flush=True)
            runs.run_to_end(_name(number), workers=number)
        expected = runs.final_state(_name(numbers[0]))
        for number in numbers[1:]:
            found = list(differences(expected, runs.final_state(_name(number))))
            if found:
                _print_failure(runs, numbers[0], number, found)
                return 1
        return _compare_killed(runs, numbers, expected)


def _compare_killed(runs: TrialRuns, numbers: Sequence[int], expected: Path) -> int:
    print("Training again, killed and continued with another number each time...", flush=True)
    turns = itertools.cycle(numbers)
    for kill in range(KILLS):
        number = next(turns)
        batches = runs.kill_after_checkpoint("killed", 2 * kill + 1, workers=number)
        if batches is None:
            break
        print(f"  on {_workers(number)}, killed after the checkpoint at batch {batches}", flush=True)
    runs.run_to_end("killed", workers=next(turns))
    found = list(differences(expected, runs.final_state("killed")))
    if found:
        print("Resuming with another number of workers is NOT exact. What differs:")
        for difference in found:
            print(f"  {difference}")
        return 1
    shown, batches = ", ".join(map(str, numbers)), steps_of(expected)
    print(
        f"The number of workers does not matter: after {batches} batches on {shown}, and killed in between, weights, "
        f"optimizers, metrics, history and random states are the same, bit for bit ({digest(expected)[:16]})."
    )
    return 0


def _print_failure(runs: TrialRuns, first: int, second: int, found: Sequence[str]) -> None:
    """Print the first batch after which two numbers of workers differ, and what differs there."""
    print(f"The numbers of workers {first} and {second} do NOT end the same. Looking for the first batch...")
    same, different = 0, max(steps_of(runs.final_state(_name(number))) for number in (first, second))
    while different - same > 1:
        batch = (same + different) // 2
        for number in (first, second):
            runs.run_to_end(f"{_name(number)}-{batch}", workers=number, batches=batch)
        states = [runs.final_state(f"{_name(number)}-{batch}") for number in (first, second)]
        if differing := list(differences(states[0], states[1])):
            different, found = batch, differing
        else:
            same = batch
    print(f"They differ from batch {different} on, in")
    for difference in found:
        print(f"  {difference}")
    print(
        "Without `reproducibility: {virtual_workers: N}` in the config the last digits differ on each number of "
        "workers. With it, docs/distributed.md says what a script may not do."
    )


def _workers(number: int) -> str:
    return "1 worker" if number == 1 else f"{number} workers"


def _name(number: int) -> str:
    return f"on-{number}"
