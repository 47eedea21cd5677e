"""Lets processes, the disk and the clock fail, as the plan says."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from fault_histories.plan import Fault
from fault_histories.world import World

__all__ = ["Faults"]

# A master that cannot start on a full disk is started again once there is space.
_MOST_STARTS = 20


class Faults(threading.Thread):
    """Carries out the faults one after another.

    Args:
        world: what fails.
        faults: the plan.
        give_up: whether to skip the rest: nothing is left to disturb.
    """

    def __init__(self, world: World, faults: Sequence[Fault], give_up: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._faults = faults
        self._give_up = give_up
        #: What was done, by kind.
        self.counts: Counter[str] = Counter()
        #: The supervisors that were killed, by the id of their allocation.
        self.killed_supervisors: set[str] = set()
        #: Whether lines of logs may be lost: the disk was full.
        self.was_full = False

    def run(self) -> None:
        """Wait for the moment of each fault, and carry it out."""
        try:
            for fault in self._faults:
                if not self._world.proxy.wait_for_requests(fault.after, self._give_up):
                    break
                self._do(fault)
        except Exception as error:
            self._world.findings.append(f"A fault failed: {type(error).__name__}: {error}")
        finally:
            self._world.disk.free()
            self._restart()

    def _do(self, fault: Fault) -> None:
        what, _, how = fault.kind.partition(" ")
        if what == "master":
            self._fail_master(fault, how)
        elif what == "disk":
            self._fill_disk(fault)
        elif what == "clock":
            self._count(fault)
            self._world.shift_clock(fault.hold_s if how == "forward" else -fault.hold_s)
        else:
            victims = self._world.tasks() if what == "trial" else self._world.supervisors()
            if victims:
                self._hit(victims[fault.victim % len(victims)], fault, how)

    def _fail_master(self, fault: Fault, how: str) -> None:
        self._count(fault)
        if how == "killed":
            self._world.kill()
            self._world.start()
        else:
            self._world.signal(signal.SIGSTOP)
            time.sleep(fault.hold_s)
            self._world.signal(signal.SIGCONT)

    def _fill_disk(self, fault: Fault) -> None:
        if not self._world.disk.can_be_full:
            return
        self._count(fault)
        self.was_full = True
        self._world.disk.fill(fault.free_pages)
        for inner in fault.inner:
            # On a full disk there may be few requests.
            self._world.proxy.wait_for_requests(inner.after, _expiring(fault.hold_s, self._give_up))
            self._do(inner)
        time.sleep(fault.hold_s)
        self._world.disk.free()
        self._restart()

    def _hit(self, victim: psutil.Process, fault: Fault, how: str) -> None:
        with contextlib.suppress(psutil.Error):
            allocation_id = _allocation_of(victim)
            if how == "stopped":
                victim.suspend()
                self._count(fault)
                time.sleep(fault.hold_s)
                victim.resume()
                return
            if fault.kind.startswith("supervisor"):
                self.killed_supervisors.add(allocation_id)
            victim.kill()
            self._count(fault)

    def _restart(self) -> None:
        for _ in range(_MOST_STARTS):
            if self._world.start():
                return
            time.sleep(0.1)
        self._world.findings.append("The master does not start.")

    def _count(self, fault: Fault) -> None:
        self.counts[fault.kind] += 1


def _allocation_of(victim: psutil.Process) -> str:
    """Return the allocation of a task, by its environment, or of a supervisor, by its directory."""
    return victim.environ().get("DET_ALLOCATION_ID") or Path(victim.cwd()).name


def _expiring(seconds: float, give_up: Callable[[], bool]) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline or give_up()
