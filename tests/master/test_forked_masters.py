"""Forked masters are found, killed and refused like those with an interpreter of their own."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import forked_masters
import httpx
import psutil
import pytest

from det_keras.errors import DetError
from det_keras.launch.network import free_port
from det_keras.master import process
from det_keras.master.process import MasterOptions
from master.fakes import Client, eventually

pytestmark = pytest.mark.process


def test_it_is_found_and_a_killed_one_leaves_no_process(used_home):
    running = forked_masters.start(used_home, port=free_port("127.0.0.1"), slots=1)
    assert process.find(used_home) == running
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: not psutil.pid_exists(running.pid))
    assert process.find(used_home) is None
    again = forked_masters.start(used_home, port=free_port("127.0.0.1"), slots=1)
    assert again.pid != running.pid
    assert process.stop(used_home) == again


def test_reason_of_a_refusal_reaches_the_caller(used_home):
    with pytest.raises(DetError, match=r"Refusing to listen on 0\.0\.0\.0 without TLS"):
        forked_masters.start(used_home, options=MasterOptions(host="0.0.0.0"))


def test_it_has_the_variables_and_the_umask_of_its_caller(used_home, monkeypatch):
    monkeypatch.setenv("DET_KERAS_SLOTS", "-1")
    with pytest.raises(DetError, match="must be 0 or more, received -1"):
        forked_masters.start(used_home)
    monkeypatch.delenv("DET_KERAS_SLOTS")
    before = os.umask(0o027)
    try:
        running = forked_masters.start(used_home, port=free_port("127.0.0.1"), slots=1)
    finally:
        os.umask(before)
    try:
        # The master's own umask does not depend on its caller; that of the caller is for its tasks.
        assert "\nUmask:\t0077\n" in Path(f"/proc/{running.pid}/status").read_text()
        body = {"config": {"entrypoint": ["umask"], "resources": {"slots": 0}}}
        with httpx.Client(base_url=running.url, trust_env=False) as http:
            client = Client(http, used_home.token_file.read_text())
            task_id = client.post("/api/v1/commands", body)["command"]["id"]
            log = used_home.logs / f"{task_id}.1" / "log.jsonl"
            assert '"0027' in eventually(lambda: log.exists() and log.read_text())
        assert stat.S_IMODE(used_home.master_log.stat().st_mode) == 0o600
    finally:
        process.stop(used_home)
