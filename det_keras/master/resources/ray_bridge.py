"""``python -m det_keras.master.resources.ray_bridge FD``: the process that is connected with a Ray cluster.

Ray ends a process that has lost the head of its cluster for a minute. The master must outlive that, so it talks to Ray
through this process, and starts another one when it ends. Both exchange tuples over a pipe; their names are the methods
of `Commands` here and of `RayPool` there.

Nothing is stored here: the tasks are actors with names, and what waits for machines is a placement group with a name.
Another bridge finds them again.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from det_keras.about import LOG_FORMAT
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources.base import Node, Slot
from det_keras.master.resources.ray_node import Assignment, NodeActor

logger = logging.getLogger("det_keras.master.ray")

_NODES_S = 1.0
_QUIET_S = 10.0
# A placement group that is not placed at once is asked for less often, up to this period.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.005, 0.25
# Ray calls block while the head is away. A bridge that makes no progress for so long is replaced.
_STANDSTILL_S = 30.0
_KNOCK_S = 5.0
# Of the resource by which Ray names a node, only a trace is taken.
_TRACE = 0.001


@dataclass
class _Task:
    """A task in this bridge.

    Attributes:
        group: its placement group.
        actors: one for each bundle; empty until they are placed.
        ends: how the bundles ended, by index.
        pins: the ids of the nodes on which it has to be; empty if Ray chooses.
        look_at: when to ask next whether it is placed.
        delay_s: period of asking.
    """

    group: Any
    actors: list[Any] = field(default_factory=list)
    ends: dict[int, Exit] = field(default_factory=dict)
    pins: Sequence[str] = ()
    look_at: float = 0.0
    delay_s: float = _FIRST_LOOK_S


class Bridge:
    """Carries out the master's commands, and tells it what happens.

    Args:
        connection: to the master.
        hosts: addresses of the machines to use; None for all.
    """

    def __init__(self, connection: Connection, hosts: Collection[str] | None) -> None:
        self._connection = connection
        self._hosts = hosts
        self._tasks: dict[str, _Task] = {}
        self._wanted: Counter[tuple[int, ...]] = Counter()
        self._demand: list[tuple[tuple[int, ...], Any]] = []
        self._quiet_until: dict[tuple[int, ...], float] = {}
        self._events: queue.Queue[tuple[Any, ...]] = queue.Queue()
        self._nodes: dict[str, Node] | None = None
        self._resource = "CPU"
        self._ticked_at = time.monotonic()

    def run(self) -> None:
        """Work until the master ends."""
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._guard, daemon=True).start()
        nodes_at = 0.0
        while True:
            self._ticked_at = time.monotonic()
            if time.monotonic() >= nodes_at:
                self._look_for_nodes()
                self._show_demand()
                nodes_at = time.monotonic() + _NODES_S
            waits = [task.look_at for task in self._tasks.values() if not task.actors]
            timeout = max(0.0, min([nodes_at, *waits]) - time.monotonic())
            with contextlib.suppress(queue.Empty):
                name, *arguments = self._events.get(timeout=timeout)
                getattr(self, name)(*arguments)
            for allocation_id, task in list(self._tasks.items()):
                if not task.actors and task.look_at <= time.monotonic():
                    self._look_for_place(allocation_id, task)

    # Commands of the master.

    def launch(self, allocation_id: str, slots: Sequence[int], names: Sequence[str] | None) -> None:
        """Ask Ray for machines: a bundle for each entry of `slots`.

        Args:
            allocation_id: the task.
            slots: number of slots on each of its machines.
            names: the machines; None if Ray chooses them.
        """
        from ray.util.placement_group import placement_group

        ids = {node.id: ray_id for ray_id, node in (self._nodes or {}).items()}
        if names is not None and any(name not in ids for name in names):
            self._tasks[allocation_id] = _Task(self._group(allocation_id))
            self._lose(allocation_id, "its machine left Ray")
            return
        pins = [ids[name] for name in names or ()]
        group = self._group(allocation_id)
        if group is None:
            bundles = [self._bundle(count) for count in slots]
            pinned = self._pinned(bundles, pins)
            group = placement_group(
                bundles, strategy="STRICT_SPREAD", name=allocation_id, lifetime="detached", **pinned
            )
        self._tasks[allocation_id] = _Task(group, pins=pins)

    def start(self, allocation_id: str, assignments: Sequence[Assignment]) -> None:
        """Start an actor in each bundle of a placed task."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        task = self._tasks.get(allocation_id)
        if task is None:
            return
        for assignment in assignments:
            count = len(assignment.shares[assignment.index].slot_ids)
            actor = (
                ray.remote(NodeActor)
                .options(
                    name=_actor_name(allocation_id, assignment.index),
                    lifetime="detached",
                    max_restarts=0,
                    **{f"num_{self._resource.lower()}s": count},
                    scheduling_strategy=PlacementGroupSchedulingStrategy(task.group, assignment.index),
                )
                .remote()
            )
            task.actors.append(actor)
        # After all actors exist: a bridge that is killed in between leaves too few, which another one recognises.
        for actor, assignment in zip(task.actors, assignments, strict=True):
            started = actor.start.remote(assignment)
            self._when_done(started, allocation_id, assignment.index, "_started")

    def adopt(self, started: Collection[str], waiting: Collection[str]) -> None:
        """Watch the tasks that were started, and give back the machines of all but these and the waiting ones."""
        from ray.util.placement_group import placement_group_table

        known = {*started, *waiting}
        for facts in placement_group_table().values():
            if facts["state"] != "REMOVED" and facts["name"] not in known:
                # Other masters have other namespaces, in which this name is not found.
                self._remove_group(self._group(facts["name"]))
        import ray

        names = set(ray.util.list_named_actors())
        for allocation_id in started:
            self._ticked_at = time.monotonic()
            self._watch(allocation_id, names)
        self._tell("adopted")

    def watch(self, allocation_id: str) -> None:
        """Find a task again that an earlier bridge started."""
        import ray

        self._watch(allocation_id, set(ray.util.list_named_actors()))

    def _watch(self, allocation_id: str, names: Collection[str]) -> None:
        import ray
        from ray.util.placement_group import placement_group_table

        if allocation_id in self._tasks:
            return
        group = self._group(allocation_id)
        count = 0 if group is None else len(group.bundle_specs)
        expected = [_actor_name(allocation_id, index) for index in range(count)]
        task = self._tasks[allocation_id] = _Task(group)
        with contextlib.suppress(ValueError):
            if expected and set(expected).issubset(names):
                task.actors = [ray.get_actor(name) for name in expected]
        if not task.actors:
            # Whatever there is of it has not been started, and will never be.
            self._lose(allocation_id, "Ray has no actor of it")
            return
        places = placement_group_table(group)["bundles_to_node_id"]
        nodes = [(self._nodes or {}).get(places[index]) for index in sorted(places)]
        self._tell("resumed", allocation_id, nodes)
        for index, actor in enumerate(task.actors):
            self._when_done(actor.wait.remote(), allocation_id, index, "_ended")

    def kill(self, allocation_id: str, force: bool) -> None:
        """Kill a task."""
        import ray

        task = self._tasks.get(allocation_id)
        if task is None:
            return
        if not task.actors:
            self._lose(allocation_id, "it was killed before Ray had found machines for it")
        for actor in task.actors:
            if force:
                # Its supervisor ends with it.
                ray.kill(actor)
            else:
                actor.kill.remote(force=False)

    def release(self, allocation_id: str) -> None:
        """Give the machines of a task back, once its files are deleted."""
        task = self._tasks.pop(allocation_id, None)
        group = task.group if task is not None else self._group(allocation_id)
        closing = [actor.close.remote() for actor in task.actors] if task is not None else []
        left = [len(closing)]

        def closed(_: Any) -> None:
            left[0] -= 1
            if left[0] == 0:
                self._events.put(("_remove_group", group))

        for reference in closing:
            reference.future().add_done_callback(closed)
        if not closing:
            self._remove_group(group)

    def demand(self, wanted: Sequence[Sequence[int]]) -> None:
        """Learn what waits; `_show_demand` shows it to Ray."""
        self._wanted = Counter(tuple(slots) for slots in wanted)
        unwanted = Counter(shape for shape, _ in self._demand) - self._wanted
        for entry in list(self._demand):
            if unwanted[entry[0]] > 0:
                unwanted[entry[0]] -= 1
                self._drop_demand(entry)

    # What Ray does.

    def _look_for_nodes(self) -> None:
        import ray

        alive = [node for node in ray.nodes() if node["Alive"]]
        self._resource = "GPU" if any(node["Resources"].get("GPU") for node in alive) else "CPU"
        nodes = {}
        names = Counter(_name(node) for node in alive)
        for node in alive:
            if self._hosts is not None and node["NodeManagerAddress"] not in self._hosts:
                continue
            name = _name(node)
            if names[name] > 1:
                name = f"{name}-{node['NodeID'][-8:]}"
            nodes[node["NodeID"]] = Node(name, node["NodeManagerAddress"], self._slots(node["Resources"]))
        if nodes != self._nodes:
            self._nodes = nodes
            own = _own_addresses()
            self._tell("found", list(nodes.values()), all(node.address in own for node in nodes.values()))

    def _slots(self, resources: dict[str, float]) -> tuple[Slot, ...]:
        device = "cuda" if self._resource == "GPU" else "cpu"
        brand = next((key[17:] for key in resources if key.startswith("accelerator_type:")), device.upper())
        return tuple(Slot(index, device, brand) for index in range(int(resources.get(self._resource, 0))))

    def _show_demand(self) -> None:
        """Keep a pending placement group for each task that waits.

        Its only purpose is to be pending. One that gets its machines has taken them from the tasks that the master
        starts, so it is removed at once, and Ray is not told of that size again for a while.
        """
        from ray.util.placement_group import placement_group, placement_group_table

        now = time.monotonic()
        for entry in list(self._demand):
            shape, group = entry
            if placement_group_table(group).get("state") != "PENDING":
                self._quiet_until[shape] = now + _QUIET_S
                self._drop_demand(entry)
        missing = self._wanted - Counter(shape for shape, _ in self._demand)
        for shape in missing.elements():
            if self._quiet_until.get(shape, 0.0) <= now:
                bundles = [self._bundle(count) for count in shape]
                # Without a lifetime of its own: it ends with this process.
                self._demand.append((shape, placement_group(bundles, strategy="STRICT_SPREAD")))

    def _drop_demand(self, entry: tuple[tuple[int, ...], Any]) -> None:
        self._demand.remove(entry)
        self._remove_group(entry[1])

    def _look_for_place(self, allocation_id: str, task: _Task) -> None:
        from ray.util.placement_group import placement_group_table

        found = placement_group_table(task.group)
        if found.get("state") == "CREATED":
            places = [found["bundles_to_node_id"][index] for index in sorted(found["bundles_to_node_id"])]
            nodes = self._nodes or {}
            if any(place not in nodes for place in places):
                self._look_for_nodes()
                nodes = self._nodes or {}
            task.look_at = float("inf")
            if all(place in nodes for place in places):
                self._tell("placed", allocation_id, [nodes[place] for place in places], places)
            else:
                self._lose(allocation_id, "its machine left Ray")
        elif found.get("state") in ("REMOVED", None):
            self._lose(allocation_id, "its placement group was removed from Ray")
        elif any(pin not in (self._nodes or {}) for pin in task.pins):
            self._lose(allocation_id, "its machine left Ray")
        else:
            task.delay_s = min(2 * task.delay_s, _LAST_LOOK_S)
            task.look_at = time.monotonic() + task.delay_s

    def _started(self, allocation_id: str, index: int, _: Any, error: BaseException | None) -> None:
        if error is not None:
            self._ended(allocation_id, index, None, error)
        elif (task := self._tasks.get(allocation_id)) is not None:
            if index == 0:
                self._tell("running", allocation_id)
            # Not together with `start`: calls of an asynchronous actor may overtake each other.
            self._when_done(task.actors[index].wait.remote(), allocation_id, index, "_ended")

    def _ended(self, allocation_id: str, index: int, result: Any, error: BaseException | None) -> None:
        task = self._tasks.get(allocation_id)
        if task is None:
            return
        if error is not None:
            exit_ = _loss(error)
        else:
            exit_ = Exit(Ending(result["ending"]), result.get("code"), detail=result["detail"])
        is_first = not any(end.is_failure for end in task.ends.values())
        task.ends[index] = exit_
        if exit_.is_failure and is_first:
            # The other machines of a task are of no use without this one.
            task.ends = {index: exit_, **task.ends}
            for other, actor in enumerate(task.actors):
                if other not in task.ends:
                    actor.kill.remote(force=True)
        if len(task.ends) == len(task.actors):
            ends = list(task.ends.values())
            self._tell("ended", allocation_id, next((end for end in ends if end.is_failure), ends[0]))

    def _lose(self, allocation_id: str, detail: str) -> None:
        task = self._tasks[allocation_id]
        self._remove_group(task.group)
        task.look_at = float("inf")
        self._tell("ended", allocation_id, Exit(Ending.LOST, detail=detail))

    # Ray.

    def _bundle(self, count: int) -> dict[str, float]:
        hosts = self._hosts or ()
        only = {f"node:{host}": _TRACE for host in hosts} if len(hosts) == 1 else {}
        return {self._resource: float(count), **only}

    def _pinned(self, bundles: Sequence[dict[str, float]], pins: Sequence[str]) -> dict[str, Any]:
        """Bind bundles to the nodes with these ids; return the options of their placement group."""
        from ray.util.placement_group import placement_group

        if not pins:
            return {}
        if "bundle_label_selector" in inspect.signature(placement_group).parameters:
            return {"bundle_label_selector": [{"ray.io/node-id": pin} for pin in pins]}
        # Ray before 2.49 names nodes by their addresses only.
        for bundle, pin in zip(bundles, pins, strict=True):
            bundle[f"node:{(self._nodes or {})[pin].address}"] = _TRACE
        return {}

    def _group(self, name: str) -> Any:
        """Return the placement group of a task; None if there is none."""
        import ray

        with contextlib.suppress(ValueError):
            return ray.util.get_placement_group(name)
        return None

    def _remove_group(self, group: Any) -> None:
        import ray

        if group is not None:
            ray.util.remove_placement_group(group)

    def _when_done(self, reference: Any, allocation_id: str, index: int, method: str) -> None:
        """Call a method on this bridge's thread with the result of a call of an actor, or its error."""

        def done(future: Any) -> None:
            error = future.exception()
            self._events.put((method, allocation_id, index, None if error else future.result(), error))

        reference.future().add_done_callback(done)

    # The master.

    def _read(self) -> None:
        while True:
            try:
                self._events.put(self._connection.recv())
            except (EOFError, OSError):
                # The master has ended. Tasks go on, and another master finds them.
                os._exit(0)

    def _tell(self, *event: Any) -> None:
        try:
            self._connection.send(event)
        except OSError:
            os._exit(0)

    def _guard(self) -> None:
        while time.monotonic() - self._ticked_at < _STANDSTILL_S:
            time.sleep(1.0)
        logger.error("Ray has not answered for %d s.", _STANDSTILL_S)
        os._exit(1)


