"""Runs of the population in child processes: plain, converted, and killed.

The population is the scripts in the folder of that name. Each has the form of a public one, which its first comment
names; none was chosen because it suits the package. A script is stored once, as plain Keras, and markers in it give the
lines of the converted one:

    history = model.fit(x, y)  #> history = context.fit(model, x, y, validate=False)
    #>+ import det_keras as det
    tune(model)  #>-

The first line is replaced by the text after ``#>``, the second one is added, and the third one removed.
"""

from __future__ import annotations

import collections
import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from child_runs import ChildRun, Runner
from script_runs import run_script

__all__ = ["POPULATION", "PopulationRunner", "difference", "read_converted", "read_plain"]

_FOLDER = Path(__file__).parent / "population"
POPULATION: list[str] = sorted(path.stem for path in _FOLDER.glob("*.py"))

_PERIOD = 3
_ADDED = re.compile(r"( *)#>\+ ?(.*)")
_REMOVED = re.compile(r"(.*?) +#>- *")
_REPLACED = re.compile(r"( *)(.*?) +#> (.*)")


class PopulationRunner(Runner):
    """Runs the scripts of the population, below `folder`."""

    period = _PERIOD

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, POPULATION)

    def beside_plain(self, name: str) -> tuple[ChildRun, ChildRun]:
        """Run the converted script and the plain one, both seeded and deterministic, and without shuffling in `fit`."""
        return self._run(name, "unshuffled", None), self._run(name, "plain unshuffled", None)

    def kill_late(self, name: str, rng: random.Random) -> tuple[list[int], ChildRun, ChildRun]:
        """Run a script, killed once when most batches are trained, and once more to its end.

        Returns:
            The batch of the kill in a list, the undisturbed run, and the run that ended after the kill.

        Raises:
            AssertionError: the kill did not come, because the run ended before.
        """
        reference = self.reference(name)
        batches = max(2, int(reference.batches * rng.uniform(0.8, 0.93)))
        run = self._run(name, "killed late", batches)
        assert run.values is None, f"{name} ended after {run.batches} batches, before {batches}"
        return [batches], reference, self._run(name, "killed late", None)

    def _call(self, name: str, story: str, directory: Path) -> tuple[Any, ...]:
        is_plain = story.startswith("plain")
        text = read_plain(name) if is_plain else read_converted(name)
        (directory / f"{name}.py").write_text(text, encoding="utf-8")
        return run_script, str(directory), name, is_plain, not story.endswith("unshuffled"), _PERIOD, _values


def read_plain(name: str) -> str:
    """Return the plain Keras form of a script."""
    return "\n".join(line for line, _ in _lines(name) if line is not None)


def read_converted(name: str) -> str:
    """Return the det_keras form of a script."""
    return "\n".join(line for _, line in _lines(name) if line is not None)


def difference(values: Mapping[str, str], expected: Mapping[str, str]) -> list[str]:
    """Return a line for each value that is not as expected."""
    names = sorted({*values, *expected})
    pairs = ((name, values.get(name, "nothing"), expected.get(name, "nothing")) for name in names)
    return [f"{name}: {value}, not {other}" for name, value, other in pairs if value != other]


def _lines(name: str) -> Iterator[tuple[str | None, str | None]]:
    """Yield each line of a script in its plain and in its converted form; None where a form lacks it."""
    for line in (_FOLDER / f"{name}.py").read_text(encoding="utf-8").split("\n"):
        if found := _ADDED.fullmatch(line):
            yield None, found[1] + found[2]
        elif found := _REMOVED.fullmatch(line):
            yield found[1], None
        elif found := _REPLACED.fullmatch(line):
            yield found[1] + found[2], found[1] + found[3]
        else:
            yield line, line


def _values(made: Mapping[str, Any]) -> dict[str, str]:
    """Return all numbers and texts that are found in a script's variables, by name; arrays as digests."""
    found: dict[str, str] = {}
    seen: set[int] = set()
    for key, thing in made.items():
        if key not in ("context", "det"):
            found.update(_found(key, thing, seen))
    return found


def _found(name: str, thing: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    if isinstance(
        thing, str | int | float | np.generic | np.ndarray | tf.Tensor | tf.Variable | keras.Variable
    ):
        yield name, _text(thing)
        return
    parts = dict(_parts(thing))
    if parts and id(thing) not in seen:
        seen.add(id(thing))
        for key, part in parts.items():
            yield from _found(f"{name}{key}", part, seen)


def _parts(thing: Any) -> Iterable[tuple[str, Any]]:
    """Yield what a thing holds, with the names; nothing if it is neither known nor of a class of the script."""
    if isinstance(thing, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in thing.items())
    elif isinstance(thing, list | tuple | collections.deque):
        yield from ((f"[{index}]", part) for index, part in enumerate(thing))
    elif isinstance(thing, keras.callbacks.History):
        yield from ((".epoch", thing.epoch), (".history", thing.history))
    elif isinstance(thing, keras.Layer | keras.Optimizer | keras.Metric):
        yield from ((f".variables[{index}]", part) for index, part in enumerate(thing.variables))
        yield from (
            (f".{key}", part) for key, part in vars(thing).items() if isinstance(part, keras.Optimizer)
        )
        if _is_of_script(thing):
            yield from _attributes(thing)
    elif isinstance(thing, keras.callbacks.CSVLogger):
        # Its attributes say how this process opened the file.
        return
    elif isinstance(thing, keras.callbacks.Callback) or _is_of_script(thing):
        yield from _attributes(thing)


def _attributes(thing: Any) -> Iterable[tuple[str, Any]]:
    for key, part in getattr(thing, "__dict__", {}).items():
        if not key.startswith("_") and key != "params":
            yield f".{key}", part


def _is_of_script(thing: Any) -> bool:
    return not isinstance(thing, type) and type(thing).__module__ == "__main__"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return repr(value)
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    if array.ndim == 0:
        # A float of Python and one of NumPy are the same number.
        return repr(array.item())
    content = repr(array.tolist()).encode() if array.dtype == object else array.tobytes()
    size = f", of sum {np.abs(array).sum(dtype=float):.9g}" if array.dtype.kind in "fiub" else ""
    return f"{array.dtype} {array.shape} {hashlib.sha256(content).hexdigest()[:12]}{size}"
