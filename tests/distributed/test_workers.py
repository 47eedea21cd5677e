"""Many workers train the model that one trains: weights, metrics, resumes, and faults that are found."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import faults
import numpy as np
import psutil
import pytest
import warm
from amount import AMOUNT, chosen

pytestmark = pytest.mark.process
needs_horovod = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod is not installed: the extra `horovod`"
)
ENGINES = ["builtin", pytest.param("horovod", marks=needs_horovod)]

SCRIPT = Path(__file__).parent / "scenarios.py"

above_engines = pytest.mark.above_engines
only_in_long_mode = pytest.mark.skipif(AMOUNT != "all", reason="in the long mode")


def of(*names):
    """Mark a test with the scenarios that it needs; only those are run."""
    return pytest.mark.parametrize("name", names)


def alike(*names):
    return [pytest.param(name, marks=above_engines) for name in names]


# The same on any number of workers, but for the order in which floats are added.
SAME = [
    "arrays_sgd",
    "arrays_adam_clipped",
    "tf_data",
    "tf_data_of_unknown_length",
    "aggregated",
    "embedding",
]
# For an engine, they exchange the same tensors as the first of them.
LIKE_ARRAYS_SGD = ["arrays_adam_clipped", "tf_data", "aggregated"]
SAME_ABOVE = chosen(
    [
        "pydataset",
        "pydataset_adam",
        "tf_data_adam",
        "binary_metrics",
        "loss_that_is_a_sum",
        "loss_that_is_a_mean_by_weights",
        "losses_reduced_in_two_ways",
        "mask_that_a_layer_consumes",
        "mask_in_the_loss",
        "mask_and_weights_in_the_loss",
        "per_worker_batches",
        "tf_data_in_steps",
        "tf_data_without_a_rest",
        "unknown_length_in_several_steps",
        "several_steps_per_execution",
        "two_optimizers",
        "norms_of_layers",
    ],
    # Adam is exchanged like SGD, and with arrays already; the others are a part of what another one does.
    alike={"pydataset_adam", "tf_data_adam", "mask_in_the_loss", "several_steps_per_execution"},
    are_many=True,
)
# The relay trains on four as well, and is compared with one worker.
ON_FOUR = [*SAME, *SAME_ABOVE] if AMOUNT == "all" else []
# Sent or computed in 16 bits.
ROUGHLY_SAME = ["compressed", "mixed_float16"]
FAILING = {
    "unwrapped_optimizer": "the optimizer has to be wrapped",
    "unwrapped_data": "data has to be wrapped",
    "data_changed_after_wrapping": "has to come before that",
    "fewer_samples_than_workers": "1 samples cannot be shared by 2 workers",
    "indivisible_batch_size": "Use 62 or 64",
    "synchronized_batch_normalization": "synchronized=True",
    "unreduced_loss": "has reduction=None",
    "metric_that_is_no_sum": "`smallest` (Smallest) cannot be summed",
    "other_data_on_one_rank": "The content of the data of rank 1 differs",
    "other_model_on_one_rank": "The model of rank 1 differs",
    "flipped_bit": "dense/kernel` of rank 1 differs from that of rank 0. It happened between batch 6 and batch 11",
    "skipped_exchange": "It happened between batch 0 and batch 1",
    "unsynchronised_variable": "conv2d/kernel` of rank 1 differs",
}
SEEN_BY_ENGINES = {"flipped_bit", "skipped_exchange", "unwrapped_optimizer", "other_model_on_one_rank"}
# Of the seeded faults, one changes a weight on one rank as well.
FAILING = {name: FAILING[name] for name in chosen(FAILING, alike={"unsynchronised_variable"})}
WITH_HOROVOD = {"optimizer_of_horovods_own": "does not exchange gradients on Keras 3"}
only_horovod = pytest.mark.parametrize(
    "engine", [pytest.param("horovod", marks=needs_horovod)], indirect=True
)
RESUMED = {"random_resumed": "random_undisturbed", "tf_data_resumed": "tf_data_undisturbed"}
ALONE = [
    "objects",
    "plain_fit",
    "evaluations",
    "predictions",
    "stopped_by_one_rank",
    "clean_runs",
    "seeded_faults",
]
ON_TWO = [*SAME, *SAME_ABOVE, *ROUGHLY_SAME, *ALONE, *FAILING, *RESUMED.values(), *RESUMED]
ONLY_HOROVOD = [*WITH_HOROVOD, "wrapper_of_horovods_own_on_keras_3"]


def start(folder, workers, *names, engine="builtin", launcher_options=(), **environ):
    """Start scenarios on a number of workers."""
    command = [sys.executable, str(SCRIPT), str(folder), *names]
    if workers > 1:
        launcher = [
            sys.executable,
            "-m",
            "det_keras.launch.distributed",
            "--np",
            str(workers),
            "--engine",
            engine,
            *launcher_options,
        ]
        command = [*launcher, "--", *command]
    return warm.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environ}
    )


def run(folder, workers, *names, **options):
    """Run scenarios to their end."""
    process = start(folder, workers, *names, **options)
    output, _ = process.communicate(timeout=900)
    assert process.returncode == 0, output[-4000:]
    return folder


def needed(request, names, engine=None):
    """Return those of the scenarios that the selected tests need; with an engine, those that need them over it."""
    wanted = set()
    for item in request.session.items:
        if item.path != request.path or not {"two", "four"} & set(item.fixturenames):
            continue
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if engine not in (None, params.get("engine")):
            continue
        if "name" not in params:
            return names
        wanted |= {params["name"], params.get("undisturbed")}
    return [name for name in names if name in wanted]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request):
    return request.param


@pytest.fixture(scope="module")
def one(request, tmp_path_factory):
    return run(tmp_path_factory.mktemp("one"), 1, *needed(request, [*SAME, *SAME_ABOVE, *ROUGHLY_SAME]))


@pytest.fixture(scope="module")
def two(request, engine, tmp_path_factory):
    names = [*ON_TWO, *ONLY_HOROVOD] if engine == "horovod" else ON_TWO
    return run(tmp_path_factory.mktemp("two"), 2, *needed(request, names, engine), engine=engine)


@pytest.fixture(scope="module")
def four(request, engine, tmp_path_factory):
    return run(tmp_path_factory.mktemp("four"), 4, *needed(request, ON_FOUR, engine), engine=engine)


def result(folder, name, rank=0):
    return json.loads((folder / name / f"rank-{rank}.json").read_text())


def assert_same(folder, other, name, *, weights=1e-5, metrics=1e-6):
    """Compare weights relative to the largest of each variable, and every metric that was reported."""
    with np.load(folder / name / "variables.npz") as ours, np.load(other / name / "variables.npz") as theirs:
        assert ours.files == theirs.files
        for key in ours.files:
            np.testing.assert_allclose(
                ours[key], theirs[key], rtol=0, atol=weights * np.abs(theirs[key]).max()
            )
    found, expected = result(folder, name), result(other, name)
    assert "error" not in found, found["error"]
    for part in ("history", "evaluation"):
        for metric, value in expected["result"].get(part, {}).items():
            np.testing.assert_allclose(
                found["result"][part][metric], value, atol=metrics, rtol=metrics, err_msg=metric
            )
    if "predictions" in expected["result"]:
        np.testing.assert_allclose(
            found["result"]["predictions"], expected["result"]["predictions"], atol=2e-4
        )


@pytest.mark.parametrize(
    "name",
    [
        *(name for name in SAME if name not in LIKE_ARRAYS_SGD),
        *alike(*LIKE_ARRAYS_SGD, *SAME_ABOVE),
    ],
)
def test_two_workers_train_the_model_of_one(name, one, two):
    assert_same(two, one, name)


@pytest.mark.parametrize("name", alike(*(name for name in ("norms_of_layers",) if name in SAME_ABOVE)))
def test_norms_are_those_of_the_gradients_of_all_workers(name, one, two):
    ours, theirs = (layer_reports(folder / name / "run") for folder in (two, one))
    assert len(ours) == len(theirs) > 0
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine == pytest.approx(expected, rel=1e-4)


def layer_reports(run_dir):
    rows = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [row["metrics"] for row in rows if row["group"] == "layers"]


@pytest.mark.parametrize("name", alike(*ON_FOUR))
def test_four_workers_train_the_model_of_one(name, one, four):
    assert_same(four, one, name)


@pytest.mark.parametrize("name", ["compressed", *alike("mixed_float16")])
def test_sixteen_bits_cost_digits_alone(name, one, two):
    with np.load(one / name / "variables.npz") as ours, np.load(two / name / "variables.npz") as theirs:
        for key in ours.files:
            np.testing.assert_allclose(
                ours[key], theirs[key], rtol=0, atol=0.05 * np.abs(theirs[key]).max() + 1e-6
            )


@pytest.mark.parametrize(
    "name",
    [
        "arrays_sgd",
        *alike("tf_data", *(name for name in ("pydataset", "binary_metrics") if name in SAME_ABOVE)),
    ],
)
def test_every_rank_sees_the_same_metrics(name, two):
    assert result(two, name, 0) == result(two, name, 1)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (name, message) if name in SEEN_BY_ENGINES else pytest.param(name, message, marks=above_engines)
        for name, message in FAILING.items()
    ],
)
def test_misuse_and_faults_are_told_on_every_rank(name, message, two):
    for rank in (0, 1):
        assert message in result(two, name, rank).get("error", "no error")


@of("seeded_faults")
@above_engines
def test_each_seeded_fault_is_found_and_named_within_one_period(name, two):
    found, elsewhere = (result(two, name, rank)["result"] for rank in (0, 1))
    assert len({fault["kind"] for fault in found}) == len(faults.KINDS)
    for fault, other in zip(found, elsewhere, strict=True):
        assert faults.problem_of(fault, other) is None, fault


@of("clean_runs")
@above_engines
def test_trainings_without_a_fault_raise_no_alarm(name, two):
    assert result(two, name)["result"] == []


@of("plain_fit")
@above_engines
def test_plain_fit_with_a_wrapped_optimizer_warns_once(name, two):
    of_ours, first, second = result(two, name)["result"]
    assert of_ours == second == []
    assert "Use `context.fit(model, ...)`" in "".join(first)


@pytest.mark.parametrize(("name", "message"), WITH_HOROVOD.items())
@only_horovod
def test_misuse_of_horovod_is_told_on_every_rank(name, message, two):
    for rank in (0, 1):
        assert message in result(two, name, rank).get("error", "no error")


@of("wrapper_of_horovods_own_on_keras_3")
@only_horovod
def test_wrapper_of_horovods_own_still_leaves_workers_apart_on_keras_3(name, two):
    """Once this fails, Horovod has been mended, and refusing its wrapper can be thought over."""
    first, second = result(two, name)["result"]
    assert first != second


@pytest.mark.parametrize(
    ("name", "undisturbed"),
    [
        pytest.param(*pair, marks=[above_engines] if pair[0] == "tf_data_resumed" else [])
        for pair in RESUMED.items()
    ],
)
def test_interrupted_workers_go_on_bit_for_bit(name, undisturbed, two):
    assert result(two, name) == result(two, undisturbed)
    with (
        np.load(two / name / "variables.npz") as ours,
        np.load(two / undisturbed / "variables.npz") as theirs,
    ):
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], theirs[key])


@of("stopped_by_one_rank")
@above_engines
def test_callback_that_stops_one_rank_stops_all_at_the_same_batch(name, two):
    first, second = (result(two, name, rank)["result"] for rank in (0, 1))
    assert first == second
    assert 4 <= first <= 14


@of("predictions")
@above_engines
def test_gathered_predictions_are_in_the_original_order_or_refused(name, two):
    chief, other = (result(two, name, rank)["result"] for rank in (0, 1))
    for found in (chief, other):
        assert [found[name] for name in ("arrays", "PyDataset", "tf.data")] == [True] * 3
        assert "only you know" in found["not dealt out"]
        assert "not dealt out one by one" in found["uneven"]
    assert chief["too few batches"] == 1797
    assert "leave none for rank 1 of 2" in other["too few batches"]


@of("evaluations")
@above_engines
def test_evaluation_refuses_what_makes_no_sense(name, two):
    chief, other = (result(two, name, rank)["result"] for rank in (0, 1))
    assert chief == other
    assert list(chief["one batch"]) == ["loss"]
    assert "unexpected keyword argument 'stepz'" in chief["misspelt"]
    assert "`batch_size` must be an integer of at least 1" in chief["no batch size"]
    assert "`steps` must be an integer of at least 1. Received: -1" in chief["no step"]
    assert "not one batch" in chief["empty"]


@of("objects")
def test_objects_travel_between_ranks(name, two):
    chief, other = (result(two, name, rank)["result"] for rank in (0, 1))
    assert (chief["rank"], other["rank"]) == (0, 1)
    assert (chief["gather"], other["gather"]) == (["of 0", "of 1"], None)
    assert chief["allgather"] == other["allgather"] == [0, 1]
    assert chief["broadcast"] == other["broadcast"] == {"from": 0}
    assert chief["local"] == other["local"] == [0, 1]


@pytest.fixture(scope="module")
def undisturbed_relay(tmp_path_factory):
    return run(tmp_path_factory.mktemp("relay"), 1, "relay")


@pytest.mark.kill
@above_engines
def test_training_goes_on_with_another_number_of_workers(engine, undisturbed_relay, tmp_path):
    for workers, batches in ((1, 17), (2, 20), (4, 15)):
        run(tmp_path, workers, "relay", engine=engine, RELAY_BATCHES=str(batches))
        assert result(tmp_path, "relay")["result"] == "interrupted"
    run(tmp_path, 1, "relay")
    assert_same(tmp_path, undisturbed_relay, "relay")


@pytest.fixture(scope="module")
def undisturbed_pair(engine, tmp_path_factory):
    return run(tmp_path_factory.mktemp("pair"), 2, "relay", engine=engine)


@pytest.mark.kill
@pytest.mark.parametrize(
    ("rank", "number", "code", "message"),
    [
        (0, signal.SIGKILL, 137, "Rank 0 was ended by SIGKILL"),
        pytest.param(
            *(1, signal.SIGKILL, 137, "Rank 1 was ended by SIGKILL"), marks=[above_engines, only_in_long_mode]
        ),
        # The launcher then kills it.
        pytest.param(
            *(1, signal.SIGSTOP, 137, "Rank 1 has shown no sign of life for 6 s"),
            marks=[above_engines, only_in_long_mode],
        ),
        pytest.param(
            *(1, signal.SIGTERM, 143, r"\[rank=0\] .*Asked to stop: the state at batch \d+ is saved"),
            marks=above_engines,
        ),
    ],
    ids=["chief killed", "killed", "stopped", "asked to end"],
)
def test_what_ends_one_rank_ends_all_and_the_next_start_goes_on(
    rank, number, code, message, engine, undisturbed_pair, tmp_path
):
    patience = ["--hang-timeout-seconds", "6"]
    process = start(tmp_path, 2, "relay", engine=engine, launcher_options=patience, RELAY_SLOWLY="1")
    checkpoints = tmp_path / "relay" / "run" / "checkpoints"
    deadline = time.monotonic() + 120
    while len(list(checkpoints.glob("[!.]*/manifest.json"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    workers = [psutil.Process(int((tmp_path / f"relay/rank-{rank}.pid").read_text())) for rank in (0, 1)]
    assert {one.ppid() for one in workers} == {process.pid}
    workers[rank].send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code, output
    assert re.search(message, output), output
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in workers)
    run(tmp_path, 2, "relay", engine=engine)
    with (
        np.load(tmp_path / "relay/variables.npz") as ours,
        np.load(undisturbed_pair / "relay/variables.npz") as theirs,
    ):
        for key in ours.files:
            np.testing.assert_array_equal(ours[key], theirs[key])


@needs_horovod
def test_two_hosts_train_the_model_of_one_worker(one, on_two_hosts, tmp_path):
    command = [sys.executable, str(SCRIPT), str(tmp_path), "arrays_sgd", "objects"]
    on_two_hosts("horovodrun", "-np", "2", "-H", "first:1,second:1", *command)
    assert_same(tmp_path, one, "arrays_sgd")
    assert result(tmp_path, "objects", rank=1)["result"]["local"] == [0]


MEET = """
import sys
from det_keras.core import DistributedContext
rank = int(sys.argv[1])
workers = DistributedContext(rank=rank, size=2, local_size=1, cross_rank=rank, cross_size=2)
found = (workers.allgather(rank * 10), workers.allgather_local(rank), workers.get_num_agents())
# At once: both hosts write to one pipe.
print(" ".join(["gathered", *map(str, found)]), flush=True)
"""


def test_objects_travel_between_two_hosts(on_two_hosts, tmp_path):
    (tmp_path / "meet.py").write_text(MEET)
    meet = f"DET_CHIEF_IP=first DET_CHIEF_KEY=secret {sys.executable} {tmp_path}/meet.py"
    printed = on_two_hosts("sh", "-c", f"ssh second '{meet} 1' & {meet} 0 && wait $!")
    assert "gathered [0, 10] [0] 2" in printed
    assert "gathered [0, 10] [1] 2" in printed
