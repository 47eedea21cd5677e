"""The replica of a worker that runs a fixed share of the virtual workers: the same bits on any number of workers.

A global batch is cut into as many parts as there are virtual workers, and each part has its own random streams, its own
statistics of the batch, and its own gradient. Everything that a step changes is put together at its end, as the sum of
one binary tree over all parts, whichever worker ran them. So after each step all workers have the same state, and it
does not tell how many they are.

Sources: VirtualFlow (arXiv:2009.09523), EasyScale (arXiv:2208.14228).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from det_keras.core.distributed import DistributedContext, reversed_bits
from det_keras.keras.distributed.exchange import sum_over_parts
from det_keras.keras.distributed.lockstep import Lockstep
from det_keras.keras.distributed.replica import Replica, Step, seed_variables
from det_keras.keras.distributed.shared_step import Share, SharedStep
from det_keras.keras.distributed.worker_replica import WorkerReplica
from det_keras.keras.private_api.models import all_layers
from det_keras.keras.private_api.random_ops import existing_keras_seed_generator
from det_keras.keras.private_api.steps import layer_losses, noticed_assignments


class VirtualReplica(Replica):
    """Runs each step once for each virtual worker of this worker; arguments as for `Replica`."""

    def spread_seeds(self) -> None:
        """Do nothing: each step derives the random streams of its parts."""

    def averages(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(variable.value) for variable in self.statistics]

    @contextmanager
    def averaged(self) -> Iterator[None]:
        yield

    def get_state(self) -> dict[str, Any]:
        return {"trained": 0, "values": []}

    def load_state(self, state: dict[str, Any]) -> None:
        """Do nothing: the shared state is all."""

    def begin_anew(self) -> None:
        """Do nothing: nothing depends on the number of workers."""

    def sum_metrics(self) -> list[np.ndarray[Any, Any]]:
        return [np.asarray(variable.value) for variable in self._model.metrics_variables]

    def _result(self, original: Callable[[], Any]) -> Callable[[], Any]:
        return original

    def _step(self, original: Step, *, counts: bool) -> Step:
        def step(packed: Any) -> Any:
            data, counted = packed
            parts = _Parts(self._model, self.statistics, self._distributed, data, counted)

            def enter(index: int) -> None:
                self._shared.share = parts.shares[index]
                parts.enter(index)

            def leave(index: int) -> None:
                self._shared.share = None
                parts.leave(index)

            def run_part(index: int) -> tuple[Any, dict[str, Any]]:
                logs = original(parts.data[index])
                numbers = self._numbers(logs, trains=counts)
                fraction = self._shared.learn_fraction()
                parts.fractions[index] = fraction
                weighted = {
                    name: tf.math.multiply_no_nan(value, tf.cast(fraction, value.dtype))
                    for name, value in numbers.items()
                }
                return logs, weighted

            lockstep = Lockstep(self._distributed.parts, enter, leave)

            def notice(variable: Any) -> None:
                if lockstep.is_in_part:
                    parts.notice(variable)

            with self._shared.of(None, lockstep), noticed_assignments(notice):
                results = lockstep.run(run_part)
            logs, numbers = results[0]
            sums = parts.finish(
                [list(own.values()) for _, own in results],
                name=self._shared.name_of("state"),
                has_trained=counts,
            )
            if not isinstance(logs, dict):
                return logs
            found = {**self._logged_results(trains=counts), **dict(zip(numbers, sums, strict=True))}
            return {name: found.get(name, value) for name, value in logs.items()}

        return step


class _Parts:
    """The rows and the state of each virtual worker during one step.

    Args:
        model: the model.
        statistics: its moving statistics.
        workers: the workers.
        data: this worker's rows of a batch.
        counted: number of rows of this worker that count; or a pair, with the number of all rows.

    Attributes:
        data: the rows of each part.
        shares: the numbers of rows of each part.
        fractions: of the rows of all workers, for each part; set while the parts run.
    """

    def __init__(
        self, model: Any, statistics: list[Any], workers: DistributedContext, data: Any, counted: tf.Tensor
    ) -> None:
        self._first = workers.rank * workers.parts
        self.data, self.shares = _cut(data, counted, self._first, workers)
        self.fractions: list[Any] = [None] * workers.parts
        self._layers = all_layers(model)
        self._seeds = _seed_states(model)
        self._statistics, self._metrics = list(statistics), list(model.metrics_variables)
        known = {id(variable) for variable in (*self._seeds, *statistics)}
        unchanged = [variable for variable in model.non_trainable_variables if id(variable) not in known]
        self._others = [variable for variable in unchanged if not tf.as_dtype(variable.dtype).is_floating]
        # Frozen weights, which a step of one's own may assign, as that of a network that follows another.
        self._frozen = {id(variable) for variable in unchanged if tf.as_dtype(variable.dtype).is_floating}
        self._kept = [*statistics, *self._others, *self._metrics, *self._seeds]
        self._before = {id(variable): variable.value.read_value() for variable in self._kept}
        self._streams: list[list[tf.Tensor]] = [[] for _ in range(workers.parts)]
        self._states: list[dict[int, Any] | None] = [None] * workers.parts
        self._losses: list[list[list[Any]]] = [[[] for _ in self._layers] for _ in range(workers.parts)]

    def notice(self, variable: Any) -> None:
        """Keep a variable that a part is about to assign like moving statistics.

        Raises:
            ValueError: it is a weight that an optimizer changes, or no variable of the model: what the parts make of it
                cannot be put together.
        """
        if id(variable) in self._before:
            return
        if id(variable) not in self._frozen:
            raise ValueError(
                f"The step assigns `{variable.path}`. With virtual workers, trained weights change through wrapped "
                "optimizers only, and what else a step assigns has to be a variable of the model."
            )
        self._before[id(variable)] = variable.value.read_value()
        self._statistics.append(variable)
        self._kept.append(variable)

    def enter(self, index: int) -> None:
        """Assign the state of a part."""
        state = self._states[index]
        if state is None:
            self._begin(index)
        elif len(self._states) > 1:
            # A variable that another part was the first to assign since then is as it was.
            for variable in self._kept:
                variable.assign(state.get(id(variable), self._before[id(variable)]))
        for layer, losses in zip(self._layers, self._losses[index], strict=True):
            layer_losses(layer)[:] = losses

    def leave(self, index: int) -> None:
        """Keep the state of a part."""
        self._states[index] = {id(variable): variable.value.read_value() for variable in self._kept}
        self._losses[index] = [list(layer_losses(layer)) for layer in self._layers]

    def finish(self, numbers: list[list[tf.Tensor]], *, name: str, has_trained: bool) -> list[tf.Tensor]:
        """Put the states of all parts of all workers together, and return the sums of numbers.

        Args:
            numbers: for each part, weighted numbers.
            name: of the exchange.
            has_trained: whether the step may have changed moving statistics.
        """
        statistics = self._statistics if has_trained else []
        sent = []
        for index, own in enumerate(numbers):
            share, fraction = self.shares[index], self.fractions[index]
            changes = [
                # Not the value itself: the mean of equal values may differ from them in the last digit.
                tf.math.multiply_no_nan(
                    self._state(index, variable) - self._before[id(variable)],
                    tf.cast(fraction, variable.dtype),
                )
                for variable in statistics
            ]
            counts = [self._state(index, variable) for variable in self._metrics]
            counts = [tf.where(share.rows > 0, count, tf.zeros_like(count)) for count in counts]
            sent.append([*changes, *counts, *own, *self._facts(index)])
        sums = sum_over_parts(sent, name=name) if sent[0] else []
        changed = [*statistics, *self._metrics]
        for variable, change in zip(changed, sums[: len(changed)], strict=True):
            variable.assign(self._before[id(variable)] + change)
        if not has_trained:
            for variable in self._statistics:
                variable.assign(self._before[id(variable)])
        facts = sums[len(sums) - len(self._others) - len(self._seeds) :]
        for variable, value in zip(self._others, facts[: len(self._others)], strict=True):
            variable.assign(tf.cast(value, variable.dtype))
        for variable, draws in zip(self._seeds, facts[len(self._others) :], strict=True):
            # A step that drew nothing, such as one of a validation, leaves the state as it was.
            drawn = tf.stack([tf.zeros((), variable.dtype), tf.cast(draws > 0, variable.dtype)])
            variable.assign(self._before[id(variable)] + drawn)
        return sums[len(changed) : len(sums) - len(facts)]

    def _facts(self, index: int) -> list[tf.Tensor]:
        """Return what does not count rows: the values of the first part of all, and which streams were drawn from."""
        is_first = self._first + index == 0
        values = [tf.cast(self._state(index, variable), tf.int64) for variable in self._others]
        streams = zip(self._seeds, self._streams[index], strict=True)
        return [
            *(value if is_first else tf.zeros_like(value) for value in values),
            *(
                tf.cast(tf.reduce_any(self._state(index, variable) != stream), tf.int64)
                for variable, stream in streams
            ),
        ]

    def _begin(self, index: int) -> None:
        if index > 0:
            for variable in (*self._statistics, *self._others):
                variable.assign(self._before[id(variable)])
        for variable in self._metrics:
            variable.assign(tf.zeros_like(self._before[id(variable)]))
        streams = [_stream(self._before[id(variable)], self._first + index) for variable in self._seeds]
        for variable, stream in zip(self._seeds, streams, strict=True):
            variable.assign(stream)
        self._streams[index] = streams

    def _state(self, index: int, variable: Any) -> Any:
        state = self._states[index]
        assert state is not None
        return state.get(id(variable), self._before[id(variable)])


def _cut(
    data: Any, counted: tf.Tensor, first: int, workers: DistributedContext
) -> tuple[list[Any], list[Share]]:
    """Return the rows and the share of each part of this worker.

    Arrays and `PyDataset`s give a worker consecutive rows, and so its parts. A tf.data pipeline gives it every n-th
    element, and does not know the number of rows of the others.
    """
    count, total = workers.parts, workers.virtual_workers
    pieces, shares = [], []
    for index in range(count):
        if counted.shape.rank:
            rows, place, step = counted[1], first + index, 1
            start = rows * place // total - rows * first // total
            size = rows * (place + 1) // total - rows * place // total
        else:
            # Neighbours in the tree are those that one worker of half as many workers would have.
            start, step = tf.constant(reversed_bits(index, count), counted.dtype), count
            size = tf.maximum((counted - start + count - 1) // count, 0)
        # A part without rows runs one that is not counted.
        begin = tf.where(size > 0, start, 0)
        end = begin + (tf.maximum(size, 1) - 1) * step + 1
        pieces.append(_rows_of(data, begin, end, step))
        shares.append(Share(size, counted[1] if counted.shape.rank else None))
    return pieces, shares


def _rows_of(data: Any, begin: tf.Tensor, end: tf.Tensor, step: int) -> Any:
    def rows_of(tensor: Any) -> Any:
        if isinstance(tensor, tf.SparseTensor):
            raise ValueError("Virtual workers cannot share sparse tensors: make them dense in the data.")
        return tensor[begin:end:step]

    return keras.tree.map_structure(rows_of, data)


def _seed_states(model: Any) -> list[Any]:
    """Return the states of all seed generators: of the model's layers, and Keras's own."""
    found = seed_variables(model)
    shared = existing_keras_seed_generator()
    if shared is not None and all(shared.state is not state for state in found):
        found.append(shared.state)
    return found


def _stream(state: tf.Tensor, part: int) -> tf.Tensor:
    """Return the state of a part's random stream in a step; `state` is counted up from step to step."""
    seed = tf.bitcast(tf.cast(state, tf.uint32), tf.int32)
    folded = tf.random.experimental.stateless_fold_in(seed, part)
    return tf.cast(tf.bitcast(folded, tf.uint32), state.dtype)


def make_replica(
    model: Any, workers: DistributedContext, step: SharedStep, *, may_lack_rows: bool = True
) -> Replica:
    """Return the replica of `model` on this worker; arguments as for `Replica`."""
    kind = VirtualReplica if workers.has_virtual else WorkerReplica
    return kind(model, workers, step, may_lack_rows=may_lack_rows)
