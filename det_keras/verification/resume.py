"""`det experiment create --verify-resume`: compares a killed and resumed training with an uninterrupted one.

The script trains briefly in local runs: once uninterrupted, and once killed and started again. The state that
determines the next step must then be the same in both, to the last bit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from det_keras.checkpoint_comparison import differences, digest
from det_keras.errors import DetError
from det_keras.scratch import Scratch

#: Batches that the script trains.
BATCHES = 60
#: How often it is killed.
KILLS = 3
_PERIOD = 7
_POLL_S = 0.02
_LAUNCHER = re.compile(r"(det_keras|determined)\.launch\.\w+")
_LAUNCHERS = re.compile(rf"\b{_LAUNCHER.pattern}|\bhorovodrun\b")


@dataclass(frozen=True)
class VerifiedScript:
    """A script that is started with different configs.

    Attributes:
        directory: its directory.
        command: the command that starts it.
        config: the text of its config, in which the seed is fixed and a checkpoint is made every few batches.
        environment: returns the environment of a run from the path of a config.
    """

    directory: Path
    command: list[str]
    config: str
    environment: Callable[[str], dict[str, str]]


def verify_resume(script: VerifiedScript) -> int:
    """Train, kill, resume and compare; print what was found.

    Args:
        script: the script.

    Returns:
        0 if both trainings ended the same, 1 if not. If they differ, a third training shows whether the script differs
        even without kills.

    Raises:
        DetError: the script fails, or makes no checkpoint.
    """
    with trial_runs(script) as trial:
        print(f"Training {BATCHES} batches without a kill...", flush=True)
        trial.run_to_end("uninterrupted")
        print(f"Training again, killed up to {KILLS} times...", flush=True)
        for kill in range(KILLS):
            batches = trial.kill_after_checkpoint("killed", 2 * kill + 1)
            if batches is None:
                break
            print(f"  killed after the checkpoint at batch {batches}", flush=True)
        trial.run_to_end("killed")
        uninterrupted, killed = trial.final_state("uninterrupted"), trial.final_state("killed")
        different = list(differences(uninterrupted, killed))
        if not different:
            _print_success(killed)
            return 0
        print(
            "They differ. Training without a kill once more, to see whether that differs as well...",
            flush=True,
        )
        trial.run_to_end("again")
        by_itself = list(differences(uninterrupted, trial.final_state("again")))
        _print_failure(different, by_itself)
        return 1


@contextmanager
def trial_runs(script: VerifiedScript) -> Iterator[TrialRuns]:
    """Provide runs of the script in a folder that is removed afterwards.

    Raises:
        DetError: there is no such directory.
    """
    # Imported here: `det --help` does not need it.

    if not script.directory.is_dir():
        raise DetError(f"The context directory {str(script.directory)!r} does not exist.")
    with Scratch("verify") as folder:
        yield TrialRuns(script, Path(folder))


class TrialRuns:
    """Runs of the script, each in a run directory of its own.

    Args:
        script: the script.
        folder: holds the run directories.
    """

    def __init__(self, script: VerifiedScript, folder: Path) -> None:
        self._script = script
        self._folder = folder
        config = folder / "config.yaml"
        config.write_text(_with_checkpoints(script.config), encoding="utf-8")
        config.chmod(0o600)
        self._environment = script.environment(str(config))

    def run_to_end(self, name: str, *, workers: int | None = None, batches: int = BATCHES) -> None:
        """Run the script until it ends by itself.

        Args:
            name: of the run.
            workers: number of workers; None as the entrypoint says.
            batches: how many to train.

        Raises:
            DetError: the script fails.
        """
        process = self._start(name, workers, batches)
        printed, _ = process.communicate()
        if process.returncode != 0:
            sys.stderr.write(printed.decode(errors="replace"))
            raise DetError(f"The script failed with exit code {process.returncode}; its output is above.")

    def kill_after_checkpoint(self, name: str, count: int, *, workers: int | None = None) -> int | None:
        """Kill the script after `count` new checkpoints; return the newest checkpoint's batch, None if it ended."""
        process = self._start(name, workers)
        made: set[Path] = set()
        before = set(self._checkpoints(name))
        while process.poll() is None:
            made |= set(self._checkpoints(name)) - before
            if len(made) >= count:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return max(steps_of(path) for path in self._checkpoints(name))
            time.sleep(_POLL_S)
        printed, _ = process.communicate()
        if process.returncode != 0:
            sys.stderr.write(printed.decode(errors="replace"))
            raise DetError(f"The resumed script failed with exit code {process.returncode}; see above.")
        return None

    def final_state(self, name: str) -> Path:
        """Return the directory of the newest checkpoint."""
        found = sorted(self._checkpoints(name), key=lambda path: (steps_of(path), path.stat().st_mtime_ns))
        if not found:
            raise DetError("The script made no checkpoint: does it call `context.fit`?")
        return found[-1]

    def _start(self, name: str, workers: int | None, batches: int = BATCHES) -> subprocess.Popen[bytes]:
        environment = {
            **self._environment,
            "DET_KERAS_LOCAL_RUN_DIR": str(self._folder / name),
            "DET_KERAS_LOCAL_BATCHES": str(batches),
        }
        command = list(self._script.command)
        return subprocess.Popen(
            command if workers is None else on_workers(command, workers),
            cwd=self._script.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _checkpoints(self, name: str) -> list[Path]:
        found = (self._folder / name / "checkpoints").glob("[!.]*/manifest.json")
        return [path.parent for path in found if (path.parent / "metadata.json").exists()]


def on_workers(command: list[str], workers: int) -> list[str]:
    """Return a command that runs another on a number of workers.

    Raises:
        DetError: the command starts workers in a way that is not known.
    """
    places = [index for index, word in enumerate(command) if _LAUNCHERS.search(word)]
    if not places:
        launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(workers), "--"]
        return [*launcher, *command]
    if not _LAUNCHER.fullmatch(command[places[0]]):
        raise DetError(
            f"`--workers` starts the script on several workers, which the entrypoint does itself: {command[-1]!r}. "
            "Write it as a list of arguments, or leave the launcher out."
        )
    # Behind a number of processes that the entrypoint names: the later counts.
    end = command.index("--", places[0]) if "--" in command[places[0] :] else len(command)
    return [*command[:end], "--np", str(workers), *command[end:]]


