"""The master as a process: found, started once, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from det_keras.errors import DetError
from det_keras.master import process
from master.fakes import eventually

pytestmark = pytest.mark.process


@pytest.fixture(autouse=True)
def no_master_left(home):
    yield
    process.stop(home, kill_tasks=True)


def test_no_master_is_found_where_none_runs(home):
    assert process.find(home) is None
    assert process.stop(home) is None


def test_master_is_started_once_however_many_ask(home):
    found = []
    threads = [threading.Thread(target=lambda: found.append(process.start(home, slots=1))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    running = found[0]
    assert process.find(home) == running
    assert json.loads(home.master_file.read_text()) == {"url": running.url, "pid": running.pid}
    second = subprocess.run(
        [sys.executable, "-m", "det_keras.master", "--home", str(home.root)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert second.returncode == process.REFUSED
    assert running.url in second.stderr
    assert process.stop(home) == running
    assert process.find(home) is None
    assert not home.master_file.exists()


def test_port_that_is_taken_is_one_line(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "det_keras.master", "--home", str(home.root), "--port", str(port)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == process.REFUSED
        assert result.stderr.count("\n") == 1
        assert f"Port {port}" in result.stderr
        with pytest.raises(DetError, match=f"Port {port}"):
            process.start(home, port=port)


def test_file_of_a_killed_master_points_nobody_to_it(home):
    running = process.start(home, slots=1)
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: not process._is_held(home))
    assert home.master_file.exists()
    assert process.find(home) is None
    again = process.start(home, slots=1)
    assert again.pid != running.pid


@pytest.mark.parametrize(
    "content",
    ["", "garbage", "[]", "7", "{}", '{"url": "http://127.0.0.1:1", "pid": 1}', '{"url": 7, "pid": "x"}'],
    ids=["empty", "text", "list", "number", "nothing", "another process", "types"],
)
def test_damaged_file_of_a_running_master_is_told_and_the_master_can_be_stopped(home, content):
    running = process.start(home, slots=1)
    home.master_file.write_text(content)
    with pytest.raises(DetError, match=r"master\.json .* is damaged\. Restart the master: .*cluster-down"):
        process.start(home, slots=1)
    stopped = process.stop(home)
    assert stopped is not None
    assert stopped.pid == running.pid
    home.master_file.write_text(content)
    assert process.find(home) is None
    assert process.start(home, slots=1).pid != running.pid


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_master_in_good_order(home, number):
    child = subprocess.Popen(
        [sys.executable, "-m", "det_keras.master", "--home", str(home.root), "--slots", "1"],
        stderr=subprocess.PIPE,
    )
    eventually(lambda: process.find(home), 60.0)
    child.send_signal(number)
    _, errors = child.communicate(timeout=60)
    assert child.returncode == 0
    assert errors == b""
    assert not home.master_file.exists()


def test_nobody_imports_the_web_server_to_find_a_master():
    code = "import sys, det_keras.master.process; print({'fastapi', 'sqlalchemy', 'pydantic'} & set(sys.modules))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output == "set()\n"
