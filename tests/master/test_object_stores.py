"""A master whose experiments store in an object store: downloads, deletion, clean-up, and no secret that is shown."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest

from det_keras import storage
from det_keras.master.checkpoints import records
from det_keras.master.database.notifier import DELETIONS
from det_keras.storage.names import events_prefix
from master.fakes import SINGLE, eventually

sys.path.insert(0, str(Path(__file__).parents[1] / "storage"))

from servers import running

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def server():
    with running("s3") as server:
        yield server


@pytest.fixture
def section(server):
    return {**server.section(server.make_bucket()), "secret_key": "hunter2"}


@pytest.fixture
def place(section):
    return storage.from_config(section)


@pytest.fixture
def trial(world, section):
    """A trial that stores in the bucket."""
    return world.launch(SINGLE + f"checkpoint_storage: {json.dumps({**section, 'save_trial_latest': 1})}\n")[
        1
    ]


def put(world, place, trial, steps):
    uuid = str(uuid4())
    with place.store_path(uuid) as directory:
        (directory / "weights").write_bytes(b"weights")
    body = {
        "uuid": uuid,
        "taskId": trial["taskId"],
        "allocationId": f"{trial['taskId']}.1",
        "resources": {"weights": "7"},
        "metadata": {"steps_completed": steps},
    }
    world.client.post("/api/v1/checkpoints", body)
    return uuid


def keys(server, section):
    return server.keys(section["bucket"])


def test_checkpoint_is_downloaded_through_the_master(world, place, trial):
    uuid = put(world, place, trial, 1)
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "application/gzip"}
    answer = world.http.get(f"/checkpoints/{uuid}", headers=headers)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert archive.extractfile("weights").read() == b"weights"
        assert "manifest.json" in archive.getnames()


def test_unreachable_store_is_said(world, place, trial, server, section):
    uuid = put(world, place, trial, 1)
    for key in keys(server, section):
        server.remove(section["bucket"], key)
    headers = {"Authorization": f"Bearer {world.client.token}", "Accept": "application/gzip"}
    answer = world.http.get(f"/checkpoints/{uuid}", headers=headers)
    assert answer.status_code == 404
    assert section["bucket"] in answer.text


def test_secrets_are_not_shown(world, place, trial):
    uuid = put(world, place, trial, 1)
    for path in (f"/api/v1/experiments/{trial['experimentId']}", f"/api/v1/checkpoints/{uuid}"):
        assert "hunter2" not in json.dumps(world.client.get(path))


def test_deleted_checkpoint_leaves_the_bucket(world, place, trial, server, section):
    uuid, kept = put(world, place, trial, 1), put(world, place, trial, 2)
    world.client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
    eventually(lambda: not any(uuid in key for key in keys(server, section)))
    assert place.exists(kept)


def test_retention_deletes_what_it_does_not_keep(world, place, trial):
    first, last = put(world, place, trial, 1), put(world, place, trial, 2)
    with world.master.store.writing() as tx:
        experiment = tx.get(records.ExperimentRow, trial["experimentId"])
        experiment.is_pruning_due = True
        tx.notify(DELETIONS)
    eventually(lambda: not place.exists(first))
    assert place.exists(last)


def test_deleted_experiment_takes_its_events_along(world, place, trial, server, section, tmp_path):
    put(world, place, trial, 1)
    prefix = events_prefix(world.master.identity.cluster_id, trial["experimentId"])
    (tmp_path / "events").write_bytes(b"events")
    place.store_file(f"{prefix}/trial/1/events", tmp_path / "events")
    world.client.post(f"/api/v1/experiments/{trial['experimentId']}/kill")
    world.pool.finish(f"{trial['taskId']}.1", 0)
    path = f"/api/v1/experiments/{trial['experimentId']}"
    eventually(lambda: world.client.get(path)["experiment"]["state"] == "STATE_CANCELED")
    world.client.call("DELETE", path)
    eventually(lambda: keys(server, section) == [])


def test_orphans_of_all_storages_are_found_and_removed(world, place, trial, server, section):
    kept, left = put(world, place, trial, 1), str(uuid4())
    bucket = section["bucket"]
    server.put(bucket, f"some/where/.uploads/elsewhere~7~{left}", b"")
    server.put(bucket, f"some/where/{left}/weights", b"half")
    staging = world.home.checkpoints / f".staging-elsewhere-7-{left}"
    staging.mkdir(parents=True)
    ask = "/api/v1/checkpoints/orphans"
    assert world.client.post(ask, {"dryRun": False})["orphans"] == []
    found = world.client.post(ask, {"minAgeS": 0})
    assert {orphan["name"] for orphan in found["orphans"]} == {
        f"s3://{bucket}/some/where/{left}/",
        str(staging),
    }
    assert staging.exists()
    world.client.post(ask, {"minAgeS": 0, "dryRun": False})
    assert world.client.post(ask, {"minAgeS": 0})["orphans"] == []
    assert not staging.exists()
    assert {key.split("/")[2] for key in keys(server, section)} == {kept}


def test_storage_that_cannot_be_searched_is_named(world, trial, section):
    broken = {**section, "bucket": "none-such"}
    world.launch(SINGLE + f"checkpoint_storage: {json.dumps(broken)}\n")
    (problem,) = world.client.post("/api/v1/checkpoints/orphans", {"minAgeS": 0})["problems"]
    assert "s3://none-such does not exist" in problem
    assert "hunter2" not in problem
