"""What killed processes leave in the directory for temporary files is removed by the next one, and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from det_keras.launch.importable import importable

_HOLD = """
import sys
from det_keras.scratch import Scratch
scratch = Scratch("state")
print(scratch.name, flush=True)
sys.stdin.read()
"""
_PASS = "from det_keras.scratch import Scratch; Scratch('other').cleanup()"


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    return {**importable(os.environ), "TMPDIR": str(tmp_path)}


def hold(environment) -> tuple[subprocess.Popen[str], Path]:
    """Start a process with a directory."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, Path(process.stdout.readline().strip())


def test_next_process_removes_what_a_killed_one_left(environment, tmp_path):
    killed, left = hold(environment)
    alive, needed = hold(environment)
    (left / "file").write_text("x")
    others = [tmp_path / "det-state~elsewhere~1~abc", tmp_path / "det-state-of-a-user", tmp_path / "det-~~1~"]
    for other in others:
        other.mkdir()
    with killed, alive:
        killed.send_signal(signal.SIGKILL)
        killed.wait(30)
        assert left.is_dir()
        subprocess.run([sys.executable, "-c", _PASS], env=environment, check=True)
        assert not left.exists()
        assert needed.is_dir()
        assert all(other.is_dir() for other in others)
        alive.stdin.close()
        assert alive.wait(30) == 0
        assert not needed.exists()
        killed.stdin.close()
