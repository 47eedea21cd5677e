"""Scripts in trials that do not simply train to the end."""

from __future__ import annotations

import os
import subprocess
import textwrap

import pytest
import yaml
from storage.servers import running

pytestmark = pytest.mark.process


@pytest.fixture
def submit(cluster, tmp_path):
    """Submit a script as an experiment and return its id."""

    def make(script, **config):
        folder = tmp_path / "context"
        folder.mkdir()
        (folder / "script.py").write_text(textwrap.dedent(script))
        path = tmp_path / "config.yaml"
        searcher = {"name": "single", "metric": "val_loss"}
        path.write_text(yaml.safe_dump({"entrypoint": "python3 script.py", "searcher": searcher, **config}))
        return cluster.create(path, folder)

    return make


def test_core_script_reports_checkpoints_and_resumes_after_a_pause(cluster, submit):
    script = """
        import sys, time
        import det_keras as det
        assert "tensorflow" not in sys.modules
        with det.core.init() as core:
            start = 0
            latest = core.info.latest_checkpoint
            if latest is not None:
                with core.checkpoint.restore_path(latest) as path:
                    start = int((path / "steps").read_text())
            for step in range(start + 1, 100000):
                core.train.report_metrics("training", step, {"loss": 1.0 / step})
                core.train.report_progress(min(step / 100, 1.0))
                if step == 5:
                    core.train.report_metrics("validation", step, {"val_loss": 0.5})
                    core.train.report_metrics("my_group", step, {"x": [1, 2]})
                stop = core.preempt.should_preempt()
                if stop or (latest and step > start + 3):
                    with core.checkpoint.store_path({"steps_completed": step}) as (path, uuid):
                        (path / "steps").write_text(str(step))
                    break
                time.sleep(0.02)
        assert "tensorflow" not in sys.modules
    """
    # With an option it is a new interpreter, in which nothing is imported yet.
    experiment = submit(script, entrypoint="python3 -u script.py")
    trial = cluster.trial(experiment)
    cluster.until(lambda: cluster.metrics(trial, "my_group"))
    cluster.det("experiment", "pause", experiment)
    cluster.until(lambda: cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"])
    cluster.det("experiment", "activate", experiment)
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    checkpoints = cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    first, second = sorted(one["metadata"]["steps_completed"] for one in checkpoints)
    assert second == first + 4
    steps = [steps for steps, _ in cluster.metrics(trial, "training")]
    assert steps == list(range(1, second + 1))
    assert cluster.metrics(trial, "my_group") == [(5, {"x": [1, 2]})]


def test_invalid_hyperparameters_end_the_trial_without_a_restart(cluster, submit):
    script = """
        import det_keras as det
        context = det.keras.init()
        raise det.InvalidHP("too many layers")
    """
    experiment = submit(script, max_restarts=3)
    trial = cluster.trial(experiment)
    cluster.wait(experiment)
    found = cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]
    assert (found["state"], found["restarts"]) == ("STATE_COMPLETED", 0)
    assert any("too many layers" in line for line in cluster.logs(trial))


def test_missing_hyperparameter_is_named_at_the_end_of_the_log(cluster, submit):
    script = """
        import det_keras as det
        det.keras.init().training.hparams["learning_rate"]
    """
    experiment = submit(script, max_restarts=0, hyperparameters={"dropout": 0.5})
    assert cluster.wait(experiment) == "STATE_ERROR"
    log = "".join(cluster.logs(cluster.trial(experiment)))
    assert "There is no hyperparameter 'learning_rate'; there are: 'dropout'" in log


def test_job_has_no_training(cluster, tmp_path):
    (tmp_path / "script.py").write_text(
        "import det_keras as det\ncontext = det.keras.init()\nprint('data', context.config_data)\ncontext.training\n"
    )
    (tmp_path / "job.yaml").write_text("entrypoint: python3 script.py\ndata: {a: 1}\n")
    done = cluster.det("job", "run", tmp_path / "job.yaml", tmp_path, check=False)
    assert done.returncode != 0
    assert "data {'a': 1}" in done.stdout
    assert "NotATrainingJobError" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_full_disk_is_said_and_leaves_nothing(cluster, submit, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(disk)], check=False)
    if mounted.returncode != 0:
        pytest.skip("this machine allows no mounts")
    script = """
        import numpy as np, keras
        import det_keras as det
        context = det.keras.init()
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(1000), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x = np.ones((64, 64), "float32")
        context.fit(model, x, np.ones(64), validation_split=0.5, epochs=2)
    """
    try:
        storage = {"type": "directory", "container_path": str(disk)}
        experiment = submit(script, max_restarts=0, checkpoint_storage=storage)
        assert cluster.wait(experiment) == "STATE_ERROR"
        log = "".join(cluster.logs(cluster.trial(experiment)))
        assert "CheckpointError: The last checkpoint could not be written" in log
        assert "No space left on device" in log
        # The metrics that were reported stand there as TensorBoard's events; of the checkpoint there is nothing.
        cluster_id = cluster.get("/api/v1/master")["clusterId"]
        assert {path.name for path in disk.iterdir()} <= {cluster_id}
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_environment_variables_and_threads_reach_the_script(cluster, submit):
    script = """
        import os
        print("GREETING", os.environ["GREETING"], os.environ["OMP_NUM_THREADS"], os.environ["DET_TRIAL_SEED"])
    """
    environment = {"environment_variables": ["GREETING=hello"]}
    experiment = submit(script, environment=environment)
    cluster.wait(experiment)
    log = "".join(cluster.logs(cluster.trial(experiment)))
    assert "GREETING hello 1 " in log


