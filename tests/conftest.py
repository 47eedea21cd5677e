"""What every test may rely on: a data root of its own, and quiet TensorFlow."""

from __future__ import annotations

import gc
import os
import signal
import sys
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests start many processes. Without the compiled files each would compile TensorFlow's Python code again, which takes
# longer than most of the trainings.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background with Ctrl-C ignored, and so would be all that the tests start: those
    # that send SIGINT would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)
sys.path.insert(0, str(Path(__file__).parent / "keras"))


def pytest_collection_finish() -> None:
    """Take all that is imported by now out of the garbage collector's sight.

    TensorFlow and Keras are millions of objects that live as long as the process; looking through them again and again
    is a sixth of the time of the trainings in it.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    """Give each test a data root that nobody else uses, and no master to fall back on."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("DET_KERAS_HOME", str(home))
    for name in ("DET_MASTER", "DET_USER", "DET_PASS", "DET_USER_TOKEN", "DET_TASK_TYPE"):
        monkeypatch.delenv(name, raising=False)
    return home
