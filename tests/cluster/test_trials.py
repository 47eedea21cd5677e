"""Trials in the containers of a real cluster: what only it does."""

from __future__ import annotations

import textwrap

import pytest

from cluster import scripts

pytestmark = pytest.mark.process


@pytest.mark.parametrize("script", [scripts.REJECTS_IN_CORE, scripts.REJECTS_IN_KERAS], ids=["core", "keras"])
def test_rejected_hyperparameters_are_no_failure(double, submit, script):
    experiment = submit(script, max_restarts=2)
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED"
    assert double.get(f"/api/v1/trials/{trial['id']}")["trial"].get("restarts", 0) == 0
    assert any("too many layers" in line for line in double.logs(trial))


def test_one_rank_of_two_containers_may_reject_them(double, submit):
    entrypoint = "python3 -m det_keras.launch.distributed -- python3 train.py"
    experiment = submit(
        scripts.ONE_RANK_REJECTS, entrypoint=entrypoint, resources={"slots_per_trial": 2}, max_restarts=2
    )
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    assert double.get(f"/api/v1/trials/{trial['id']}")["trial"].get("restarts", 0) == 0
    assert any("rejected these hyperparameters" in line for line in double.logs(trial))


def test_checkpoints_are_in_the_storage_and_metadata_is_read_after_its_report(double, submit):
    experiment = submit(scripts.REPORTS)
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    path = f"/api/v1/trials/{trial['id']}/checkpoints"

    def is_stored():
        listed = double.get(path)["checkpoints"]
        kept = {one["uuid"] for one in listed if one["state"] == "STATE_COMPLETED"}
        # The others are removed a moment after the end.
        return kept and kept <= {path.name for path in double.storage.iterdir() if (path / "state").exists()}

    double.until(is_stored)


def test_the_path_of_the_storage_is_not_in_the_container(double, submit):
    experiment = submit(
        "import os, det_keras as det\n"
        "path = det.get_cluster_info().trial.config['checkpoint_storage']['host_path']\n"
        "print('found', os.listdir(path), os.path.ismount('/determined_shared_fs'))\n"
    )
    double.wait(experiment)
    trial = double.trial(experiment)
    double.until(lambda: any("found [] True" in line for line in double.logs(trial)))


def test_a_search_that_stops_trials_ends_them_though_nobody_signals_it(double, submit):
    searcher = {
        "name": "async_halving", "metric": "val_loss", "num_rungs": 2, "divisor": 4,
        "time_metric": "epochs", "max_time": 8, "max_trials": 6, "max_concurrent_trials": 2,
    }  # fmt: skip
    space = {"learning_rate": {"type": "double", "minval": 0.1, "maxval": 1.0}}
    script = scripts.REPORTS.replace("else 4", "else 8").replace(
        "        if core.preempt", "        time.sleep(0.2)\n        if core.preempt"
    )
    experiment = submit(
        script, searcher=searcher, hyperparameters=space, reproducibility={"experiment_seed": 3}
    )

    assert double.wait(experiment) == "STATE_COMPLETED"
    trials = double.get(f"/api/v1/experiments/{experiment}/trials")["trials"]
    lengths = sorted(trial["totalBatchesProcessed"] for trial in trials)
    assert len(lengths) == 6
    assert lengths[0] < 80 == lengths[-1]


def test_a_report_that_the_master_refuses_is_dropped_with_a_warning(double, submit):
    script = """
        import det_keras as det
        with det.core.init() as core:
            core.train.report_metrics("training", 10, {"loss": 0.5})
            core.train.report_metrics("training", 10, {"loss": 0.25})
            core.train.report_metrics("validation", 10, {"val_loss": 0.5})
    """
    experiment = submit(textwrap.dedent(script))
    trial = double.trial(experiment)

    assert double.wait(experiment) == "STATE_COMPLETED", "".join(double.logs(trial))
    log = "".join(double.logs(trial))
    assert "conflicting key: loss" in log
    assert [metrics["loss"] for _, metrics in double.metrics(trial, "training")] == [0.5]
    assert len(double.metrics(trial, "validation")) == 1
