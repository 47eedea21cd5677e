"""The processes of one job on this node: started, watched and ended together.

Each rank has its own process group. So a signal to the launcher, from its parent or from a terminal, reaches
each rank once, through the launcher, and no rank outlives its job:

- when a rank fails, the others are ended after a few seconds in which they may end by themselves; when a rank
  hangs, at once;
- when a rank fails on another node, those of this node are ended as if it had failed here;
- processes that a rank leaves running in its group are killed with it;
- when the launcher is killed, all groups are killed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType

from det_keras.launch.nodes import Failure, Nodes, precedence
from det_keras.launch.process_group import (
    GroupReaper,
    child_signals,
    has_exited,
    signal_group,
    start_group,
)
from det_keras.launch.rank_output import OutputStream, RankLines
from det_keras.workers.channel import Channel
from det_keras.workers.heartbeat import REJECTS_HPARAMS, Heartbeats

# The same name when the launcher runs as `__main__`.
logger = logging.getLogger("det_keras.launch")

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STDOUT, _STDERR = 1, 2
_READ_BYTES = 1 << 16
# After a failure: enough time to finish a nearly written checkpoint and for the last output of the others.
_GRACE_S = 3.0
# A process that a rank left running in another group may keep the rank's output open. The wait for it is limited.
_DRAIN_S = 2.0


class RankGroup:
    """Runs one command as several ranks.

    Args:
        argv: the command.
        environments: the complete environment of each rank of this node, by rank.
        heartbeats: finds ranks that hang.
        nodes: the launchers of the other nodes.
        descriptors: what each rank inherits besides its outputs, by rank.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environments: Mapping[int, Mapping[str, str]],
        heartbeats: Heartbeats,
        nodes: Nodes,
        descriptors: Mapping[int, Sequence[int]] | None = None,
    ) -> None:
        self._argv = list(argv)
        self._environments = environments
        self._heartbeats = heartbeats
        self._nodes = nodes
        self._descriptors = descriptors or {}
        self._alive: dict[int, subprocess.Popen[bytes]] = {}
        self._lines: dict[int, RankLines] = {}
        self._failure: Failure | None = None
        self._deadline: float | None = None

    def run(self, *, when_started: Callable[[], None]) -> int:
        """Run the ranks to their end.

        Args:
            when_started: called once, after the last fork; it may start threads. A fork copies only the calling
                thread, so no thread may run before.

        Returns:
            0 if all ranks, of all nodes, exited with 0, else the exit code of the first that did not.

        Raises:
            OSError: the command cannot be started; ranks that already run are killed.
        """
        reaper = GroupReaper()
        try:
            with selectors.DefaultSelector() as selector, child_signals() as wake_up:
                selector.register(wake_up, selectors.EVENT_READ)
                selector.register(self._heartbeats, selectors.EVENT_READ)
                for link in self._nodes.links:
                    selector.register(link, selectors.EVENT_READ)
                with self._forwarding_signals():
                    self._start_all(selector, reaper)
                when_started()
                while self._alive:
                    self._read_ready(selector, self._patience_s())
                    self._reap(selector, reaper)
                    self._end_if_hanging()
                selector.unregister(wake_up)
                selector.unregister(self._heartbeats)
                for link in self._nodes.links:
                    selector.unregister(link)
                self._drain(selector)
        finally:
            self._kill_all(reaper)
            reaper.dismiss()
        return self._conclude()

    @contextlib.contextmanager
    def _forwarding_signals(self) -> Iterator[None]:
        """Forward signals from now on; hold back those that arrive inside this block until its end.

        So each rank receives each signal once, also ranks that did not exist yet when it arrived. Python runs the
        handlers on the main thread, which runs this block too.
        """
        early: list[int] = []
        is_complete = False

        def forward(number: int, _: FrameType | None) -> None:
            if is_complete:
                self._signal_all(number)
            else:
                early.append(number)

        for forwarded in _FORWARDED:
            signal.signal(forwarded, forward)
        yield
        is_complete = True
        for number in early:
            self._signal_all(number)

    def _signal_all(self, number: int) -> None:
        for process in list(self._alive.values()):
            signal_group(process.pid, number)

    def _start_all(self, selector: selectors.BaseSelector, reaper: GroupReaper) -> None:
        outputs = OutputStream(_STDOUT), OutputStream(_STDERR)
        for rank, environment in self._environments.items():
            process = start_group(self._argv, environment, descriptors=self._descriptors.get(rank, ()))
            self._alive[rank] = process
            reaper.watch(process.pid)
            for pipe, output in zip((process.stdout, process.stderr), outputs, strict=True):
                assert pipe is not None
                self._lines[pipe.fileno()] = RankLines(rank, output)
                selector.register(pipe, selectors.EVENT_READ)

    def _patience_s(self) -> float:
        look_s = self._heartbeats.due_in_s
        return look_s if self._deadline is None else min(look_s, max(0.0, self._deadline - time.monotonic()))

    def _read_ready(self, selector: selectors.BaseSelector, timeout_s: float) -> None:
        for key, _ in selector.select(timeout_s):
            if key.fileobj is self._heartbeats:
                self._heartbeats.receive()
                continue
            if isinstance(key.fileobj, Channel):
                self._hear(selector, key.fileobj)
                continue
            data = os.read(key.fd, _READ_BYTES)
            lines = self._lines.get(key.fd)
            if lines is None:
                continue
            lines.feed(data)
            if not data:
                selector.unregister(key.fileobj)

    def _reap(self, selector: selectors.BaseSelector, reaper: GroupReaper) -> None:
        ended = [(rank, process) for rank, process in self._alive.items() if has_exited(process)]
        statuses = {}
        for rank, process in ended:
            # The rank is not yet reaped, so its number names only its own group. `forget` also precedes `wait`:
            # afterwards the number may be reused, and the reaper would kill the wrong group.
            signal_group(process.pid, signal.SIGKILL)
            reaper.forget(process.pid)
            del self._alive[rank]
            statuses[rank] = process.wait()
        if ended:
            # Read its last output before its exit status is reported.
            self._read_ready(selector, 0)
        for rank in sorted(statuses, key=lambda rank: (precedence(statuses[rank]), rank)):
            if statuses[rank] != 0:
                self._note_failure(rank, statuses[rank])
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._signal_all(signal.SIGKILL)
            self._deadline = None

    def _note_failure(self, rank: int, status: int) -> None:
        name = self._nodes.placement.describe_rank(rank)
        if self._failure is None:
            self._failure = Failure(f"{name} {_ending(status)}", status)
            self._nodes.report(self._failure)
            self._deadline = time.monotonic() + _GRACE_S
            logger.error("%s.%s", self._failure.cause, self._rest())
        elif self._deadline is not None:
            logger.error("After that, %s %s.", name[0].lower() + name[1:], _ending(status))
            if status == REJECTS_HPARAMS and self._failure.status != status:
                # The ranks that waited for it failed while it reported to the master. Its end is the cause of theirs.
                self._failure = Failure(f"{name} {_ending(status)}", status)
                self._nodes.report(self._failure)

    def _rest(self) -> str:
        """Return what follows from a failure of a rank."""
        others = len(self._alive)
        if self._nodes.links:
            return f" Ending all {self._nodes.placement.size} ranks."
        return f" Ending the other {others} of {len(self._environments)} ranks." if others else ""

    def _hear(self, selector: selectors.BaseSelector, link: Channel) -> None:
        failures = self._nodes.hear(link)
        if link.is_closed:
            # In this order: the reaper has a copy of the descriptor, so that closing ours would not end its events.
            selector.unregister(link)
            link.close()
        for failure in failures:
            if self._failure is None:
                logger.error("%s. Ending the %d ranks of this node.", failure.cause, len(self._alive))
                self._failure = failure
                self._deadline = time.monotonic() + _GRACE_S
            elif failure.precedence < self._failure.precedence:
                logger.error("%s.", failure.cause)
                self._failure = failure

    def _end_if_hanging(self) -> None:
        rank = self._heartbeats.hanging({rank: process.pid for rank, process in self._alive.items()})
        if rank is None:
            return
        if self._failure is None:
            self._failure = Failure(
                f"{self._nodes.placement.describe_rank(rank)} has shown no sign of life for "
                f"{self._heartbeats.patience_s:g} s",
                -signal.SIGKILL,
            )
            self._nodes.report(self._failure)
            logger.error(
                "%s: it is stopped or swapped out. Ending all %d ranks.",
                self._failure.cause,
                self._nodes.placement.size,
            )
        self._deadline = None
        self._signal_all(signal.SIGKILL)

    def _conclude(self) -> int:
        failure = self._nodes.conclude(self._failure)
        if failure is not None and self._failure is None:
            logger.error("%s, after the ranks of this node had ended.", failure.cause)
        return 0 if failure is None else exit_code(failure.status)

    def _drain(self, selector: selectors.BaseSelector) -> None:
        deadline = time.monotonic() + _DRAIN_S
        while selector.get_map() and (left_s := deadline - time.monotonic()) > 0:
            self._read_ready(selector, left_s)
        for lines in self._lines.values():
            lines.finish()

    def _kill_all(self, reaper: GroupReaper) -> None:
        """Kill the remaining ranks when the launcher itself fails."""
        self._signal_all(signal.SIGKILL)
        while self._alive:
            _, process = self._alive.popitem()
            reaper.forget(process.pid)
            process.wait()


def exit_code(status: int) -> int:
    """Return the launcher's exit code for the status of a rank: that of a shell, which is 128 + n for signal n.

    It is 0 if the rank rejected its hyperparameters: a master reads the exit code before the rank's report.
    """
    if status == REJECTS_HPARAMS:
        return 0
    return status if status >= 0 else 128 - status


def _ending(status: int) -> str:
    if status == REJECTS_HPARAMS:
        return "rejected these hyperparameters"
    if status >= 0:
        return f"exited with code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"
