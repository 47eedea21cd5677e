"""Runs of the ways of calling `fit` in child processes, undisturbed and killed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
from fork_server import ForkServer, Send
from script_runs import ScriptRun, count_batches
from ways import WAYS, outcome

import det_keras as det
from det_keras.keras.callbacks.list import SeamlessCallbackList

__all__ = ["KILLED", "WayRunner"]

_PERIOD = 3

#: What is killed where not all are asked for: forms of arrays, optimizers and arguments are alike on a resume.
KILLED = [
    name
    for name in WAYS
    if name.startswith(("dataset_", "generator_", "loader", "fits_", "step_"))
    or name in ("items_own_stream", "items_global_stream", "items_dict_alone", "items_steps_that_do_not_divide")
    or name in ("callback_that_counts", "callback_made_from_early_stopping", "callback_swap_ema_weights")
    or name in ("model_with_augmentation", "sparse_tensor_alone", "compile_accumulation", "compile_run_eagerly")
]  # fmt: skip
if os.environ.get("DET_KERAS_TEST_WAYS") == "all":
    KILLED = list(WAYS)


class WayRunner:
    """Runs ways in children of a fork server, below `folder`; may be used by several threads."""

    def __init__(self, folder: Path) -> None:
        self._server = ForkServer()
        self._folder = folder
        self._references: dict[str, ScriptRun] = {}
        self._locks = {name: threading.Lock() for name in WAYS}

    def reference(self, name: str) -> ScriptRun:
        """Return the undisturbed run; it is run once."""
        with self._locks[name]:
            if name not in self._references:
                self._references[name] = self._run(name, "undisturbed", None)
            return self._references[name]

    def killed(self, name: str, kills: Iterable[int], story: str = "killed") -> ScriptRun:
        """Run a way, killed after so many batches of each process, and once more to its end.

        Raises:
            AssertionError: a kill did not come, because the run ended before.
        """
        for batches in kills:
            run = self._run(name, story, batches)
            assert run.values is None, f"{name} ended after {run.batches} batches, before {batches}"
        return self._run(name, story, None)

    def _run(self, name: str, story: str, kill_after: int | None) -> ScriptRun:
        directory = self._folder / name / story
        directory.mkdir(parents=True, exist_ok=True)
        title = f"{name} ({story}, kill after batch {kill_after})"
        found = self._server.run(
            title, directory / "log.txt", _run_way, name, str(directory / "run"), kill_after
        )
        return ScriptRun(found["batches"], found.get("values"))


def _run_way(send: Send, name: str, run_dir: str, kill_after: int | None) -> dict[str, Any]:
    """Be the child."""
    counter = count_batches(send, SeamlessCallbackList, kill_after)
    config = {
        "min_checkpoint_period": {"batches": _PERIOD},
        "checkpoint_policy": "none",
        "reproducibility": {"deterministic_ops": True},
    }
    keras.backend.clear_session()
    with det.keras.init(config=config, run_dir=run_dir, seed=11) as context:
        results = repr(outcome(WAYS[name](context)))
    return {**counter, "values": {"results": hashlib.sha256(results.encode()).hexdigest()}}