def _with_checkpoints(text: str) -> str:
    from det_keras.config import dump_yaml, load_yaml

    raw = load_yaml(text)
    raw["min_checkpoint_period"] = {"batches": _PERIOD}
    reproducibility = raw.get("reproducibility") or {}
    raw["reproducibility"] = {"experiment_seed": 1, **reproducibility}
    return dump_yaml(raw)


def steps_of(checkpoint: Path) -> int:
    try:
        return int(json.loads((checkpoint / "metadata.json").read_text(encoding="utf-8"))["steps_completed"])
    except (OSError, ValueError, KeyError):
        # The checkpoint was pruned at this moment.
        return -1


def _print_success(killed: Path) -> None:
    print(
        f"Resuming is exact: after {steps_of(killed)} batches, weights, optimizers, metrics, history and random states "
        f"are the same, bit for bit ({digest(killed)[:16]})."
    )


def _print_failure(differences: list[str], by_itself: list[str]) -> None:
    """Print what differs after kills, and whether two trainings without a kill differ too."""
    print("Resuming is NOT exact. What differs from the training without a kill:")
    for difference in differences:
        print(f"  {difference}")
    if not by_itself:
        print(
            "Undisturbed, the script ends the same each time. See docs/exact-resume.md for what a script may not do."
        )
        return
    print("The kills are not the reason: two trainings of this script without a kill differ as well, in")
    for difference in by_itself:
        print(f"  {difference}")
    print(
        "Set `reproducibility: {deterministic_ops: true}` in the config, which makes TensorFlow deterministic, and "
        "try again. If they still differ, the script reads a clock, or draws random numbers in its own threads."
    )