LOOP = """
    import keras, numpy as np, os, tensorflow as tf
    import det_keras as det

    context = det.keras.init()
    x = np.random.RandomState(0).normal(size=(64, 4)).astype("float32")
    data = context.wrap_data(x, x.sum(1, keepdims=True))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.1), keras.layers.Dense(1)])
    optimizer = context.wrap_optimizer(keras.optimizers.Adam(context.training.hparams["rate"]))
    context.track(model=model, optimizer=optimizer)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for epoch in context.epochs(1):
        for batch_x, batch_y in context.batches(*data, batch_size=16):
            context.report(loss=step(batch_x, batch_y))
            # Until the test has asked for a pause.
            while epoch == 3 and not os.path.exists(os.environ["GATE"]) and not context.core.preempt.is_requested:
                context.core.preempt._requested.wait(0.1)
        context.report_validation(loss=tf.reduce_mean((model(x) - data[1]) ** 2))
"""


def test_paused_loop_ends_as_an_undisturbed_one_at_the_length_of_its_searcher(cluster, submit, tmp_path):
    gate = tmp_path / "gate"
    config = {
        "searcher": {"name": "single", "metric": "val_loss", "max_length": {"batches": 22}},
        "hyperparameters": {"rate": 0.01},
        "reproducibility": {"experiment_seed": 5},
        "environment": {"environment_variables": [f"GATE={gate}"]},
    }
    paused = submit(LOOP, **config)
    trial = cluster.trial(paused)
    cluster.wait_for_epoch(trial, 3)
    cluster.det("experiment", "pause", paused)
    cluster.until(lambda: cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"])
    gate.touch()
    cluster.det("experiment", "activate", paused)
    assert cluster.wait(paused) == "STATE_COMPLETED"
    undisturbed = cluster.create(tmp_path / "config.yaml", tmp_path / "context")
    assert cluster.wait(undisturbed) == "STATE_COMPLETED"
    other = cluster.trial(undisturbed)
    assert cluster.final_digest(trial) == cluster.final_digest(other)
    assert cluster.final_digest(trial)[0] == 22
    for group in ("training", "validation"):
        assert cluster.metrics(trial, group) == cluster.metrics(other, group)
    assert [steps for steps, _ in cluster.metrics(trial, "validation")] == [4, 8, 12, 16, 20, 22]


@pytest.fixture
def bucket():
    """A section of a bucket, and its server."""
    with running("s3") as server:
        section = server.section(server.make_bucket())
        yield section, server


def test_script_that_closes_nothing_loses_nothing_in_an_object_store(cluster, submit, bucket):
    section, server = bucket
    script = """
        import numpy as np, keras
        import det_keras as det
        context = det.keras.init()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        x = np.ones((64, 4), "float32")
        context.fit(model, x, np.ones(64), validation_data=(x, np.ones(64)), epochs=2, batch_size=16)
    """
    experiment = submit(script, max_restarts=0, checkpoint_storage=section)
    assert cluster.wait(experiment) == "STATE_COMPLETED", cluster.logs(cluster.trial(experiment))
    trial = cluster.trial(experiment)
    assert [steps for steps, _ in cluster.metrics(trial, "validation")] == [4, 8]
    checkpoints = cluster.get(f"/api/v1/trials/{trial['id']}/checkpoints")["checkpoints"]
    assert max(one["metadata"]["steps_completed"] for one in checkpoints) == 8
    # TensorBoard's files are copied when the context is closed.
    assert any("tensorboard" in key for key in server.keys(section["bucket"]))
    assert not any("Traceback" in line for line in cluster.logs(trial))


def test_reports_of_a_forked_process_arrive(cluster, submit):
    script = """
        import multiprocessing
        import det_keras as det

        def child(core):
            for step in range(2, 20):
                core.train.report_training_metrics(step, {"loss": 2.0})

        with det.core.init() as core:
            core.train.report_training_metrics(1, {"loss": 1.0})
            process = multiprocessing.get_context("fork").Process(target=child, args=(core,))
            process.start()
            process.join()
            assert process.exitcode == 0
            core.train.report_training_metrics(20, {"loss": 3.0})
    """
    experiment = submit(script, max_restarts=0, searcher={"name": "single", "metric": "loss"})
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert [steps for steps, _ in cluster.metrics(cluster.trial(experiment), "training")] == list(
        range(1, 21)
    )
