"""Samples the machine's load during a training, if the config enables it."""

from __future__ import annotations

import threading
from typing import Any

from det_keras.core.backend.base import Backend

__all__ = ["Profiler"]

_PERIOD_S = 1.0


class Profiler:
    """Reports CPU, memory, disk and network load from its own thread, about once a second.

    Args:
        backend: receives the reports.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="det-profiler", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop sampling."""
        self._closing.set()
        self._thread.join(timeout=2 * _PERIOD_S)

    def _run(self) -> None:
        # Imported here: only a profiled training needs it.
        import psutil

        before = _counters(psutil)
        while not self._closing.wait(_PERIOD_S):
            now = _counters(psutil)
            memory = psutil.virtual_memory()
            self._backend.report_system_metrics("cpu", {"cpu_util_simple": psutil.cpu_percent()})
            self._backend.report_system_metrics(
                "memory", {"memory_free": memory.available / 2**30, "memory_used_percent": memory.percent}
            )
            for group, names in (("disk", ("read", "write")), ("network", ("sent", "received"))):
                rates = {f"{group}_{name}_bytes": now[group][name] - before[group][name] for name in names}
                self._backend.report_system_metrics(group, rates)
            before = now


def _counters(psutil: Any) -> dict[str, dict[str, int]]:
    """Return the machine's byte counters; a container may hide them."""
    disk, network = psutil.disk_io_counters(), psutil.net_io_counters()
    return {
        "disk": {"read": getattr(disk, "read_bytes", 0), "write": getattr(disk, "write_bytes", 0)},
        "network": {"sent": getattr(network, "bytes_sent", 0), "received": getattr(network, "bytes_recv", 0)},
    }
