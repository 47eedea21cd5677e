"""What a training on two workers opens, and who reaches it."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another account"),
]

DOORS = Path(__file__).parent / "doors.py"


@pytest.fixture
def found(on_two_hosts, tmp_path):
    """Return what is open while an engine trains, and who reached it."""

    def find(engine):
        printed = on_two_hosts(sys.executable, str(DOORS), str(tmp_path), engine)
        return json.loads(printed.partition("FOUND ")[2])

    return find


def test_builtin_engine_opens_nothing(found):
    doors = found("builtin")
    assert (doors["seen"], doors["account"], doors["host"]) == ([], [], [])
    assert "listen" not in doors["output"]


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_nobody_reaches_a_training_with_horovod_and_its_start_is_told(found):
    doors = found("horovod")
    # The rendezvous, which answers one account, and for a moment the ranks, also where the host's name leads.
    assert {address for address, _ in doors["seen"]} == {"127.0.0.1", "10.77.0.1"}
    assert (doors["account"], doors["host"]) == ([], [])
    assert "other accounts of this machine can reach them" in doors["output"]
    assert "resolves to 10.77.0.1. Horovod listens there, and other machines may reach it" in doors["output"]
