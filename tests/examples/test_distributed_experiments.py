"""A trial on two slots: paused, or robbed of a rank, it ends with the weights of the undisturbed one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from amount import AMOUNT

pytestmark = [pytest.mark.process, pytest.mark.kill]

EPOCHS, STEPS = 6, 9
CONFIG = {
    "name": "two workers",
    "entrypoint": "python3 -m det_keras.launch.distributed -- python3 slow_train.py",
    "hyperparameters": {"learning_rate": 0.01},
    "resources": {"slots_per_trial": 2},
    "optimizations": {"collective_engine": "builtin"},
    "searcher": {"name": "single", "metric": "val_loss", "max_length": {"epochs": EPOCHS}},
    "checkpoint_policy": "all",
    "reproducibility": {"experiment_seed": 5},
    "max_restarts": 2,
}


@pytest.fixture(scope="module")
def create(cluster, tmp_path_factory):
    folder = tmp_path_factory.mktemp("context")
    (folder / "slow_train.py").write_bytes((Path(__file__).parent / "slow_train.py").read_bytes())
    config = tmp_path_factory.mktemp("config") / "two.yaml"

    def make(**changes):
        config.write_text(yaml.safe_dump({**CONFIG, "environment": cluster.environment(), **changes}))
        experiment = cluster.create(config, folder)
        return experiment, cluster.trial(experiment)

    return make


@pytest.fixture(scope="module")
def undisturbed(cluster, create):
    experiment, trial = create()
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    return cluster.final_digest(trial), cluster.metrics(trial, "validation")


def test_two_workers_report_once_and_say_which_rank_speaks(cluster, create, undisturbed):
    (steps, _), validations = undisturbed
    assert steps == EPOCHS * STEPS
    assert [batches for batches, _ in validations] == [STEPS * (epoch + 1) for epoch in range(EPOCHS)]


def test_paused_trial_of_two_workers_ends_the_same(cluster, create, undisturbed, tmp_path):
    gate = tmp_path / "gate"
    experiment, trial = create(environment=cluster.environment(f"GATE={gate}"))
    cluster.wait_for_epoch(trial, 2)
    cluster.det("experiment", "pause", experiment)
    gate.touch()
    cluster.until(lambda: not cluster.processes(trial))
    cluster.det("experiment", "activate", experiment)
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert (cluster.final_digest(trial), cluster.metrics(trial, "validation")) == undisturbed
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0


def test_trial_that_lost_a_rank_is_restarted_and_ends_the_same(cluster, create, undisturbed):
    experiment, trial = create()
    cluster.wait_for_epoch(trial, 2)
    cluster.processes(trial)[1].kill()
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert (cluster.final_digest(trial), cluster.metrics(trial, "validation")) == undisturbed
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 1


@pytest.mark.skipif(AMOUNT != "all", reason="in the long mode: `--verify-resume --workers` does so as well")
def test_trial_with_virtual_workers_goes_on_with_one_slot_and_ends_the_same(cluster, create):
    virtual = {
        "reproducibility": {"experiment_seed": 5, "virtual_workers": 2},
        "hyperparameters": {"learning_rate": 0.01, "global_batch_size": 64},
    }
    experiment, alone = create(**virtual, resources={"slots_per_trial": 1})
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    experiment, trial = create(**virtual)
    cluster.wait_for_epoch(trial, 2)
    cluster.det("experiment", "cancel", experiment)
    assert cluster.wait(experiment) == "STATE_CANCELED"
    cluster.det("experiment", "continue", experiment, "--config", "resources.slots_per_trial=1")
    assert cluster.wait(experiment) == "STATE_COMPLETED"
    assert cluster.final_digest(trial) == cluster.final_digest(alone)
    assert cluster.metrics(trial, "validation") == cluster.metrics(alone, "validation")


# Where rank 1 raises, and what rank 0 does meanwhile: it waits for rank 1 in an exchange of objects, or of gradients.
REFUSING = {
    "before training": """
import det_keras as det
context = det.keras.init()
if context.distributed.rank == 1:
    raise det.InvalidHP("rank 1 cannot use them")
context.distributed.allgather("rank 0 waits for rank 1")
""",
    "in a callback": """
import keras
import numpy as np
import det_keras as det

class Refuse(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2 and context.distributed.rank == 1:
            raise det.InvalidHP("rank 1 cannot use them")

context = det.keras.init()
model = keras.Sequential([keras.layers.Dense(2)])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(0.01)), loss="mse")
x = np.zeros((256, 4), np.float32)
data, targets = context.wrap_data(x, x[:, :2])
context.fit(model, x=data, y=targets, batch_size=8, epochs=50, callbacks=[Refuse()], verbose=0, validate=False)
""",
}


@pytest.mark.parametrize("place", REFUSING)
def test_one_rank_alone_may_refuse_the_hyperparameters(cluster, tmp_path, place):
    (tmp_path / "context").mkdir()
    (tmp_path / "context" / "refuses.py").write_text(REFUSING[place])
    entrypoint = "python3 -m det_keras.launch.distributed -- python3 refuses.py"
    (tmp_path / "refuses.yaml").write_text(yaml.safe_dump({**CONFIG, "entrypoint": entrypoint}))
    experiment = cluster.create(tmp_path / "refuses.yaml", tmp_path / "context")
    trial = cluster.trial(experiment)
    assert cluster.wait(experiment) == "STATE_COMPLETED", "".join(cluster.logs(trial))
    assert cluster.get(f"/api/v1/trials/{trial['id']}")["trial"]["restarts"] == 0
    assert any("rank 1 cannot use them" in line for line in cluster.logs(trial))