def main(arguments: Sequence[str]) -> int:
    """Connect with Ray as the master says in its first message, and work until it ends."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {LOG_FORMAT}")
    connection = Connection(int(arguments[0]))
    address, namespace, is_only_local = connection.recv()
    import ray

    try:
        _knock(address)
        ray.init(
            address=address,
            namespace=namespace,
            log_to_driver=False,
            logging_level=logging.WARNING,
            configure_logging=True,
        )
        addresses = sorted({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]})
    except BaseException as error:
        # Ray raises many kinds, and its client ends the process with SystemExit.
        connection.send(("refused", f"{type(error).__name__}: {str(error).strip() or 'no reason was given'}"))
        return 1
    own = [address for address in addresses if address in _own_addresses()]
    if is_only_local and own != addresses:
        connection.send(("unreachable", [address for address in addresses if address not in own]))
        return 1
    connection.send(("connected",))
    Bridge(connection, own if is_only_local else None).run()
    return 0


def _knock(address: str) -> None:
    """Raise `OSError` if nothing listens at an address: Ray itself would try for a minute and end this process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=_KNOCK_S).close()


def _own_addresses() -> set[str]:
    import psutil

    return {entry.address for entries in psutil.net_if_addrs().values() for entry in entries}


def _actor_name(allocation_id: str, index: int) -> str:
    return f"{allocation_id}/{index}"


def _name(node: dict[str, Any]) -> str:
    """Return the name that the user gave to a node, else that of its machine."""
    chosen = str(node.get("NodeName") or "")
    return chosen if chosen and chosen != node["NodeManagerAddress"] else str(node["NodeManagerHostname"])


def _loss(error: BaseException) -> Exit:
    """Return what an error of an actor's call means: a lost machine or actor, or one that no machine can make."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    import ray

    # The message of an actor that could not be created ends with the error of its creation.
    if isinstance(error, ray.exceptions.RayTaskError) or "creation task" in lines[0]:
        return Exit(
            Ending.NOT_LAUNCHED,
            detail=f"its actor cannot be started ({lines[-1].strip()}); the machines of Ray need det_keras, in the "
            "same version as the master",
        )
    return Exit(Ending.LOST, detail=f"Ray lost its machine or actor ({lines[0].rstrip('.')})")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
