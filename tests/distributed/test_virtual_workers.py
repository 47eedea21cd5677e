"""Virtual workers: the same bits on any number of workers, also if their number changes at a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import warm
from amount import AMOUNT

import det_keras as det
from det_keras.core import DistributedContext
from det_keras.errors import ConfigError, DetError

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parent / "virtual_scenarios.py"
# Four processes on two cores take their time; the killed training has them as well.
NUMBERS = (1, 2, 4) if AMOUNT == "all" else (1, 2)
NAMES = ["convolutions-arrays-sgd", "rivals-pydataset-sgd", "recurrent-tf_data-adam"]
if AMOUNT == "all":
    NAMES += [
        "convolutions-tf_data-adamw",
        "recurrent-pydataset-adam",
        "convolutions-arrays-adam-several",
        "convolutions-pydataset-adam",
        "convolutions-arrays-adam-eager",
        "convolutions-arrays-adam-aggregated",
        "convolutions-arrays-sgd-mixed",
        "recurrent-arrays-adamw",
        "rivals-tf_data-adamw",
        "rivals-arrays-adam",
    ]
if AMOUNT == "few":
    NAMES = NAMES[:2]


def run(folder, workers, *names, engine="builtin", stop_at=None, parts="4"):
    """Run scenarios on a number of workers; with `stop_at`, to that batch of the one scenario."""
    command = [sys.executable, str(SCRIPT), str(folder), *names]
    if workers > 1:
        launcher = [sys.executable, "-m", "det_keras.launch.distributed", "--np", str(workers)]
        command = [*launcher, "--engine", engine, "--", *command]
    environment = {**os.environ, "STOP_AT": "" if stop_at is None else str(stop_at), "PARTS": parts}
    done = warm.run(command, env=environment, capture_output=True, timeout=900)
    assert done.returncode == (0 if stop_at is None else 9), done.stderr[-4000:]
    return folder


def results(folder, name, workers=1):
    return [json.loads((folder / name / f"rank-{rank}.json").read_text()) for rank in range(workers)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of each number of workers."""
    return {workers: run(tmp_path_factory.mktemp(f"on-{workers}"), workers, *NAMES) for workers in NUMBERS}


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_metrics_do_not_tell_the_number_of_workers(name, trained):
    (expected,) = results(trained[1], name)
    assert len(expected["digests"]) > 5
    for workers in NUMBERS:
        for found in results(trained[workers], name, workers):
            # The variables first: the message then names those that differ.
            assert found["digests"] == expected["digests"]
            assert found == expected


def drawn_history(seed):
    """Return numbers of workers, and the batches of 21 at which all but the last of them stop."""
    draw = random.Random(seed)
    stops = sorted(draw.sample(range(1, 21), draw.randint(1, 3)))
    return [draw.choice(NUMBERS) for _ in range(len(stops) + 1)], stops


HISTORIES = [("convolutions-arrays-sgd", [1, 4, 2], [5, 16])]
if AMOUNT == "all":
    HISTORIES += [
        (NAMES[seed % len(NAMES)], *drawn_history(seed))
        for seed in range(int(os.environ.get("HISTORIES", "50")))
    ]


@pytest.mark.kill
@pytest.mark.parametrize(("name", "workers", "stops"), HISTORIES, ids=str)
def test_killed_training_goes_on_with_another_number_of_workers_bit_for_bit(
    name, workers, stops, trained, tmp_path
):
    for number, stop_at in zip(workers, stops, strict=False):
        run(tmp_path, number, name, stop_at=stop_at)
    # A training that is stopped early may have written none.
    has_checkpoint = any((tmp_path / name / "run" / "checkpoints").glob("[!.]*/manifest.json"))
    assert has_checkpoint or stops[-1] <= 10
    if has_checkpoint:
        with pytest.raises(
            AssertionError, match=r"trained with `reproducibility.virtual_workers: 4`, this script asks"
        ):
            run(tmp_path, 1, name, parts="2")
    run(tmp_path, workers[-1], name)
    found, expected = results(tmp_path, name)[0], results(trained[1], name)[0]
    assert found["digests"] == expected["digests"]
    assert found == expected


@pytest.mark.skipif(importlib.util.find_spec("horovod") is None, reason="Horovod is not installed")
def test_horovod_gives_the_bits_of_the_builtin_engine(trained, tmp_path):
    name = "convolutions-arrays-sgd"
    run(tmp_path, 2, name, engine="horovod")
    assert results(tmp_path, name)[0] == results(trained[1], name)[0]


@pytest.mark.parametrize("workers", [1, 2] if AMOUNT == "all" else [2])
def test_training_is_that_of_plain_keras_where_nothing_is_random(workers, tmp_path):
    run(tmp_path, workers, "keras")
    found = results(tmp_path, "keras")[0]
    assert found["distance"] < 1e-5
    assert list(found["history"]) == list(found["expected"])
    for name, values in found["expected"].items():
        assert len(values) == 2
        np.testing.assert_allclose(found["history"][name], values, rtol=1e-5, err_msg=name)


def test_number_of_workers_that_does_not_divide_is_refused():
    workers = DistributedContext()
    workers.size = 3
    with pytest.raises(DetError, match=r"4 virtual workers cannot be shared by 3 workers\. .* such as 1"):
        workers.set_virtual_workers(4)


@pytest.mark.parametrize(("count", "message"), [(3, "a power of two, such as 2"), (0, "at least 1")])
def test_number_of_virtual_workers_is_a_power_of_two(count, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        det.keras.init(run_dir=tmp_path, virtual_workers=count)


def test_what_cannot_be_shared_is_refused(tmp_path):
    run(tmp_path, 1, "refusals")
    (found,) = results(tmp_path, "refusals")
    assert "A generator cannot be shared by virtual workers" in found["generator"]
    assert "`per_worker_batches=True` cannot be used with virtual workers" in found["per worker"]
    assert "`shard=False` cannot be used with virtual workers" in found["unsharded"]
    assert "cannot share a tf.data.Dataset with a SparseTensor" in found["sparse"]
    assert "Virtual workers cannot share sparse tensors" in found["endless"]
    assert "With virtual workers, a step cannot apply gradients" in found["branch"]


def test_gradients_cannot_be_compressed(tmp_path):
    config = {"optimizations": {"gradient_compression": True}}
    with pytest.raises(ConfigError, match="cannot be used with `optimizations"):
        det.keras.init(run_dir=tmp_path, config=config, virtual_workers=2)


def test_tensorflow_that_has_started_is_refused(tmp_path):
    code = """
import sys, tensorflow, det_keras as det
tensorflow.constant(1)
det.keras.init(run_dir=f"{sys.argv[1]}/one", virtual_workers=1).close()
print("one is possible")
det.keras.init(run_dir=f"{sys.argv[1]}/two", virtual_workers=2)
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = warm.run(command, capture_output=True, timeout=300)
    assert "one is possible" in done.stdout, done.stderr
    assert done.returncode == 1
    assert "Call `det.keras.init(...)` before" in done.stderr
