"""Checkpoints whose process is killed after their commit and before their report."""

from __future__ import annotations

import json
from datetime import timedelta
from uuid import uuid4

import pytest

from det_keras import storage
from det_keras.master import process
from det_keras.master.checkpoints import orphans
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import open_store
from det_keras.protocol.origin import allocation_in, origin_of, with_origin
from master.fakes import SINGLE, file_entry

DIES = """
import os, signal
from pathlib import Path
from det_keras.core.checkpoint import CheckpointContext

mark, report = Path(os.environ["TEST_ROOT"]) / "died", CheckpointContext.report

def die(self, uuid, metadata):
    if not mark.exists():
        mark.write_text(uuid)
        os.kill(os.getpid(), signal.SIGKILL)
    report(self, uuid, metadata)

CheckpointContext.report = die
"""
SCRIPTS = {
    "upload": """
from det_keras import core
with core.init() as context:
    Path("weights").write_text("weights")
    context.checkpoint.upload(".", {"steps_completed": 1}, selector=lambda name: name == "weights")
""",
    "fit": """
import keras, numpy
import det_keras as det
context = det.keras.init()
model = keras.Sequential([keras.layers.Dense(1)])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD(0.01)), loss="mse")
x = numpy.zeros((8, 2), "float32")
context.fit(model, x=x, y=x[:, :1], batch_size=4, epochs=2, validate=False, verbose=0)
""",
}


@pytest.mark.process
@pytest.mark.kill
@pytest.mark.parametrize("way", SCRIPTS)
def test_checkpoint_that_a_kill_left_unreported_is_found_and_deleted(real, tmp_path, monkeypatch, way):
    place = storage.DirectoryStorage(tmp_path / "checkpoints")
    config = f"""
entrypoint: python3 dies.py
searcher: {{name: single, metric: loss, max_length: {{epochs: 2}}}}
records_per_epoch: 8
hyperparameters: {{global_batch_size: 4}}
max_restarts: 1
checkpoint_storage: {{type: directory, container_path: {place.root}}}
{real.own_variables}"""
    files = [file_entry("dies.py", (DIES + SCRIPTS[way]).encode())]
    experiment_id = real.client.create(config, modelDefinition=files)
    real.client.wait_for_state(experiment_id, "COMPLETED", timeout_s=120.0)
    cluster_id = real.client.get("/api/v1/master")["clusterId"]
    lost = (real.home.root / "died").read_text()
    others = [uuid for uuid in place.checkpoints() if uuid != lost]
    assert place.exists(lost)
    assert others
    process.stop(real.home)
    store = open_store(real.home, Notifier(), {})
    section = [{"type": "directory", "container_path": str(place.root)}]
    # Its report might still be on its way.
    assert orphans.unreported(store, place, cluster_id) == []
    monkeypatch.setattr(orphans, "_GRACE", timedelta(0))
    assert orphans.unreported(store, place, "another cluster") == []
    (found,) = orphans.sweep(store, section, cluster_id, 0.0, dry_run=True).orphans
    assert found.uuid == lost
    assert place.exists(lost)
    orphans.remove_unreported(store, section, cluster_id)
    assert place.checkpoints() == others
    store.close()


def test_garbage_collector_deletes_only_what_an_ended_allocation_left_unreported(
    world, tmp_path, monkeypatch
):
    monkeypatch.setattr(orphans, "_GRACE", timedelta(0))
    section = {"type": "directory", "container_path": str(tmp_path)}
    place = storage.from_config(section)
    _, trial, allocation_id = world.launch(SINGLE + f"checkpoint_storage: {json.dumps(section)}\n")
    world.client.post("/api/v1/runs/start", {"runId": trial["id"], "checkpointStorage": section})
    own = world.master.identity.cluster_id

    def put(origin):
        uuid = str(uuid4())
        with place.store_path(uuid) as directory:
            (directory / "metadata.json").write_text(json.dumps(with_origin({"steps_completed": 1}, origin)))
        return uuid

    def tidy():
        world.master.garbage_collector._swept_at = None
        world.master.garbage_collector.tidy()
        return set(place.checkpoints())

    reported, lost = put(origin_of(own, allocation_id)), put(origin_of(own, allocation_id))
    body = {"uuid": reported, "taskId": trial["taskId"], "metadata": {"steps_completed": 1}}
    world.client.post("/api/v1/checkpoints", body)
    kept = {reported, put(None), put(origin_of("other", allocation_id)), put(origin_of(own, "other.1"))}
    assert tidy() == {*kept, lost}
    world.pool.finish(allocation_id, 1)
    world.wait_for_launch(trial, 2)
    swept = world.client.post("/api/v1/checkpoints/orphans", {"minAgeS": 0, "dryRun": True})
    assert [orphan["uuid"] for orphan in swept["orphans"]] == [lost]
    assert tidy() == kept


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{}", b'{"origin": 1}', b'{"origin": {"cluster_id": "a"}}', b"\xff"]
)
def test_odd_metadata_has_no_origin(content):
    assert allocation_in(content, "a") is None
