"""What the launchers of a job's nodes tell each other while ranks run: failures, and the end.

The launcher on the chief's node passes a failure on to all others, so that every launcher ends its ranks soon after a
rank failed anywhere. At the end each launcher waits for the others: all exit with the same code, that of the first
failure.

A rank that hangs is found by the launcher of its own node, which reports it like a failure. A node that is switched off
or cut off is found by the kernel, which ends the connections to it; see `workers/channel.py`.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from det_keras.launch.placement import Placement
from det_keras.workers.channel import Channel
from det_keras.workers.heartbeat import REJECTS_HPARAMS

# After a failure: how long to wait for the other launchers, which have a few seconds to end their own ranks.
_LAST_WORDS_S = 15.0


@dataclass(frozen=True)
class Failure:
    """Why a job ends.

    Attributes:
        cause: what happened, without a full stop.
        status: status of the process that failed; negative for a signal.
    """

    cause: str
    status: int

    @property
    def precedence(self) -> int:
        """The order of failures found at the same moment: the lowest is the cause, the others follow from it.

        A rank that rejects its hyperparameters leaves the others alone, and so does a killed one.
        """
        return precedence(self.status)


def precedence(status: int) -> int:
    """Return the `Failure.precedence` of a process status."""
    return 0 if status == REJECTS_HPARAMS else 1 if status < 0 else 2


class Nodes:
    """The launchers of the other nodes; none if the job runs on one node.

    Args:
        placement: the nodes.
        links: a connection to each of the other launchers on the chief's node, to the chief's elsewhere.
    """

    def __init__(self, placement: Placement, links: Mapping[int, Channel] | None = None) -> None:
        self.placement = placement
        self._links = dict(links or {})
        self._ended: set[int] = set()
        self._verdict: Failure | None = None
        self._is_decided = False

    @property
    def links(self) -> list[Channel]:
        """The connections that are open."""
        return [link for link in self._links.values() if not link.is_closed]

    def report(self, failure: Failure) -> None:
        """Tell the other launchers of a failure."""
        self._send_all({"failure": asdict(failure)})

    def hear(self, link: Channel) -> list[Failure]:
        """Read what has arrived on a connection, and return the failures in it.

        If the connection has ended, `link.is_closed` is true afterwards.
        """
        node = next(node for node, other in self._links.items() if other is link)
        failures: list[Failure] = []
        try:
            for message in link.read():
                if message.get("failure") is not None:
                    failures.append(Failure(**message["failure"]))
                self._note_end(node, message)
        except OSError as error:
            # The caller closes it: it may have to be unregistered first.
            link.is_closed = True
            if node not in self._ended and not self._is_decided:
                name = self.placement.describe_node(node)
                failures.append(Failure(f"The connection to the launcher of {name} was lost ({error})", 1))
        for failure in failures:
            if self.placement.node == 0:
                self._send_all({"failure": asdict(failure)}, but=link)
        return failures

    def conclude(self, failure: Failure | None) -> Failure | None:
        """Wait until the ranks of all nodes have ended.

        Args:
            failure: the failure that this launcher learned of first, if any.

        Returns:
            The failure that decides the exit code of every launcher; None if all ranks exited with 0.
        """
        is_chief = self.placement.node == 0
        if not is_chief:
            self._send_all({"end": True})
        deadline = None if failure is None else time.monotonic() + _LAST_WORDS_S
        while self.links and not (self._has_all_ends() if is_chief else self._is_decided):
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            for link in select.select(self.links, [], [], left_s)[0]:
                for heard in self.hear(link):
                    failure = heard if failure is None or heard.precedence < failure.precedence else failure
                    deadline = deadline or time.monotonic() + _LAST_WORDS_S
        if is_chief:
            self._send_all({"verdict": None if failure is None else asdict(failure)})
            return failure
        return self._verdict if self._is_decided else failure

    def _note_end(self, node: int, message: dict[str, Any]) -> None:
        if "end" in message:
            self._ended.add(node)
        if "verdict" in message:
            self._is_decided = True
            self._verdict = None if message["verdict"] is None else Failure(**message["verdict"])

    def _has_all_ends(self) -> bool:
        return all(node in self._ended or link.is_closed for node, link in self._links.items())

    def _send_all(self, message: dict[str, Any], *, but: Channel | None = None) -> None:
        for link in self.links:
            if link is not but:
                # A launcher that is gone is noticed where its connection is read.
                with contextlib.suppress(OSError):
                    link.send(message)
