"""Samples the load of a machine, and of the processes of one training on it.

Rates are per second between two samples, so that they do not depend on the period. The memory of the training is the
sum of its processes' resident sets, which counts pages that they share more than once. The kernel could divide shared
pages (PSS), but it would walk the page tables of the training for that, which has to wait meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from det_keras.core.gpus import Gpus

_GIGA = 1e9
_LOOPBACK = "lo"


@dataclass(frozen=True)
class _Counters:
    """Values that only grow: two of them make rates.

    Attributes:
        time_s: when they were read.
        busy_s: processor time of the machine, over all of its processors.
        total_s: `busy_s` and the time in which the processors were idle.
        own_s: processor time of the training's processes, including those that ended.
        disk: of the machine; {} if it does not tell.
        network: of the machine, without traffic between its own processes; {} if it does not tell.
    """

    time_s: float
    busy_s: float
    total_s: float
    own_s: float
    disk: Mapping[str, int]
    network: Mapping[str, int]


class SystemSampler:
    """Samples the load since the previous sample, and at first since it was created.

    Args:
        pids: the training's processes on this machine; their descendants are included.
        gpus: the GPUs of this machine, closed with the sampler; None if there are none.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        pids: Iterable[int],
        gpus: Gpus | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pids = tuple(pids)
        self._gpus = gpus
        self._clock = clock
        self._before, _ = self._read()

    def sample(self) -> dict[str, dict[str, object]]:
        """Return the metrics of each group by name; those of a GPU are below its UUID.

        ``cpu``: ``cpu_util_simple``, the load of the machine, and ``cpu_util_trial``, the part of it that is the
        training's, both in percent of all processors.
        ``memory``: ``memory_free`` in GB and ``memory_used_percent`` of the machine, ``memory_trial_bytes``.
        ``disk``: ``disk_throughput_read`` and ``disk_throughput_write`` of the machine, in bytes per second.
        ``network``: ``net_throughput_sent`` and ``net_throughput_recv`` of the machine, in bytes per second.
        ``gpu``: see `Gpus.sample`.
        """
        before = self._before
        now, rss_bytes = self._read()
        self._before = now
        elapsed_s = max(now.time_s - before.time_s, 1e-9)
        memory = psutil.virtual_memory()
        own_s = max(now.own_s - before.own_s, 0.0)
        metrics: dict[str, dict[str, object]] = {
            "cpu": {
                "cpu_util_simple": _percent(now.busy_s - before.busy_s, now.total_s - before.total_s),
                "cpu_util_trial": _percent(own_s, elapsed_s * (psutil.cpu_count() or 1)),
            },
            "memory": {
                "memory_free": memory.available / _GIGA,
                "memory_used_percent": memory.percent,
                "memory_trial_bytes": rss_bytes,
            },
            "disk": _rates(before.disk, now.disk, elapsed_s),
            "network": _rates(before.network, now.network, elapsed_s),
            "gpu": {} if self._gpus is None else dict(self._gpus.sample()),
        }
        return {group: values for group, values in metrics.items() if values}

    def close(self) -> None:
        """Release the GPUs."""
        if self._gpus is not None:
            self._gpus.close()

    def _read(self) -> tuple[_Counters, int]:
        """Return the counters now, and the memory of the training's processes in bytes."""
        # Of a process that ends meanwhile, only what others know of it counts.
        own_s, rss_bytes = 0.0, 0
        for pid in process_tree(self._pids):
            try:
                process = psutil.Process(pid)
                # With the times of ended children, which would otherwise be lost.
                own_s += sum(process.cpu_times()[:4])
                rss_bytes += process.memory_info().rss
            except psutil.Error:
                continue
        times = psutil.cpu_times()
        # Times of guests are contained in those of users.
        total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
        idle_s = times.idle + getattr(times, "iowait", 0.0)
        counters = _Counters(self._clock(), total_s - idle_s, total_s, own_s, _disk(), _network())
        return counters, rss_bytes


def process_tree(pids: Iterable[int]) -> set[int]:
    """Return processes and all their descendants."""
    found: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += _children(pid)
    return found


def _children(pid: int) -> list[int]:
    """Return the children of a process; [] if it has ended."""
    tasks = Path(f"/proc/{pid}/task")
    if not _HAS_CHILDREN_FILES:
        return _children_by_scan(pid)
    children = []
    try:
        for task in tasks.iterdir():
            # psutil would read the files of all processes of the machine.
            children += (task / "children").read_text().split()
    except OSError:
        pass
    return [int(child) for child in children]


def _children_by_scan(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


# Not in every kernel, and only in Linux.
_HAS_CHILDREN_FILES = Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _disk() -> dict[str, int]:
    # A container may hide it.
    counters = psutil.disk_io_counters(nowrap=False)
    if counters is None:
        return {}
    return {"disk_throughput_read": counters.read_bytes, "disk_throughput_write": counters.write_bytes}


def _network() -> dict[str, int]:
    counters = psutil.net_io_counters(pernic=True, nowrap=False)
    real = [counter for name, counter in counters.items() if name != _LOOPBACK]
    if not real:
        return {}
    return {
        "net_throughput_sent": sum(counter.bytes_sent for counter in real),
        "net_throughput_recv": sum(counter.bytes_recv for counter in real),
    }


def _rates(before: Mapping[str, int], now: Mapping[str, int], elapsed_s: float) -> dict[str, object]:
    # A counter starts again when its device is removed and added.
    return {name: max(now[name] - before[name], 0) / elapsed_s for name in now if name in before}


def _percent(part: float, whole: float) -> float:
    return min(max(100.0 * part / whole, 0.0), 100.0) if whole > 0 else 0.0
