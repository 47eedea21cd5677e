"""How the launchers of a job's nodes find each other, before any of them starts a rank.

The launcher on node 0, the chief's, listens on that node's address until the launchers of all other nodes are
connected, and then no more. Every launcher derives the same key and the same few ports from what its container
knows: the task's token and the id of the allocation. So they need no exchange before this one, and the launcher of
another allocation, an earlier one of the same trial too, is not accepted.

A launcher connects twice: one connection carries the events of `launch/nodes.py`, the other the calls of
`workers/rendezvous.py`.

A single thread does all of this, since the launcher forks afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import selectors
import socket
import time
from dataclasses import dataclass, field
from typing import Any

from det_keras.cluster_info import ClusterInfo
from det_keras.errors import DetError
from det_keras.launch.placement import Placement
from det_keras.workers.channel import Channel, Greeting, present

# The same name when the launcher runs as `__main__`.
logger = logging.getLogger("det_keras.launch")

EVENTS, CALLS = "events", "calls"

# Below the ports that Linux gives to outgoing connections. Several, since another program may use one.
_FIRST_PORT, _LAST_PORT, _PORT_COUNT = 20000, 32000, 5
# How long the chief's launcher waits for a silent stranger, and another launcher for an answer at a port.
_GREETING_S = 10.0
_ANSWER_S = 3.0
_MOST_GREETINGS = 64
_RETRY_S = 0.2
_REMIND_S = 30.0


@dataclass
class Connections:
    """The connections of this node's launcher to the others.

    Attributes:
        events: by node; on other nodes than the chief's only the chief's.
        calls: by node, as `events`.
        terms: what the chief's launcher decided for all.
    """

    events: dict[int, Channel] = field(default_factory=dict)
    calls: dict[int, Channel] = field(default_factory=dict)
    terms: dict[str, Any] = field(default_factory=dict)

    def close(self) -> None:
        """Close all connections."""
        for link in (*self.events.values(), *self.calls.values()):
            link.close()


def derive_key(info: ClusterInfo, purpose: str) -> str:
    """Return a secret that only the containers of this allocation can derive.

    Args:
        info: the task.
        purpose: secrets for different purposes are different.
    """
    text = f"det_keras {purpose} {info.allocation_id}"
    return hmac.new(info.session_token.encode(), text.encode(), hashlib.sha256).hexdigest()


def meeting_ports(allocation_id: str) -> list[int]:
    """Return the ports on which the chief's launcher may listen, in the order in which it tries them."""
    digest = hashlib.sha256(allocation_id.encode()).digest()
    start = int.from_bytes(digest[:4], "big")
    span = _LAST_PORT - _FIRST_PORT
    return [_FIRST_PORT + (start + index * 1009) % span for index in range(_PORT_COUNT)]


def host(
    placement: Placement, key: bytes, ports: list[int], terms: dict[str, Any], *, timeout_s: float, silence_s: float
) -> Connections:  # fmt: skip
    """Wait on the chief's node for the launchers of all other nodes.

    Args:
        placement: the nodes.
        key: secret of the allocation.
        ports: tried in this order.
        terms: sent to the other launchers once all are connected.
        timeout_s: how long to wait, in seconds.
        silence_s: how long another machine may be unreachable later, in seconds.

    Raises:
        DetError: the address cannot be listened on, or launchers are missing; the message names their nodes.
    """
    found = Connections(terms=terms)
    deadline = time.monotonic() + timeout_s
    with _listen(placement.chief_address, ports) as listener:
        try:
            _admit_all(placement, key, listener, found, deadline, silence_s)
            for link in found.calls.values():
                link.send({"terms": terms})
        except (DetError, OSError) as error:
            found.close()
            if isinstance(error, DetError):
                raise
            raise DetError(f"A launcher that had connected ended before the start: {error}.") from error
    return found


def join(
    placement: Placement, key: bytes, ports: list[int], *, timeout_s: float, silence_s: float
) -> Connections:
    """Connect this node's launcher with that of the chief's node, and wait until all are connected.

    Raises:
        DetError: there is none in time.
    """
    deadline = time.monotonic() + timeout_s
    found = Connections()
    hello = {"node": placement.node, "counts": placement.counts, "addresses": placement.addresses}
    try:
        for purpose, links in ((EVENTS, found.events), (CALLS, found.calls)):
            said = {**hello, "purpose": purpose}
            links[0] = _connect(placement, key, ports, said, deadline, timeout_s, silence_s)
            # The second connection is to the port at which the first found the launcher.
            ports = [links[0].port]
        found.terms = _terms(placement, found.calls[0], deadline)
    except (DetError, OSError) as error:
        found.close()
        if isinstance(error, DetError):
            raise
        raise DetError(
            f"The connection to the launcher of {placement.describe_node(0)} was lost: {error}."
        ) from error
    return found


