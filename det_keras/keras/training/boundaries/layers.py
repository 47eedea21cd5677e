"""Reports the norms of weights and gradients by layer, and keeps them for a process that resumes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf

from det_keras.keras.gradient_norms import recorded_norms
from det_keras.keras.training.boundaries.base import Boundary, BoundaryCallback, Run
from det_keras.keras.training.boundaries.report_times import ReportTimes
from det_keras.keras.training.parts import Part, Saved

#: The group of the reports.
GROUP = "layers"
_WEIGHTS, _GRADIENTS = "weight_norm", "gradient_norm"
_STATE = "gradient_norms"


class LayersCallback(BoundaryCallback):
    """Reports the norms of each layer's weights and gradients, when training metrics are reported.

    Those of gradients are of the newest batch: averaged over the workers, before clipping.

    Args:
        period: batches between two reports; None for once per epoch.
        variables: returns the trainable variables.
        optimizers: returns the optimizers, which record the norms of their gradients.
    """

    def __init__(
        self,
        period: int | None,
        variables: Callable[[], Sequence[Any]],
        optimizers: Callable[[], Iterable[Any]],
    ) -> None:
        self._times = ReportTimes(period)
        self._variables = variables
        self._optimizers = optimizers
        self._restored: Mapping[str, float] = {}

    def next_batch(self, run: Run) -> int | None:
        return self._times.next_batch(run)

    def on_boundary(self, run: Run, boundary: Boundary) -> None:
        # The workers have the same weights and gradients.
        if self._times.take(run, boundary) and run.core.distributed.is_chief:
            batches = run.progress.total_batches
            run.core.train.report_metrics(GROUP, batches, {**run.counters(), **self.norms()})

    def on_restored(self, run: Run) -> None:
        self._times.restored(run)

    def gradients(self) -> dict[str, float]:
        """Return the squared norms of the newest gradients, by the names of `variable_names`."""
        variables = self._variables()
        names = dict(zip(map(id, variables), variable_names(variables), strict=True))
        found = {
            names[id(variable)]: square
            for variable, square in recorded_norms(self._optimizers())
            if id(variable) in names
        }
        # A process that resumes after the last batch of an epoch ends the epoch without a batch of its own.
        return found or dict(self._restored)

    def restore_gradients(self, squares: Mapping[str, float]) -> None:
        """Use norms of an earlier process until this one has trained a batch."""
        self._restored = squares

    def norms(self) -> dict[str, float]:
        """Return the norms of the whole model and of each layer, by the names of metrics."""
        variables = self._variables()
        names = variable_names(variables)
        # One after another on the device, and one wait for all of them.
        halves = [tf.nn.l2_loss(tf.cast(variable.value, tf.float32)) for variable in variables]
        squares = (2.0 * tf.stack(halves)).numpy().tolist() if halves else []
        weights = dict(zip(names, squares, strict=True))
        return {**_by_layer(_WEIGHTS, weights), **_by_layer(_GRADIENTS, self.gradients())}


class LayersPart(Part):
    """The newest norms of gradients, for a process that resumes after the last batch of an epoch.

    Args:
        callback: reports them.
    """

    def __init__(self, callback: LayersCallback) -> None:
        self._callback = callback

    def capture(self, directory: Path) -> Mapping[str, Any]:
        return {_STATE: {name: repr(square) for name, square in self._callback.gradients().items()}}

    def restore(self, saved: Saved) -> None:
        # A checkpoint of a process that did not report them has none.
        found = saved.state.get(_STATE, {})
        self._callback.restore_gradients({name: float(square) for name, square in found.items()})


def variable_names(variables: Sequence[Any]) -> list[str]:
    """Return a name for each variable, whose part before the last slash is that of its layer.

    The name of the model is left out if all names begin with it. A second variable of the same path is one of another
    layer.
    """
    paths = [variable.path for variable in variables]
    firsts = {path.partition("/")[0] for path in paths}
    if len(firsts) == 1 and all(path.count("/") >= 2 for path in paths):
        paths = [path.partition("/")[2] for path in paths]
    seen: dict[str, int] = defaultdict(int)
    names = []
    for path in paths:
        seen[path] += 1
        layer, _, name = path.rpartition("/")
        layer = layer or name
        names.append(f"{layer if seen[path] == 1 else f'{layer} ({seen[path]})'}/{name}")
    return names


def _by_layer(kind: str, squares: Mapping[str, float]) -> dict[str, float]:
    """Return the norm of all variables and of those of each layer, by the names of metrics."""
    layers: dict[str, float] = defaultdict(float)
    for name, square in squares.items():
        layers[name.rpartition("/")[0]] += square
    if not layers:
        return {}
    norms = {f"{kind}/{layer}": math.sqrt(square) for layer, square in layers.items()}
    return {kind: math.sqrt(sum(squares.values())), **norms}
