"""How `det tensorboard start` ends what it started."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from det_keras.cli.commands import tensorboard

_DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "ended_by"),
    [(_DEAF, signal.SIGKILL), (_DEAF.replace("SIG_IGN", "SIG_DFL"), signal.SIGTERM)],
    ids=["deaf", "obedient"],
)
def test_a_tensorboard_ends_whether_it_listens_or_not(monkeypatch, code, ended_by):
    monkeypatch.setattr(tensorboard, "_END_S", 0.5)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    tensorboard._end(process)
    process.stdout.close()
    assert process.returncode == -ended_by
