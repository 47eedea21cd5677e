"""Compares the training states of two checkpoints, bit for bit, without TensorFlow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from det_keras.checkpoint_format import StoredState

# Compared in a way of their own.
_OTHERWISE = frozenset({"version", "position", "history", "random", "random_counters"})
# The files that a script wrote, in which formats such as zip store the time; and how data is brought to its position,
# for which a process that has done so once stores more than one that has not.
_NOT_COMPARED = frozenset({"files", "workers", "source", "validation_source"})


def differences(expected: Path, found: Path, kind: type[StoredState] = StoredState) -> Iterator[str]:
    """Yield what differs between two checkpoints, by the paths of variables and the names of streams.

    Objects that are pickled are not compared: reading them needs the script's classes.

    Args:
        expected: the directory of a checkpoint.
        found: the directory of another one.
        kind: reads them.

    Raises:
        CheckpointError: one of them has no training state.
    """
    before, after = kind.read(expected), kind.read(found)
    if before.state["position"] != after.state["position"]:
        yield f"the position: {before.state['position']} and {after.state['position']}"
    named = list(_differing_variables(before, after))
    yield from named
    # Scalars of the model have no place of their own in the file.
    if not named and not np.array_equal(before.weights, after.weights):
        yield "the weights of the model"
    if _text(before.state["history"]) != _text(after.state["history"]):
        yield "the history"
    streams = before.state["random"], after.state["random"]
    for name in sorted({*streams[0], *streams[1]}):
        if streams[0].get(name) != streams[1].get(name):
            yield f"the random state of {name}"
    draws = _draws(before), _draws(after)
    for name in sorted({each[0] for each in draws[0] ^ draws[1]}):
        yield f"the random numbers of `tf.random` ops in `{name}`"
    for name in sorted({*before.state, *after.state} - _OTHERWISE - _NOT_COMPARED):
        if _text(before.state.get(name)) != _text(after.state.get(name)):
            yield f"`{name}` of the training"


def digest(checkpoint: Path) -> str:
    """Return a digest of the variables of a checkpoint."""
    state = StoredState.read(checkpoint)
    digest = hashlib.sha256(state.weights.tobytes())
    for variable in state.variables:
        if "offset" in variable:
            digest.update(np.ascontiguousarray(state.array(variable)).tobytes())
    return digest.hexdigest()


def _text(value: Any) -> str:
    # As text: NaN is not equal to itself.
    return json.dumps(value, sort_keys=True)


def _draws(state: StoredState) -> set[tuple[str, str, str]]:
    """Return name, arguments and states of each function with random ops; each process has keys of its own for them."""
    counters = state.state.get("random_counters", {"steps": {}, "others": []})
    entries = [*counters["others"], *(each for found in counters["steps"].values() for each in found)]
    return {(each["name"], each["signature"], _text(each["states"])) for each in entries}


def _differing_variables(expected: StoredState, found: StoredState) -> Iterator[str]:
    counts = len(expected.variables), len(found.variables)
    if counts[0] != counts[1]:
        yield f"the number of variables: {counts[0]} and {counts[1]}"
    values = zip(expected.variables, expected.values(), found.values(), strict=False)
    for variable, ours, theirs in values:
        if ours is not None and theirs is not None and ours.tobytes() != theirs.tobytes():
            yield f"the {variable['group']} variable `{variable['path']}`"
