"""Runs a function once for each part of a batch, so that all parts meet where they exchange something.

A train step may apply gradients in the middle, and go on with the new weights. So parts cannot be run one after the
other to their ends: each runs on a thread of its own up to a meeting, and continues when all parts have arrived there.
One thread runs at a time. TensorFlow and Keras keep the state of a trace (the graph, tapes, scopes) for each thread.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from det_keras.keras.private_api.models import copied_thread_state, separate_stacks


class Lockstep:
    """The parts that this worker runs.

    Args:
        count: number of parts.
        enter: called with the index of a part before it starts or continues.
        leave: called with the index of a part after it has stopped or ended.
    """

    def __init__(self, count: int, enter: Callable[[int], None], leave: Callable[[int], None]) -> None:
        self._count, self._enter, self._leave = count, enter, leave
        self._running: _Part | None = None
        self._graph: Any = None

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """Call `function` with the index of each part; return the results.

        Raises:
            RuntimeError: some parts ended where others exchange something.
        """
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self._count > 1 and self._graph is not None:
            separate_stacks(self._graph)
        parts = [_Part(index, function, self._graph) for index in range(self._count)]
        try:
            while True:
                for part in parts:
                    self._enter(part.index)
                    self._running = part
                    part.go_on()
                    self._running = None
                    self._leave(part.index)
                    if part.error is not None:
                        raise part.error
                combines = [part.combine for part in parts if part.combine is not None]
                if not combines:
                    return [part.result for part in parts]
                if len(combines) < len(parts):
                    raise RuntimeError(
                        "The step takes different ways for different virtual workers: some of them apply gradients "
                        "where others do not."
                    )
                # That of the last part: what it closes over is the same for all.
                met = combines[-1]([part.value for part in parts])
                for part in parts:
                    part.combine, part.value = None, met
        finally:
            self._running = None
            for part in parts:
                part.give_up()

    @property
    def is_in_part(self) -> bool:
        """Whether a part runs at present."""
        return self._running is not None

    def merge(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait inside `function` until all parts have called this; return what `combine` returns for their values.

        Args:
            value: of this part.
            combine: called once, outside of the parts.

        Raises:
            ValueError: this is inside a branch or loop of the graph, where parts cannot meet.
        """
        if not tf.executing_eagerly() and tf.compat.v1.get_default_graph() is not self._graph:
            raise ValueError(
                "With virtual workers, a step cannot apply gradients, or compute a loss that needs an exchange, inside "
                "`tf.cond`, `tf.while_loop` or another function of TensorFlow. Move it out of there."
            )
        assert self._running is not None
        return self._running.meet(value, combine)


class _GivenUpError(BaseException):
    """Ends the thread of a part after another part has failed."""


class _Part:
    """One call of the function, on a thread that runs only while `go_on` waits for it."""

    def __init__(self, index: int, function: Callable[[int], Any], graph: Any) -> None:
        self.index = index
        self.value: Any = None
        self.result: Any = None
        self.error: BaseException | None = None
        self.combine: Callable[[list[Any]], Any] | None = None
        self._function, self._graph = function, graph
        self._is_given_up = False
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread_state = copied_thread_state()
        # With the values that `contextvars` have in this thread.
        run = functools.partial(contextvars.copy_context().run, self._run)
        self._thread = threading.Thread(target=run, name=f"det-part-{index}", daemon=True)

    def go_on(self) -> None:
        """Start the function, or let it go on, and wait until it stops."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_run.release()
        self._has_stopped.acquire()

    def meet(self, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Stop the function until the others have arrived; return what was made of all values."""
        self.value, self.combine = value, combine
        self._has_stopped.release()
        self._may_run.acquire()
        if self._is_given_up:
            raise _GivenUpError
        return self.value

    def give_up(self) -> None:
        """End the thread if it still waits."""
        self._is_given_up = True
        if self._thread.ident is not None and self._thread.is_alive():
            self._may_run.release()
            self._thread.join()

    def _run(self) -> None:
        try:
            with self._thread_state:
                if self._graph is None:
                    self.result = self._function(self.index)
                else:
                    with self._graph.as_default():
                        self.result = self._function(self.index)
        except _GivenUpError:
            pass
        except BaseException as error:
            # Also `SystemExit`: it is for the training thread.
            self.error = error
        finally:
            self._has_stopped.release()
