"""Runs of the ways of calling `fit` in child processes, undisturbed and killed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import keras
from child_runs import Runner, count_batches
from fork_server import Send
from ways import WAYS, outcome

import det_keras as det
from det_keras.keras.engine.callback_list import SeamlessCallbackList

__all__ = ["KILLED", "WayRunner"]

_PERIOD = 3

#: What is killed where not all are asked for: forms of arrays, optimizers and arguments are alike on a resume.
KILLED = [
    name
    for name in WAYS
    if name.startswith(("dataset_", "generator_", "loader", "fits_", "step_"))
    or name in ("items_own_stream", "items_global_stream", "items_dict_alone", "items_steps_that_do_not_divide")
    or name in ("callback_that_counts", "callback_made_from_early_stopping", "callback_swap_ema_weights")
    or name in ("argument_validation_steps_of_shuffled_dataset", "argument_validation_as_shuffled_cached_dataset")
    or name in ("model_with_augmentation", "sparse_tensor_alone", "compile_accumulation", "compile_run_eagerly")
]  # fmt: skip
if os.environ.get("DET_KERAS_TEST_WAYS") == "all":
    KILLED = list(WAYS)


class WayRunner(Runner):
    """Runs the ways of `ways.py`, below `folder`."""

    period = _PERIOD

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, WAYS)

    def _call(self, name: str, story: str, directory: Path) -> tuple[Any, ...]:
        return _run_way, name, str(directory / "run")


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
