"""The profiler's thread: when it samples, where the samples go, and that it never disturbs the training."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import threading
import time

import pytest
from core.ranks import on_ranks

from det_keras import core
from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.context import Context
from det_keras.core.profiler import Profiler, sampler_of
from det_keras.storage import DirectoryStorage


class Samples:
    """A sampler that counts its samples, and fails as it is told."""

    def __init__(self, fails=lambda count: False):
        self.count, self.fails, self.is_closed = 0, fails, False
        self.threads = set()

    def sample(self):
        self.count += 1
        self.threads.add(threading.current_thread().name)
        if self.fails(self.count):
            raise OSError("no sample")
        return {"cpu": {"cpu_util_simple": float(self.count)}, "memory": {"memory_free": 1.0}}

    def close(self):
        self.is_closed = True


def wait_until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


class Looks:
    """A probe that counts its looks, and fails as it is told."""

    def __init__(self, fails=False):
        self.count, self.fails = 0, fails

    def look(self):
        self.count += 1
        if self.fails:
            raise ValueError("no look")

    def sample(self):
        looks, self.count = self.count, 0
        return {"cpu": {"looks": looks}, "other": {"looks": looks}}


def test_probe_looks_many_times_a_sample_and_is_reported_with_it():
    reports = []
    profiler = Profiler(lambda *report: reports.append(report), Samples, period_s=0.1)
    profiler.watch(Looks())
    wait_until(lambda: len(reports) >= 6)
    profiler.watch()
    profiler.close()
    assert reports[3][0] == "cpu"
    assert reports[3][1] == {"cpu_util_simple": 2.0, "looks": 20}
    assert reports[5] == ("other", {"looks": 20})


def test_failing_probe_is_given_up_and_samples_go_on(caplog):
    reports, probe = [], Looks(fails=True)
    profiler = Profiler(lambda *report: reports.append(report), Samples, period_s=0.1)
    profiler.watch(probe)
    wait_until(lambda: len(reports) >= 4)
    profiler.close()
    assert probe.count == 1
    assert reports[-1] == ("memory", {"memory_free": 1.0})
    assert len([record for record in caplog.records if "incomplete" in record.message]) == 1


def test_each_sample_is_reported_by_group_from_a_thread_of_its_own():
    samples, reports = Samples(), []
    profiler = Profiler(lambda *report: reports.append(report), lambda: samples, period_s=0.02)
    wait_until(lambda: len(reports) >= 4)
    profiler.close()
    assert reports[:3] == [
        ("cpu", {"cpu_util_simple": 1.0}),
        ("memory", {"memory_free": 1.0}),
        ("cpu", {"cpu_util_simple": 2.0}),
    ]
    assert samples.threads == {"det-profiler"}
    assert samples.is_closed
    count = samples.count
    time.sleep(0.1)
    assert samples.count == count


def test_period_is_ten_seconds_and_closing_does_not_wait_for_it():
    samples = Samples()
    profiler = Profiler(lambda *report: None, lambda: samples)
    time.sleep(0.3)
    started = time.monotonic()
    profiler.close()
    profiler.close()
    assert time.monotonic() - started < 5.0
    assert samples.count == 0
    assert profiler._period_s == 10.0


def test_failed_sample_is_logged_once_and_the_next_is_taken(caplog):
    reports = []
    samples = Samples(fails=lambda count: count in (1, 3))
    with caplog.at_level(logging.WARNING):
        profiler = Profiler(lambda *report: reports.append(report), lambda: samples, period_s=0.02)
        wait_until(lambda: samples.count >= 5)
        profiler.close()
    assert ("cpu", {"cpu_util_simple": 2.0}) in reports
    assert ("cpu", {"cpu_util_simple": 4.0}) in reports
    (record,) = caplog.records
    assert "profiling.enabled" in record.message


def test_failed_report_and_failed_start_do_not_leave_the_thread(caplog, monkeypatch):
    leaked = []
    monkeypatch.setattr(threading, "excepthook", leaked.append)

    def fail(*_):
        raise RuntimeError("the destination is gone")

    samples = Samples()
    for report, make in ((fail, lambda: samples), (lambda *_: None, fail)):
        profiler = Profiler(report, make, period_s=0.02)
        wait_until(lambda: samples.count >= 2)
        profiler.close()
    assert leaked == []
    assert len(caplog.records) == 2


def test_child_that_is_forked_while_samples_are_taken_is_free(tmp_path):
    backend = LocalBackend(RunDirectory(tmp_path))
    profiler = Profiler(backend.report_system_metrics, lambda: sampler_of([os.getpid()]), period_s=0.001)
    wait_until((tmp_path / "system.jsonl").exists)
    for _ in range(10):
        child = multiprocessing.get_context("fork").Process(target=profiler.close)
        child.start()
        child.join(10.0)
        assert child.exitcode == 0
    profiler.close()
    backend.close()


def groups_of(path):
    return {json.loads(line)["group"] for line in path.read_text().splitlines()}


def test_first_worker_of_a_machine_samples_the_processes_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.05)
    sampled = []
    monkeypatch.setattr(
        "det_keras.core.profiler.sampler_of", lambda pids: sampled.append(pids) or sampler_of(pids)
    )

    def work(distributed):
        directory = tmp_path / str(distributed.rank)
        context = Context(
            LocalBackend(RunDirectory(directory)), DirectoryStorage(directory), distributed=distributed
        )
        context.profiler.on()
        if distributed.rank == 0:
            wait_until(lambda: (directory / "system.jsonl").exists())
        distributed.allgather(None)
        context.close()
        return (directory / "system.jsonl").exists()

    assert on_ranks(2, work) == [True, False]
    assert sampled == [[os.getpid()] * 2]
    assert {"cpu", "memory"} <= groups_of(tmp_path / "0" / "system.jsonl")


@pytest.mark.parametrize("times", [1, 2])
def test_a_context_has_one_profiler(tmp_path, times):
    context = Context(LocalBackend(RunDirectory(tmp_path)), DirectoryStorage(tmp_path))
    for _ in range(times):
        context.profiler.on()
    assert [thread.name for thread in threading.enumerate()].count("det-profiler") == 1
    context.close()
    assert "det-profiler" not in [thread.name for thread in threading.enumerate()]


def test_script_turns_the_reports_on_and_off(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 1.0)
    with core.init(run_dir=tmp_path) as context:
        context.profiler.on(sampling_interval=0.1, samples_per_report=2)
        context.profiler.on()
        wait_until(lambda: (tmp_path / "system.jsonl").exists(), 60)
        context.profiler.off()
        context.profiler.off()
        count = len((tmp_path / "system.jsonl").read_text().splitlines())
        context.profiler.on(0.1, 1)
        wait_until(lambda: len((tmp_path / "system.jsonl").read_text().splitlines()) > count, 60)
        with pytest.raises(ValueError, match="`samples_per_report` must be above 0"):
            context.profiler.on(1, 0)
