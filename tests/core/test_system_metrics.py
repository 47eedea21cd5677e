"""The load of the machine and of the training, against what the test reads and causes itself."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from det_keras.core import system_metrics
from det_keras.core.system_metrics import SystemSampler, process_tree

BURN = "print(1, flush=True)\nwhile True: pass"
ALLOCATE = "data = bytearray(b'x') * (300 << 20)\nprint(1, flush=True)\ninput()"


@contextlib.contextmanager
def running(code, *, nested=False):
    """Run Python code in a child, or in a grandchild, until the block ends; it prints a line when it is ready."""
    command = [sys.executable, "-c", code]
    if nested:
        start = f"import subprocess, sys; subprocess.run({command!r}, stdin=sys.stdin)"
        command = [sys.executable, "-c", start]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "1\n"
        yield process
    finally:
        for one in [*psutil.Process(process.pid).children(recursive=True), process]:
            one.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def own_seconds(process):
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in tree)


@pytest.mark.parametrize("nested", [False, True], ids=["child", "grandchild"])
def test_processor_time_of_the_training_is_that_of_all_its_processes(nested):
    with running(BURN, nested=nested) as process:
        sampler = SystemSampler([process.pid])
        before, started = own_seconds(process), time.monotonic()
        time.sleep(0.6)
        load = sampler.sample()["cpu"]
        used = (own_seconds(process) - before) / (time.monotonic() - started)
    # Times of processes are counted in hundredths of a second.
    assert load["cpu_util_trial"] == pytest.approx(100 * used / psutil.cpu_count(), abs=6.0)
    assert load["cpu_util_trial"] > 0.0
    # The machine also has the load of others.
    assert load["cpu_util_simple"] > load["cpu_util_trial"] - 6.0


def test_processor_time_of_an_ended_process_counts():
    code = "import subprocess, sys\nprint(1, flush=True)\ninput()\n"
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code += f"subprocess.run([sys.executable, '-c', {burn!r}])\nprint(2, flush=True)\ninput()"
    with running(code) as process:
        sampler, started = SystemSampler([process.pid]), time.monotonic()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "2\n"
        load, elapsed = sampler.sample()["cpu"]["cpu_util_trial"], time.monotonic() - started
    assert load * psutil.cpu_count() * elapsed / 100 >= 0.28


def test_another_process_is_not_part_of_the_training():
    with running(BURN), running("print(1, flush=True)\ninput()") as idle:
        sampler = SystemSampler([idle.pid])
        time.sleep(0.3)
        assert sampler.sample()["cpu"]["cpu_util_trial"] < 5.0


@pytest.mark.parametrize("nested", [False, True], ids=["child", "grandchild"])
def test_memory_of_the_training_is_that_of_all_its_processes(nested):
    with running("print(1, flush=True)\ninput()") as small, running(ALLOCATE, nested=nested) as large:
        sampler = SystemSampler([small.pid, large.pid])
        tree = [small.pid, large.pid, *(child.pid for child in psutil.Process(large.pid).children())]
        expected = 0
        for pid in tree:
            (line,) = (
                one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS")
            )
            expected += int(line.split()[1]) << 10
        memory = sampler.sample()["memory"]
    assert memory["memory_trial_bytes"] == pytest.approx(expected, rel=0.02)
    assert memory["memory_trial_bytes"] > 300 << 20


def test_memory_of_the_machine_is_what_the_kernel_says():
    memory = SystemSampler([]).sample()["memory"]
    values = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(values[name].split()[0]) << 10 for name in ("MemTotal", "MemAvailable"))
    assert memory["memory_free"] == pytest.approx(free / 1e9, rel=0.1)
    assert memory["memory_used_percent"] == pytest.approx(100 * (total - free) / total, abs=5.0)
    assert memory["memory_trial_bytes"] == 0


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("elapsed_s", [1.0, 20.0])
def test_rates_are_per_second_whatever_the_period(monkeypatch, elapsed_s):
    def counters(read, written, sent, received):
        disk = SimpleNamespace(read_bytes=read, write_bytes=written)
        net = {
            "eth0": SimpleNamespace(bytes_sent=sent, bytes_recv=received),
            "lo": SimpleNamespace(bytes_sent=10 * sent, bytes_recv=10 * sent),
        }
        monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: disk)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: net)

    clock = Clock()
    counters(1000, 2000, 3000, 4000)
    sampler = SystemSampler([], clock=clock)
    clock.now += elapsed_s
    counters(
        *(int(start + rate * elapsed_s) for start, rate in ((1000, 10), (2000, 20), (3000, 30), (4000, 40)))
    )
    load = sampler.sample()
    assert load["disk"] == {"disk_throughput_read": 10.0, "disk_throughput_write": 20.0}
    assert load["network"] == {"net_throughput_sent": 30.0, "net_throughput_recv": 40.0}
    # Since the sample before, not since the first.
    clock.now += elapsed_s
    assert set(sampler.sample()["disk"].values()) == {0.0}
    # A device that was removed and added counts from 0.
    clock.now += elapsed_s
    counters(0, 0, 0, 0)
    assert set(sampler.sample()["disk"].values()) == {0.0}


def test_written_bytes_are_seen(tmp_path):
    sampler, started = SystemSampler([]), time.monotonic()
    before = _sectors_written()
    with (tmp_path / "data").open("wb", buffering=0) as file:
        file.write(b"x" * (32 << 20))
        os.fsync(file.fileno())
    load, elapsed = sampler.sample(), time.monotonic() - started
    written = 512 * (_sectors_written() - before)
    if written < 16 << 20:
        pytest.skip("the temporary directory is not on a disk that the kernel counts")
    assert load["disk"]["disk_throughput_write"] * elapsed == pytest.approx(written, rel=0.3)


def _sectors_written():
    lines = [line.split() for line in Path("/proc/diskstats").read_text().splitlines()]
    return sum(int(line[9]) for line in lines if Path(f"/sys/block/{line[2]}").exists())


def test_what_a_container_hides_is_missing(monkeypatch):
    monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: None)
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: {})
    assert set(SystemSampler([]).sample()) == {"cpu", "memory"}


@pytest.mark.parametrize("has_files", [True, False])
def test_descendants_are_found_with_and_without_the_kernels_files(monkeypatch, has_files):
    monkeypatch.setattr(
        system_metrics, "_HAS_CHILDREN_FILES", has_files and system_metrics._HAS_CHILDREN_FILES
    )
    with running("print(1, flush=True)\ninput()", nested=True) as process:
        (child,) = psutil.Process(process.pid).children()
        assert process_tree([process.pid]) == {process.pid, child.pid}
    assert process_tree([process.pid]) == {process.pid}
    assert SystemSampler([process.pid]).sample()["memory"]["memory_trial_bytes"] == 0
