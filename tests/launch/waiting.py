"""Waits for what processes come to."""

from __future__ import annotations

import time

import psutil


def eventually(ask, timeout_s: float = 10.0):
    """Return what `ask` gives once it is true."""
    deadline = time.monotonic() + timeout_s
    while not (answer := ask()):
        assert time.monotonic() < deadline, "It did not come true in time."
        time.sleep(0.01)
    return answer


def is_dead(pid: int) -> bool:
    """Tell whether a process is gone, or waits to be reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
