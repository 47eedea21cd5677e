"""Runs of the ways of calling `fit` in child processes, undisturbed and killed."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import keras
from fork_server import ForkServer, Send
from script_runs import count_batches, draw_kills
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
        self._references: dict[str, dict[str, Any]] = {}
        self._locks = {name: threading.Lock() for name in WAYS}

    def reference(self, name: str) -> dict[str, Any]:
        """Return the number of batches and the digest of the undisturbed run; it is run once."""
        with self._locks[name]:
            if name not in self._references:
                self._references[name] = self._run(name, "undisturbed", None)
            return self._references[name]

    def killed(self, name: str, seed: str) -> tuple[list[int], str]:
        """Kill a run twice at drawn batches, let it end, and return the batches and the digest of its end."""
        kills = draw_kills(random.Random(seed), self.reference(name)["batches"])
        for batches in kills:
            run = self._run(name, f"killed {seed}", batches)
            assert "digest" not in run, f"{name} ended before batch {batches}"
        digest: str = self._run(name, f"killed {seed}", None)["digest"]
        return kills, digest

    def _run(self, name: str, story: str, kill_after: int | None) -> dict[str, Any]:
        directory = self._folder / name / story.replace(" ", "-")
        directory.mkdir(parents=True, exist_ok=True)
        title = f"{name} ({story}, kill after batch {kill_after})"
        return self._server.run(
            title, directory / "log.txt", _run_way, name, str(directory / "run"), kill_after
        )


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
    return {**counter, "digest": hashlib.sha256(results.encode()).hexdigest()}