def _listen(address: str, ports: list[int]) -> socket.socket:
    problem: OSError | None = None
    for port in ports:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
            listener.listen(_MOST_GREETINGS)
            return listener
        except OSError as error:
            listener.close()
            problem = error
    assert problem is not None
    raise DetError(
        f"This launcher cannot listen on {address}, the address of this node in rendezvous.json, at the ports "
        f"{', '.join(map(str, ports))}: {problem.strerror}."
    ) from problem


def _admit_all(
    placement: Placement, key: bytes, listener: socket.socket, found: Connections, deadline: float, silence_s: float
) -> None:  # fmt: skip
    port = listener.getsockname()[1]
    listener.setblocking(False)
    greetings: dict[Greeting, float] = {}
    remind_at = time.monotonic()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while missing := _missing(placement, found):
            names = ", ".join(map(placement.describe_node, missing))
            now = time.monotonic()
            if now >= deadline:
                raise DetError(
                    f"The launchers of {names} did not connect to {placement.chief_address}:{port} in time. Every "
                    "container of the allocation must start this launcher, and reach this address."
                )
            if now >= remind_at:
                logger.info("Waiting at %s:%d for the launchers of %s.", placement.chief_address, port, names)
                remind_at = now + _REMIND_S
            for greeting, until in list(greetings.items()):
                if now >= until:
                    _refuse(selector, greetings, greeting, "it says nothing")
            for event, _ in selector.select(min(deadline - now, 1.0)):
                if event.fileobj is listener:
                    _greet(selector, listener, greetings, key, silence_s)
                else:
                    _admit(selector, greetings, event.data, placement, found)
        for greeting in greetings:
            greeting.channel.close()


def _missing(placement: Placement, found: Connections) -> list[int]:
    return [node for node in placement.others if node not in found.events or node not in found.calls]


def _greet(
    selector: selectors.BaseSelector,
    listener: socket.socket,
    greetings: dict[Greeting, float],
    key: bytes,
    silence_s: float,
) -> None:
    with contextlib.suppress(OSError):
        connected, _ = listener.accept()
        if len(greetings) == _MOST_GREETINGS:
            connected.close()
            return
        link = Channel(connected, silence_s)
        try:
            greeting = Greeting(link, key)
        except OSError:
            link.close()
            raise
        greetings[greeting] = time.monotonic() + _GREETING_S
        selector.register(link, selectors.EVENT_READ, greeting)


def _admit(
    selector: selectors.BaseSelector,
    greetings: dict[Greeting, float],
    greeting: Greeting,
    placement: Placement,
    found: Connections,
) -> None:
    try:
        messages = greeting.channel.read()
        if not messages:
            return
        hello = greeting.check(messages[0])
        node = hello["node"]
        links = {EVENTS: found.events, CALLS: found.calls}[hello["purpose"]]
        if (tuple(hello["counts"]), tuple(hello["addresses"])) != (placement.counts, placement.addresses):
            raise ValueError("its rendezvous.json has other nodes or slots")
        if node not in placement.others or node in links:
            raise ValueError(f"it is an unexpected or second node {node!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        _refuse(selector, greetings, greeting, str(error))
        return
    selector.unregister(greeting.channel)
    del greetings[greeting]
    links[node] = greeting.channel


def _refuse(
    selector: selectors.BaseSelector, greetings: dict[Greeting, float], greeting: Greeting, why: str
) -> None:
    logger.warning("A connection to this launcher was refused: %s.", why)
    selector.unregister(greeting.channel)
    del greetings[greeting]
    greeting.channel.close()


def _connect(
    placement: Placement,
    key: bytes,
    ports: list[int],
    hello: dict[str, Any],
    deadline: float,
    timeout_s: float,
    silence_s: float,
) -> Channel:
    where = placement.describe_node(0)
    remind_at = time.monotonic() + 1.0
    while True:
        problems = []
        for port in ports:
            try:
                connected = socket.create_connection((placement.chief_address, port), timeout=_ANSWER_S)
                link = Channel(connected, silence_s)
            except OSError as error:
                problems.append(f"port {port}: {error.strerror or error}")
                continue
            try:
                present(link, key, hello, _ANSWER_S)
                return link
            except OSError as error:
                link.close()
                problems.append(f"port {port}: {error}")
        now = time.monotonic()
        if now >= deadline:
            raise DetError(
                f"The launcher of {where}, where the chief runs, was not found within {timeout_s:g} s "
                f"({'; '.join(problems)}). Every container of the allocation must start this launcher."
            )
        if now >= remind_at:
            logger.info("Waiting for the launcher of %s (%s).", where, "; ".join(problems))
            remind_at = now + _REMIND_S
        time.sleep(_RETRY_S)


def _terms(placement: Placement, link: Channel, deadline: float) -> dict[str, Any]:
    where = placement.describe_node(0)
    logger.info("Connected with the launcher of %s; waiting for those of all nodes.", where)
    try:
        terms: dict[str, Any] = link.receive(max(0.1, deadline - time.monotonic() + _GREETING_S))["terms"]
    except OSError as error:
        raise DetError(f"The launcher of {where} ended before the start: {error}.") from error
    return terms
