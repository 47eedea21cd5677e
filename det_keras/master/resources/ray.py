"""Tasks on the machines of a Ray cluster.

A task is a placement group with a bundle for each node and a detached, named actor in each bundle
(`det_keras.master.resources.ray_node`). Ray chooses the machines, and knows by the placement groups that are pending
what the master waits for. Tasks without slots, such as TensorBoard, run on the master's own machine.

This module does not import Ray. A process of its own does (`det_keras.master.resources.ray_bridge`); when it ends, all
tasks keep their last known state until another one has found them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.launch.fork_server import NOTHING_CHANGED, Inheritance
from det_keras.launch.importable import importable
from det_keras.master.lifecycle import Exit
from det_keras.master.resources.base import Launch, LogEntry, Node, ResourcePool, Share, State, TaskState
from det_keras.master.resources.local import LocalPool
from det_keras.master.resources.ray_node import Assignment

logger = logging.getLogger(__name__)

_CONNECT_S = 60.0
_FIRST_RETRY_S, _LAST_RETRY_S = 1.0, 10.0
# Ray's autoscaler needs the next tasks, not a search with thousands of them.
_MOST_DEMAND = 50


@dataclass
class _Task:
    """A task on Ray, as far as this master knows.

    Attributes:
        state: its last known state.
        launch: how to start it, until it is placed; None for a task of an earlier master.
        certificate: content of the PEM file with which the master's certificate is checked; None for none.
    """

    state: TaskState
    launch: Launch | None = None
    certificate: str | None = None


class RayPool(ResourcePool):
    """The machines of a Ray cluster.

    Args:
        address: as `ray.init` takes it: ``auto``, ``host:6379`` or ``ray://host:10001``.
        cluster_id: the id of the data root: actors of different masters have different namespaces.
        home: the data root; tasks without slots run there.
        environment: the master's environment, for tasks without slots.
        is_only_local: whether only this machine reaches the master.
        when_changed: called after each change of a task's state or of the machines.
        inheritance: what tasks without slots have of the account; all that this process has by default.
    """

    def __init__(
        self,
        address: str,
        cluster_id: str,
        home: Home,
        environment: Mapping[str, str],
        *,
        is_only_local: bool,
        when_changed: Callable[[], None] = lambda: None,
        inheritance: Inheritance = NOTHING_CHANGED,
    ) -> None:
        if importlib.util.find_spec("ray") is None:
            raise DetError("Ray requires the package `ray`: `pip install 'det_keras[ray]'`.")
        self._address = address
        self._cluster_id = cluster_id
        self._facts = {"address": address, "cluster_id": cluster_id}
        self._home = home
        self._is_only_local = is_only_local
        self._when_changed = when_changed
        self._local = LocalPool(home, (), environment, inheritance=inheritance)
        # Guards all that follows: the dispatcher and the requests call, and the reader's thread tells news.
        self._lock = threading.RLock()
        self._tasks: dict[str, _Task] = {}
        self._nodes: tuple[Node, ...] = ()
        self._is_one_machine = is_only_local
        self._demand: list[tuple[int, ...]] = []
        # The most slots of one machine, now or when there last was a machine with slots.
        self._largest = 0
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._is_stopping = threading.Event()
        self._first_answer: threading.Event = threading.Event()
        self._problem: str | None = None
        self._thread = threading.Thread(target=self._keep_connected, name="ray", daemon=True)

    @property
    def description(self) -> str:
        problem = self._problem
        return f"Ray at {self._address}" + ("" if problem is None else f", which cannot be used: {problem}")

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    @property
    def is_one_machine(self) -> bool:
        return self._is_one_machine

    @property
    def max_slots(self) -> int | None:
        # Ray's autoscaler may add machines.
        return None

    def start(self, live: Mapping[str, Sequence[Share]]) -> None:
        """Connect; without waiting for it where an earlier master was connected: Ray may be away for a while.

        Raises:
            DetError: there is no Ray at the address, or its machines cannot reach this master.
        """
        for allocation_id, shares in live.items():
            if shares:
                self._tasks[allocation_id] = _Task(TaskState(State.PENDING, shares=tuple(shares)))
        was_connected = bool(live) and _read_facts(self._home) == self._facts
        if was_connected:
            self._first_answer.set()
        self._thread.start()
        if was_connected:
            return
        if not self._first_answer.wait(_CONNECT_S):
            self._problem = self._problem or f"it did not answer within {_CONNECT_S:g} s"
        if self._problem is not None:
            self.stop()
            raise DetError(f"The Ray cluster at {self._address} cannot be used: {self._problem}.")
        _facts_file(self._home).write_text(json.dumps(self._facts), encoding="utf-8")

    def stop(self) -> None:
        self._is_stopping.set()
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                # Not `close`: the thread that reads from it would go on waiting.
                self._socket.shutdown(socket.SHUT_RDWR)

    def launch(self, launch: Launch) -> None:
        if not launch.shares:
            self._local.launch(launch)
            return
        certificate = _read_certificate(launch)
        with self._lock:
            self._tasks[launch.allocation_id] = _Task(TaskState(State.PENDING), launch, certificate)
            self._send("launch", *_placement(launch))

    def look(self, allocation_id: str) -> TaskState:
        if self._local.knows(allocation_id):
            return self._local.look(allocation_id)
        with self._lock:
            if allocation_id not in self._tasks:
                self._tasks[allocation_id] = _Task(TaskState(State.PENDING))
                self._send("watch", allocation_id)
            return self._tasks[allocation_id].state

    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        return self._local.read_log(allocation_id, offset)

    def kill(self, allocation_id: str, *, force: bool) -> None:
        if self._local.knows(allocation_id):
            self._local.kill(allocation_id, force=force)
        else:
            self._send("kill", allocation_id, force)

    def release(self, allocation_id: str) -> None:
        with self._lock:
            if self._tasks.pop(allocation_id, None) is not None:
                self._send("release", allocation_id)

    def kept(self) -> Iterable[str]:
        return self._local.kept()

    def remove(self, allocation_id: str) -> None:
        self._local.remove(allocation_id)

    def demand(self, wanted: Sequence[int]) -> None:
        shapes = [self._shape(slots) for slots in wanted[:_MOST_DEMAND] if slots > 0]
        with self._lock:
            if shapes != self._demand:
                self._demand = shapes
                self._send("demand", shapes)

    def _shape(self, slots: int) -> tuple[int, ...]:
        """Return the bundles of a task that does not fit now, for machines such as there are or were last."""
        largest = self._largest or slots
        full, rest = divmod(slots, largest)
        return (*([largest] * full), *([rest] if rest else []))

    # The bridge.

    def _keep_connected(self) -> None:
        delay_s = _FIRST_RETRY_S
        while not self._is_stopping.is_set():
            was_connected = False
            try:
                if was_connected := self._serve():
                    delay_s = _FIRST_RETRY_S
            except Exception:
                # Such as a process that cannot be started. Without this thread no task would ever end.
                logger.exception("The connection with Ray failed.")
            with self._lock:
                self._connection, self._nodes = None, ()
            if was_connected or self._problem is None:
                self._problem = f"the connection was lost ({self._home.root / 'ray.log'})"
                if not self._is_stopping.is_set():
                    logger.warning("Ray at %s: %s; connecting again.", self._address, self._problem)
            self._when_changed()
            if self._is_stopping.wait(delay_s):
                return
            delay_s = min(2 * delay_s, _LAST_RETRY_S)

    def _serve(self) -> bool:
        """Start a bridge and listen to it until it ends; return whether it was connected."""
        ours, theirs = socket.socketpair()
        # Ray prints pages of native stack when it loses its head, which belong into no log that users read.
        with theirs, (self._home.root / "ray.log").open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-m", "det_keras.master.resources.ray_bridge", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env={"RAY_USAGE_STATS_ENABLED": "0", **importable(os.environ)},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        connection = Connection(os.dup(ours.fileno()))
        is_connected = False
        with self._lock:
            self._socket = ours
            if self._is_stopping.is_set():
                ours.shutdown(socket.SHUT_RDWR)
        try:
            connection.send((self._address, f"det_keras-{self._cluster_id}", self._is_only_local))
            while True:
                name, *arguments = connection.recv()
                if name == "connected":
                    is_connected = True
                    self._connected(connection)
                else:
                    getattr(self, f"_{name}")(*arguments)
                self._when_changed()
        except (EOFError, OSError):
            return is_connected
        finally:
            with self._lock:
                self._socket = self._connection = None
            connection.close()
            ours.close()
            child.kill()
            child.wait()

    def _connected(self, connection: Connection) -> None:
        with self._lock:
            self._connection = connection
            started = [name for name, task in self._tasks.items() if task.launch is None]
            waiting = {name: task.launch for name, task in self._tasks.items() if task.launch is not None}
            self._send("adopt", started, list(waiting))
            for launch in waiting.values():
                self._send("launch", *_placement(launch))
            if self._demand:
                self._send("demand", self._demand)

    def _send(self, *command: Any) -> None:
        # Without a bridge the command is not lost: the next one is told all of it again in `_connected`, and kills are
        # repeated by the dispatcher.
        with self._lock, contextlib.suppress(OSError):
            if self._connection is not None:
                self._connection.send(command)

    # What the bridge tells.

    def _refused(self, reason: str) -> None:
        if self._is_news(reason.splitlines()[0].rstrip(".")):
            logger.warning("Ray at %s cannot be reached: %s.", self._address, self._problem)
        self._first_answer.set()

    def _unreachable(self, addresses: Sequence[str]) -> None:
        problem = (
            f"its machines {', '.join(addresses)} cannot reach a master that listens on loopback. Start it with "
            "--host ADDRESS --tls-cert CERT.pem --tls-key KEY.pem, and with --advertise URL if they reach it under "
            "another address"
        )
        if self._is_news(problem):
            logger.error("Ray at %s cannot be used: %s.", self._address, self._problem)
        self._first_answer.set()

    def _is_news(self, problem: str) -> bool:
        """Record what is wrong; return whether to log it. It is tried again every few seconds, maybe for days."""
        known, self._problem = self._problem, problem
        return self._first_answer.is_set() and problem != known

    def _found(self, nodes: Sequence[Node], is_one_machine: bool) -> None:
        with self._lock:
            self._nodes, self._is_one_machine = tuple(nodes), is_one_machine
            self._largest = max((len(node.slots) for node in nodes), default=0) or self._largest

    def _adopted(self) -> None:
        if self._first_answer.is_set():
            logger.info("Connected with Ray at %s again.", self._address)
        self._problem = None
        self._first_answer.set()

    def _placed(self, allocation_id: str, nodes: Sequence[Node], ray_nodes: Sequence[str]) -> None:
        with self._lock:
            task = self._tasks.get(allocation_id)
            if task is None or task.launch is None:
                return
            launch = replace(task.launch, shares=self._shares(allocation_id, task.launch.shares, nodes))
            task.launch = None
            task.state = TaskState(State.PENDING, shares=launch.shares)
            self._send(
                "start",
                allocation_id,
                _assignments(self._cluster_id, launch, nodes, ray_nodes, task.certificate),
            )

    def _running(self, allocation_id: str) -> None:
        with self._lock:
            if (task := self._tasks.get(allocation_id)) is not None and task.state.state is State.PENDING:
                task.state = replace(task.state, state=State.RUNNING)

    def _resumed(self, allocation_id: str, nodes: Sequence[Node | None]) -> None:
        """Go on with a task that an earlier master started, on the machines where it really is."""
        with self._lock:
            task = self._tasks.get(allocation_id)
            if task is not None and task.state.shares:
                found = [node for node in nodes if node is not None]
                if len(found) == len(task.state.shares) and [node.id for node in found] != [
                    share.node for share in task.state.shares
                ]:
                    shares = self._shares(allocation_id, task.state.shares, found)
                    task.state = replace(task.state, shares=shares)
        self._running(allocation_id)

    def _ended(self, allocation_id: str, exit_: Exit) -> None:
        with self._lock:
            if (task := self._tasks.get(allocation_id)) is not None:
                task.launch = None
                task.state = replace(task.state, state=State.ENDED, exit=exit_)

    def _shares(self, own_id: str, shares: Sequence[Share], nodes: Sequence[Node]) -> tuple[Share, ...]:
        """Return the slots of a task on the machines that Ray chose, which need not be those of the scheduler."""
        # By tasks that are placed, and by the plans of those that wait.
        taken: dict[str, set[int]] = {}
        meant: dict[str, set[int]] = {}
        for allocation_id, task in self._tasks.items():
            if allocation_id != own_id:
                others = task.launch.shares if task.launch is not None else task.state.shares or ()
                for share in others:
                    of = taken if task.launch is None else meant
                    of.setdefault(share.node, set()).update(share.slot_ids)
        planned = {share.node: share for share in shares}
        result = []
        for node, share in zip(nodes, shares, strict=True):
            count = len(share.slot_ids)
            wanted = planned[node.id].slot_ids if node.id in planned else ()
            # Its own plan first, then what no other scheduler plans to take, then what another one only plans to take.
            ids = sorted(
                (slot.id for slot in node.slots),
                key=lambda slot: (
                    slot in taken.get(node.id, ()),
                    slot not in wanted,
                    slot in meant.get(node.id, ()),
                    slot,
                ),
            )
            result.append(Share(node.id, tuple(sorted(ids[:count])), node.address))
        return tuple(result)


def kill_everything(home: Home) -> None:
    """Kill the tasks of a data root on Ray. No master may be running there.

    They leave no exit code, so the next master runs them again from their checkpoints. If Ray cannot be reached, it may
    be gone for good. Its tasks are given up then: those that still run end when the next master refuses their reports.

    Raises:
        DetError: the package `ray` is missing.
    """
    facts = _read_facts(home)
    if facts is None:
        return
    pool = RayPool(facts["address"], facts["cluster_id"], home, {}, is_only_local=False)
    # Without a task to go on with, it gives all machines back.
    try:
        pool.start({})
    except DetError as error:
        logger.warning("%s Trials and jobs that ran there are given up.", error)
    else:
        pool.stop()
    _facts_file(home).unlink()


def former_address(home: Home) -> str | None:
    """Return the address of the Ray cluster on which tasks of a data root may run; None if there is none."""
    facts = _read_facts(home)
    return None if facts is None else facts["address"]


def _facts_file(home: Home) -> Path:
    """Return the file that says where tasks of this data root may run, also while no master does."""
    return home.root / "ray.json"


def _read_facts(home: Home) -> dict[str, str] | None:
    try:
        facts: dict[str, str] = json.loads(_facts_file(home).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return facts


def _read_certificate(launch: Launch) -> str | None:
    path = launch.variables.get("DET_MASTER_CERT_FILE")
    if path is None or path == "noverify":
        return None
    # The certificates themselves are ASCII; what stands between them may be in any encoding.
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _placement(launch: Launch) -> tuple[str, list[int], list[str] | None]:
    """Return the arguments of the bridge's `launch`."""
    nodes = [share.node for share in launch.shares] if launch.is_pinned else None
    return launch.allocation_id, [len(share.slot_ids) for share in launch.shares], nodes


def _assignments(
    cluster_id: str, launch: Launch, nodes: Sequence[Node], ray_nodes: Sequence[str], certificate: str | None
) -> list[Assignment]:
    return [
        Assignment(
            cluster_id=cluster_id,
            node=node.id,
            ray_node=ray_nodes[index],
            slots=tuple(node.slots),
            index=index,
            shares=tuple(launch.shares),
            allocation_id=launch.allocation_id,
            argv=tuple(launch.argv),
            variables=launch.variables,
            has_files=launch.context is not None,
            python_environment=launch.python_environment,
            certificate=certificate,
        )
        for index, node in enumerate(nodes)
    ]
