"""The groups of a launcher end with it, also when somebody has stopped the process that sees to that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from det_keras.launch.importable import importable

# Prints the launcher's reaper and the leader of a watched group, and then does as it is told.
_LAUNCHER = """
import subprocess, sys
from det_keras.launch.process_group import GroupReaper
reaper = GroupReaper()
task = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
reaper.watch(task.pid)
print(reaper._pid, task.pid, flush=True)
sys.stdin.read()
reaper.dismiss()
"""


@pytest.fixture
def launched():
    """Yield a launcher, its reaper and its task."""
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER],
        env=importable(os.environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    reaper, task = (psutil.Process(int(pid)) for pid in launcher.stdout.readline().split())
    yield launcher, reaper, task
    for process in (launcher, reaper, task):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    launcher.wait()
    launcher.stdin.close()
    launcher.stdout.close()


def has_ended(process: psutil.Process) -> bool:
    _, alive = psutil.wait_procs([process], timeout=30)
    return not alive


@pytest.mark.parametrize("is_stopped", [False, True])
def test_group_ends_with_a_killed_launcher(launched, is_stopped):
    launcher, reaper, task = launched
    if is_stopped:
        reaper.suspend()
    launcher.send_signal(signal.SIGKILL)
    assert has_ended(task)
    assert has_ended(reaper)


def test_launcher_ends_though_its_reaper_was_stopped(launched):
    launcher, reaper, task = launched
    reaper.suspend()
    launcher.stdin.close()
    assert launcher.wait(30) == 0
    assert has_ended(task)
