"""Runs of the training scripts of tests/scripts in child processes: plain, converted, and killed.

A run has a directory of its own, in which the script starts: what it writes is at the same relative place in
every run.
"""

from __future__ import annotations

import hashlib
import os
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from child_runs import ChildRun, Runner, count_batches
from script_diffs import SCRIPTS, convert, read_script
from warm import Send

from det_keras.keras.context import KerasContext
from det_keras.keras.fit.callback_list import SeamlessCallbackList

__all__ = ["SHUFFLED", "UNLIKE_PLAIN", "ScriptRunner", "results_of", "run_script"]

#: Scripts that leave it to `fit` to shuffle arrays or batches of a PyDataset, which det_keras does in another order.
SHUFFLED = frozenset(
    {
        "autoencoder",
        "distillation",
        "k_fold",
        "masked_autoencoder",
        "metric_learning",
        "mixed_precision",
        "multi_input_output",
        "quantization",
        "reinforcement",
        "schedule_ema",
        "seq2seq",
        "siamese",
        "text_generation",
        "timeseries_transformer",
        "tuner",
        "vae",
    }
)

#: Converted scripts that end with other numbers than the plain ones all the same, even undisturbed, and why.
UNLIKE_PLAIN = {
    "text_classification": "with op determinism Keras never completes a cache in memory, and fills it in each epoch"
}

_PERIOD = 5
_CONFIG = "min_checkpoint_period: {{batches: {}}}\nreproducibility: {{deterministic_ops: true}}\n"


class ScriptRunner(Runner):
    """Runs the scripts of tests/scripts, below `folder`."""

    period = _PERIOD

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SCRIPTS)

    def beside_plain(self, name: str) -> tuple[ChildRun, ChildRun]:
        """Run the converted script and the plain one, both seeded and deterministic, and without shuffling in `fit`."""
        if name not in SHUFFLED:
            return self.reference(name), self._run(name, "plain", None)
        return self._run(name, "unshuffled", None), self._run(name, "plain unshuffled", None)

    def _call(self, name: str, story: str, directory: Path) -> tuple[Any, ...]:
        is_plain = story.startswith("plain")
        text = read_script(name) if is_plain else convert(name)
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
        return run_script, str(directory), name, is_plain, not story.endswith("unshuffled"), _PERIOD, _values


def run_script(
    send: Send,
    directory: str,
    name: str,
    is_plain: bool,
    shuffles: bool,
    period: int,
    values: Callable[[Mapping[str, Any]], dict[str, str]],
    kill_after: int | None,
) -> dict[str, Any]:
    """Run a script in a child, and return the batches that it trained and what it made.

    Args:
        send: gets the batches before a kill.
        directory: where the script is and starts.
        name: of its file, without the suffix.
        is_plain: it does not use the package.
        shuffles: `fit` shuffles as it is told; otherwise never.
        period: batches between two checkpoints.
        values: returns what is compared, by name, of the script's variables.
        kill_after: so many batches; None for never.
    """
    os.chdir(directory)
    os.environ.update(HOME=directory, DET_KERAS_HOME=f"{directory}/data", PYTHONHASHSEED="0")
    if is_plain:
        tf.config.experimental.enable_op_determinism()
    else:
        config = Path(directory, "config.yaml")
        config.write_text(_CONFIG.format(period), encoding="utf-8")
        os.environ.update(DET_KERAS_LOCAL_CONFIG=str(config), DET_KERAS_LOCAL_RUN_DIR=f"{directory}/run")
    counter = count_batches(
        send, keras.callbacks.CallbackList if is_plain else SeamlessCallbackList, kill_after
    )
    if not shuffles:
        _stop_shuffling(keras.Model)
        _stop_shuffling(KerasContext)
    sys.argv = [f"{name}.py"]
    made = runpy.run_path(f"{name}.py", run_name="__main__")
    own = {key: thing for key, thing in made.items() if not key.startswith("__")}
    return {"batches": counter["batches"], "values": dict(sorted(values(own).items()))}


def _values(made: Mapping[str, Any]) -> dict[str, str]:
    """Return the digests of a script's variables, by kind and name."""
    return {f"{kind} {key}": value for key, thing in made.items() for kind, value in _digests(thing)}


def _stop_shuffling(trainer: type) -> None:
    """Let `trainer.fit` keep the order of the data."""
    original = trainer.fit

    def fit(self: Any, *args: Any, **options: Any) -> Any:
        return original(self, *args, **{**options, "shuffle": False})

    trainer.fit = fit


def _digests(thing: Any) -> Iterable[tuple[str, str]]:
    """Return the kind and the digest of a script's variable, nothing if it holds neither a model nor numbers."""
    content = list(_content(thing))
    if content:
        kinds = {keras.Model: "model", keras.callbacks.History: "history"}
        kind = next((name for kind, name in kinds.items() if isinstance(thing, kind)), type(thing).__name__)
        yield kind, hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]


def _content(thing: Any) -> Iterable[str]:
    """Return what decides whether two things are the same, as text."""
    if isinstance(thing, keras.Model):
        holders = [thing, *(value for value in vars(thing).values() if isinstance(value, keras.Optimizer))]
        variables = {id(variable): variable for holder in holders for variable in holder.variables}
        yield from (_array(variable) for variable in variables.values())
    elif isinstance(thing, keras.callbacks.History):
        yield from _content({"epoch": thing.epoch, "history": thing.history})
    elif isinstance(thing, keras.callbacks.Callback):
        # What a callback counts or collects; its model stands for itself.
        own = {key: value for key, value in vars(thing).items() if key not in ("_model", "params")}
        yield from _content(own)
    elif isinstance(thing, keras.Optimizer | keras.Metric):
        yield from map(_array, thing.variables)
    elif isinstance(thing, Mapping):
        yield from (f"{key}: {line}" for key, value in thing.items() for line in _content(value))
    elif isinstance(thing, list | tuple):
        yield from (f"{index}: {line}" for index, value in enumerate(thing) for line in _content(value))
    elif isinstance(thing, int | float | np.generic | np.ndarray | tf.Tensor | tf.Variable | keras.Variable):
        yield _array(thing)


def _array(value: Any) -> str:
    array = np.asarray(value if not hasattr(value, "numpy") else value.numpy())
    if array.ndim == 0 and np.issubdtype(array.dtype, np.number):
        # A float of Python and one of NumPy are the same number.
        return repr(array.item())
    content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    return f"{array.dtype} {array.shape} {hashlib.sha256(content).hexdigest()}"


@contextmanager
def results_of(request: Any, jobs: Mapping[str, Callable[[str], Any]]) -> Iterator[dict[str, Future[Any]]]:
    """Run what the tests of a file that were asked for need, two jobs at a time.

    Args:
        request: of the fixture that gives the results.
        jobs: by the name of a test function; each takes the name of a script.

    Yields:
        The results, by the names of the tests.
    """
    items = [item for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(2) as pool:
        yield {
            item.name: pool.submit(jobs[item.originalname], item.callspec.params["name"])
            for item in items
            if item.originalname in jobs
        }
        pool.shutdown(cancel_futures=True)
