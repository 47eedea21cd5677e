"""What trials and jobs of a history run, and the numbers that an undisturbed trial reports.

A trial's state is a hash that each epoch changes. Metrics follow from it, and checkpoints hold it: a trial that resumes
in a wrong state reports other numbers. It notes what was acknowledged in a file outside of the data root (`notes`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["first_state", "job_entrypoint", "metric_of", "next_state", "trial_files"]

LINES_OF_JOB = 5


def first_state(seed: int, hparams: Mapping[str, Any]) -> str:
    """Return the state of a trial before its first epoch."""
    return hashlib.sha256(f"{seed} {json.dumps(hparams, sort_keys=True)}".encode()).hexdigest()


def next_state(state: str, epoch: int) -> str:
    """Return the state after an epoch, counted from 1."""
    return hashlib.sha256(f"{state} {epoch}".encode()).hexdigest()


def metric_of(state: str) -> float:
    """Return the metric that a trial reports in a state."""
    return int(state[:8], 16) / 2**32


def trial_files(script: str) -> dict[str, bytes]:
    """Return the files of an experiment, by name; its trials run ``train.py``."""
    folder = Path(__file__).parent
    return {
        "train.py": (folder / f"{script}_trial.py").read_bytes(),
        "task_scripts.py": (folder / "task_scripts.py").read_bytes(),
        "notes.py": (folder / "notes.py").read_bytes(),
    }


def job_entrypoint(pace_s: float) -> list[str]:
    """Return the command of a job, which prints a few lines."""
    return [
        "sh",
        "-c",
        f"i=0; while [ $i -lt {LINES_OF_JOB} ]; do echo line $i; i=$((i+1)); sleep {pace_s:g}; done; echo end",
    ]
