"""The calls of a context for training loops that a script writes by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType
from typing import Any

from det_keras.keras.loops.loop import Loop
from det_keras.keras.loops.passes import Batches, PassOptions, PassReader
from det_keras.keras.loops.tracked import TrackedObjects, named_objects
from det_keras.keras.private_api.models import calling_frame
from det_keras.keras.script import Script


class LoopCalls:
    """Makes a loop written by hand resume exactly: what it changes is tracked, and it takes its batches from a plan.

    The body of an epoch may run again from its top when a process resumes inside of that epoch; what it did before the
    batches is then undone. Values in plain Python variables are not restored: count and add up with tracked variables
    or metrics, and take the number of a batch from `Batches.step`.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._loop: Loop | None = None
        self._tracked: dict[str, Any] = {}
        self._num_early_batches = 0

    def track(self, **objects: Any) -> None:
        """Track objects that a loop changes: they are what its checkpoints contain.

        Call it before `epochs`, on every worker with the same names. A name that is used again replaces its object.

        Args:
            objects: by name: Keras models, layers, optimizers, metrics and variables, `keras.random.SeedGenerator`,
                `tf.Variable`, `tf.random.Generator`, generators of NumPy and Python, objects with `get_state()` and
                `load_state(state)`, whose state may be anything that can be pickled, and lists and dicts of these. The
                first model is the ``model.keras`` of the checkpoints, the others are ``<name>.keras``.

        Raises:
            TypeError: an object has a type whose state is not known.
            ValueError: a loop is running.

        Example:
            ```pycon
            >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            >>> optimizer = context.wrap_optimizer(keras.optimizers.SGD(0.1))
            >>> context.track(model=model, optimizer=optimizer)
            ```
        """
        self._script.check_open("track")
        self._end_left_loop()
        if self._running_loop is not None:
            raise ValueError(
                "Call `context.track(...)` before `for epoch in context.epochs(...)`, not inside."
            )
        self._tracked |= named_objects(objects)

    def epochs(self, epochs: int, *, on_nan: str = "report") -> Iterator[int]:
        """Return the epochs of a training, to iterate over.

        The first step restores the newest checkpoint. Checkpoints, reports and requests to stop are handled between
        batches and at the ends of epochs, as in `fit`. In a trial whose config or searcher sets a length, that length
        replaces `epochs`. A loop that takes no batches from `batches` is saved and stopped between epochs only.

        Args:
            epochs: number of epochs, at least 1.
            on_nan: what to do if a reported ``loss`` is not finite: ``report`` warns once, ``stop`` ends the trial as
                InvalidHP.

        Returns:
            An iterator over the numbers of the epochs, from 0.

        Raises:
            ValueError: nothing is tracked, an argument is invalid, there are virtual workers, or an optimizer is not
                wrapped on several workers.
            ModelMismatchError: the checkpoint does not fit this script.
            CheckpointError: the last checkpoint could not be written.
            SystemExit: the process was asked to stop and its state is saved.

        Example:
            ```pycon
            >>> x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
            >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            >>> optimizer = context.wrap_optimizer(keras.optimizers.SGD(0.1))
            >>> context.track(model=model, optimizer=optimizer)
            >>> @tf.function
            ... def train_step(x, y):
            ...     with tf.GradientTape() as tape:
            ...         loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            ...     gradients = tape.gradient(loss, model.trainable_variables)
            ...     optimizer.apply(gradients, model.trainable_variables)
            ...     return loss
            >>> for epoch in context.epochs(2):
            ...     for batch_x, batch_y in context.batches(x, y, batch_size=32):
            ...         context.report(loss=train_step(batch_x, batch_y))
            ...     context.report_validation(loss=tf.reduce_mean((model(x) - y) ** 2))
            ...     print(epoch)
            0
            1
            ```
        """
        self._script.check_open("epochs")
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise ValueError(f"`epochs` must be a whole number, at least 1. Received: {epochs!r}.")
        if on_nan not in ("report", "stop"):
            raise ValueError(f"`on_nan` is 'report' or 'stop'. Received: {on_nan!r}.")
        if not self._tracked:
            raise ValueError(
                "Nothing is tracked, so nothing could be restored. First call "
                "`context.track(model=model, optimizer=optimizer)` with all that the loop changes."
            )
        if self._script.core.distributed.has_virtual:
            raise ValueError(
                "Virtual workers need `context.fit`: a loop written by hand runs its step once for each worker. Leave "
                "out `virtual_workers`."
            )
        return self._iterate(epochs, on_nan, calling_frame())

    def batches(
        self,
        *data: Any,
        batch_size: int | None = None,
        shuffle: bool | str | None = None,
        steps_per_epoch: int | None = None,
        training: bool = True,
        name: str | None = None,
    ) -> Batches:
        """Return the batches of a pass over data, to iterate over inside of an epoch.

        They follow the plan of `fit`: the same batches on any number of workers, where each gets its rows, and in each
        process. A resumed process continues at the very batch. Several passes of an epoch are told apart by the order
        of the calls, or by `name`.

        Args:
            data: as for `wrap_data`: x; x and y; x, y and sample weights; a PyDataset; a tf.data.Dataset; on one
                worker also a generator or a DataLoader. On several workers it must be wrapped.
            batch_size: samples per batch of one worker, for arrays; 32 by default.
            shuffle: as in `fit`; by default True for a training, and False otherwise.
            steps_per_epoch: batches of a pass; all by default. Required for data that does not end.
            training: False for batches that are only evaluated: they do not count as trained, training does not stop
                among them, and the pass is read again if a process resumes in its epoch.
            name: name of the pass, unique in its epoch.

        Returns:
            An iterable of batches: what the data has for each, such as ``(x, y)``, as tensors. Its `step` is the number
            of the current batch; `len()` is the number of batches, if it is known.

        Raises:
            TypeError, ValueError: the data or an argument is invalid. Some errors come with the first batch.
        """
        self._script.check_open("batches")
        if not data or data[0] is None:
            raise TypeError("`batches` needs data: x; x and y; a PyDataset; or a tf.data.Dataset.")
        options = PassOptions(batch_size, training if shuffle is None else shuffle, steps_per_epoch, training)
        if self._running_loop is not None:
            return self._running_loop.reading.make_batches(name, data, options, self._reader)
        self._num_early_batches += 1
        key = name or f"batches before the loop {self._num_early_batches}"
        return Batches(self._reader, key, data, options)

    def report(self, **values: Any) -> None:
        """Add values of a batch to the training metrics of its epoch.

        The metrics are means over the batches so far, weighted by their numbers of rows, and on several workers over
        all of them. They are reported at the end of each epoch, or every ``scheduling_unit`` batches if the config sets
        that. The call never waits for the device: tensors are read when a report is due.

        Args:
            values: numbers or arrays by name, as tensors or not; or a Keras metric, whose result at the time of the
                report is reported.

        Raises:
            ValueError: no loop is running.
        """
        self._open_loop("report").report(values)

    def report_validation(self, **values: Any) -> None:
        """Report the result of a validation at the batch that was trained last.

        Args:
            values: numbers or arrays by name, as tensors or not, or Keras metrics; names get the prefix ``val_``.

        Raises:
            ValueError: no loop is running, or the batch has a validation already.
        """
        self._open_loop("report_validation").report_validation(values)

    def _iterate(self, epochs: int, on_nan: str, frame: FrameType) -> Iterator[int]:
        self._begin_training("epochs")
        script = self._script
        tracked = TrackedObjects(self._tracked, script.optimizers.wrapped)
        loop = self._loop = Loop(script, tracked, frame, epochs=epochs, on_nan=on_nan)
        for optimizer in tracked.optimizers.values():
            script.optimizers.check_wrapped(optimizer)
        script.optimizers.record(tracked.optimizers.values())
        start = script.start(loop)
        if not start.is_skipped:
            yield from loop.epochs(start.restored)
        # It refers to all variables of the script.
        self._loop = None

    @property
    def _running_loop(self) -> Loop | None:
        return self._loop if self._loop is not None and self._loop.is_open else None

    def _reader(self) -> PassReader:
        return self._open_loop("batches").reading

    def _open_loop(self, call: str) -> Loop:
        if self._running_loop is None:
            raise ValueError(f"`context.{call}` belongs inside of `for epoch in context.epochs(...)`.")
        return self._running_loop

    def _end_left_loop(self) -> None:
        """End a loop that the script has left with `break`."""
        if self._loop is not None and self._loop.is_left:
            loop, self._loop = self._loop, None
            loop.leave()

    def _begin_training(self, call: str) -> None:
        """Let another training begin.

        Raises:
            ValueError: a loop is running.
        """
        self._end_left_loop()
        if self._running_loop is not None:
            raise ValueError(
                f"`context.{call}` was called inside of `for epoch in context.epochs(...)`. A process that resumes "
                "could not continue both trainings. End the loop first."
            )
