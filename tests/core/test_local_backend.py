"""Reports of a run alone: kept once, rewound on a resume, whole after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np
import pytest

from det_keras import core
from det_keras.core.backend.local import RunDirectory
from det_keras.errors import DetError


def rows(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def test_metrics_are_kept_once(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        for _ in range(2):
            context.train.report_metrics("training", 10, {"loss": float("nan")})
    assert [(row["group"], row["steps_completed"], row["metrics"]) for row in rows(tmp_path)] == [
        ("training", 10, {"loss": "NaN"})
    ]


def test_contexts_opened_in_one_second_have_directories_of_their_own():
    directories = set()
    for _ in range(3):
        with core.init() as first, core.init() as second:
            directories |= {first.backend.run.path, second.backend.run.path}
    assert len(directories) == 6


def test_rewind_forgets_what_comes_later(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        for steps in (10, 20, 30):
            context.train.report_metrics("training", steps, {"loss": 1.0})
        context.backend.rewind(20)
    assert [row["steps_completed"] for row in rows(tmp_path)] == [10, 20]


def test_line_that_a_kill_cut_off_is_dropped(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        context.train.report_metrics("training", 10, {"loss": 1.0})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"group": "trai')
    with core.init(run_dir=tmp_path) as context:
        context.train.report_metrics("training", 20, {"loss": 1.0})
    assert [row["steps_completed"] for row in rows(tmp_path)] == [10, 20]


def test_newest_two_and_the_best_checkpoint_are_kept(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        for steps, metric in enumerate([0.5, 0.1, 0.9, 0.8, 0.7], start=1):
            with context.checkpoint.store_path(
                {"steps_completed": steps, "searcher_metric": metric, "format": "keras"}
            ):
                pass
        assert [record.steps_completed for record in context.backend.checkpoints()] == [5, 4, 2]


def test_checkpoints_of_a_script_of_ones_own_are_all_kept(tmp_path):
    with core.init(run_dir=tmp_path / "run") as context:
        (tmp_path / "a").mkdir()
        uuids = [context.checkpoint.upload(tmp_path / "a", {"steps_completed": steps}) for steps in range(5)]
        assert {record.uuid for record in context.backend.checkpoints()} == set(uuids)


@pytest.mark.parametrize("group", ["", "a.b", "gpu"])
def test_unusable_group_names_are_refused(tmp_path, group):
    with core.init(run_dir=tmp_path) as context, pytest.raises(ValueError, match="group"):
        context.train.report_metrics(group, 1, {})


@pytest.mark.parametrize("steps", [-1, 1.5, True])
def test_unusable_batch_counts_are_refused(tmp_path, steps):
    with core.init(run_dir=tmp_path) as context, pytest.raises(ValueError, match="steps_completed"):
        context.train.report_metrics("training", steps, {})


def test_shard_batch_size_of_one_worker_is_the_global_one(tmp_path):
    with core.init(run_dir=tmp_path) as context:
        assert context.distributed.shard_batch_size(64) == 64
        with pytest.raises(ValueError, match="positive"):
            context.distributed.shard_batch_size(0)


def test_indivisible_batch_size_names_nearest_sizes():
    from det_keras.cluster_info import WorkerInfo
    from det_keras.core import DistributedContext

    with pytest.raises(ValueError, match="Use 9 or 12"):
        DistributedContext.of(WorkerInfo(size=3)).shard_batch_size(10)
    with pytest.raises(ValueError, match="Use 3,"):
        DistributedContext.of(WorkerInfo(size=3)).shard_batch_size(2)


_STALLED_CHILD = """
import os, signal, sys

def wait_if_forked():
    os.write(2, b"forked")
    signal.pause()

os.register_at_fork(after_in_child=wait_if_forked)
from det_keras import core

with core.init(run_dir=sys.argv[1]):
    child = os.fork()
try:
    with core.init(run_dir=sys.argv[1]):
        pass
finally:
    os.kill(child, signal.SIGKILL)
"""


@pytest.mark.process
def test_child_that_has_not_begun_to_run_keeps_no_lock(tmp_path):
    run = subprocess.run([sys.executable, "-c", _STALLED_CHILD, tmp_path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


HOLDER = """
import sys
from pathlib import Path
from det_keras.core.backend.local import RunDirectory
run = RunDirectory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_directory_of_a_process_that_is_being_killed_is_waited_for(tmp_path):
    """Who kills a launcher and starts it again at once meets workers that have not noticed it yet."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(RunDirectory, tmp_path)
        assert not wait([opening], timeout=0.5).done
        holder.kill()
        run = opening.result(timeout=60)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    run.close()
    holder.wait()


def test_directory_that_another_process_uses_is_refused_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr("det_keras.core.backend.local._DYING_S", 0.2)
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(DetError, match=f"in use by process {holder.pid}"):
        RunDirectory(tmp_path)
    holder.kill()
    holder.wait()


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (np.int64(3), 3), (np.float32(0.5), 0.5), (np.bool_(True), True), (np.array(1.5), 1.5),
        (np.arange(3), [0, 1, 2]), ([1, [2, np.float32(3)]], [1, [2, 3.0]]),
        ({"a": {"b": np.float64(1)}}, {"a": {"b": 1.0}}),
        (float("inf"), "Infinity"), (None, None), ("best", "best"), ((1, 2), [1, 2]),
    ],
    ids=str,
)  # fmt: skip
def test_numbers_of_numpy_are_reported_as_numbers(tmp_path, value, stored):
    with core.init(run_dir=tmp_path) as context:
        context.train.report_metrics("training", np.int64(10), {"x": value})
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["steps_completed"], row["metrics"]) == (10, {"x": stored})


def test_numbers_of_tensorflow_are_reported_as_numbers(tmp_path):
    tf = pytest.importorskip("tensorflow")
    with core.init(run_dir=tmp_path) as context:
        context.train.report_metrics(
            "training", tf.constant(10), {"x": tf.constant(0.5), "y": tf.Variable(2)}
        )
    row = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (row["steps_completed"], row["metrics"]) == (10, {"x": 0.5, "y": 2})


@pytest.mark.parametrize(
    "value",
    [{1, 2}, 1 + 2j, b"ab", np.datetime64("2024-01-01"), object()],
    ids=lambda value: type(value).__name__,
)
def test_value_that_cannot_be_reported_is_named_at_the_call(tmp_path, value):
    with core.init(run_dir=tmp_path) as context:
        with pytest.raises(
            TypeError, match=f"Metric 'odd' cannot be reported: it is a {type(value).__name__}, "
        ) as caught:
            context.train.report_metrics("training", 1, {"ok": 1.0, "odd": value})
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(TypeError, match="`metrics` must be values by name"):
            context.train.report_metrics("training", 1, [("a", 1)])
        for steps in (True, -1, 61.0, "63"):
            with pytest.raises(ValueError, match="must be an integer of at least 0"):
                context.train.report_metrics("training", steps, {"loss": 1.0})
