"""Runs of the ways of calling `fit` in child processes, undisturbed and killed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import keras
from amount import AMOUNT, chosen
from child_runs import Runner, count_batches
from warm import Send
from ways import WAYS, outcome

import det_keras as det
from det_keras.keras.fit.callback_list import SeamlessCallbackList

__all__ = ["KILLED", "WayRunner"]

_PERIOD = 3

#: What is killed: one way for each thing that a resume has to find again, unless other kill tests have it too.
#: ``DET_KERAS_TEST_AMOUNT=all`` kills all.
_KILLED = [
    "dataset_shuffle",
    "dataset_shuffle_cache",
    "dataset_map_cache_shuffle_twice",
    "dataset_keras_random_in_map",
    "dataset_numpy_function",
    "dataset_layers_in_map_cached",
    "dataset_repeat_with_steps",
    "dataset_generator_of_permutation",
    "generator_with_steps",
    "endless_generator_as_validation",
    "items_own_stream",
    "items_steps_that_do_not_divide",
    "fits_of_two_phases_over_one_pipeline",
    "fits_that_share_a_callback",
    "fits_of_two_models_in_turn",
    "step_without_call",
    "random_autoencoder",
    "random_gan",
    "random_several_steps_per_execution",
    "random_fits_of_one_compile",
    "random_fits_of_two_models_in_turn",
    "argument_validation_as_shuffled_cached_dataset",
]
KILLED = (
    list(WAYS)
    if AMOUNT == "all"
    else chosen(_KILLED, pilots=("generator_with_steps", "endless_generator_as_validation"))
)


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
    keras.backend.clear_session(free_memory=False)
    with det.keras.init(config=config, run_dir=run_dir, seed=11) as context:
        results = repr(outcome(WAYS[name](context)))
    return {**counter, "values": {"results": hashlib.sha256(results.encode()).hexdigest()}}
