"""One contract for every backend: a run directory, a trial's master, the master of a detached run, and each of them
shared by the workers."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import select

from det_keras.client import Session
from det_keras.cluster_info import read_cluster_info
from det_keras.core import DistributedContext
from det_keras.core.backend import Backend, CheckpointRecord
from det_keras.core.backend.local import LocalBackend, RunDirectory
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.backend.trial import TrialBackend
from det_keras.core.preempt import PreemptContext
from det_keras.errors import DetError
from det_keras.master.database.models import DeliveryRow, MetricRow, TrialRow
from det_keras.master.reports.metrics import live_rows
from det_keras.protocol import states
from det_keras.storage import DirectoryStorage
from master.detached_runs import open_detached
from master.fakes import eventually
from master.test_doors import login

CONFIG = (
    "entrypoint: python3 train.py\nsearcher: {name: single, metric: val_loss, max_length: {batches: 100}}\n"
)


@dataclass
class Place:
    """A backend, and what it has recorded as seen from outside.

    Attributes:
        backend: under test.
        rows: returns (group, batches, metrics) of all reports that count.
        storage: where checkpoint files are.
    """

    backend: Backend
    rows: Any
    storage: DirectoryStorage

    def save(self, steps_completed: int) -> str:
        """Store a checkpoint and report it."""
        name = str(uuid.uuid4())
        metadata = {"steps_completed": steps_completed}
        with self.storage.store_path(name) as folder:
            (folder / "metadata.json").write_text(f'{{"steps_completed": {steps_completed}}}')
        record = CheckpointRecord(name, steps_completed, self.storage.list_files(name), metadata)
        # Not flushed: what is read next has it all the same.
        self.backend.report_checkpoint(record)
        return name


def local(tmp_path):
    run = RunDirectory(tmp_path / "run")
    backend = LocalBackend(run, metric="val_loss")

    def rows():
        lines = run.metrics.read_text().splitlines() if run.metrics.exists() else []
        return [(row["group"], row["steps_completed"], row["metrics"]) for row in map(json.loads, lines)]

    return Place(backend, rows, DirectoryStorage(run.checkpoints))


def trial(world, tmp_path):
    _, shape, allocation_id = world.launch(CONFIG)
    info = read_cluster_info(world.pool.launched[allocation_id].variables, tmp_path)
    session = Session(info.master_url, info.session_token, is_task=True, transport=world.http._transport)
    backend = TrialBackend(info, session)

    return Place(backend, lambda: rows_of(world, shape["id"]), DirectoryStorage(tmp_path / "storage"))


def detached(world, tmp_path):
    backend = open_detached(world, tmp_path, "mine")
    return Place(
        backend, lambda: rows_of(world, backend.run.trial_id), DirectoryStorage(tmp_path / "storage")
    )


def rows_of(world, trial_id):
    with world.master.store.reading() as found:
        query = live_rows([trial_id]).where(MetricRow.total_batches.is_not(None)).order_by(MetricRow.id)
        return [(row.group, row.total_batches, row.metrics) for row in found.scalars(query)]


def shared(place):
    return Place(SharedBackend(place.backend, DistributedContext()), place.rows, place.storage)


@pytest.fixture(params=["local", "trial", "detached", "local shared", "trial shared", "detached shared"])
def place(request, tmp_path):
    kind, *is_shared = request.param.split()
    if kind == "local":
        found = local(tmp_path)
    else:
        found = {"trial": trial, "detached": detached}[kind](request.getfixturevalue("world"), tmp_path)
    found = shared(found) if is_shared else found
    yield found
    found.backend.close()


def test_a_report_is_recorded_once_however_often_it_is_made(place):
    for _ in range(2):
        place.backend.report_metrics("training", 10, {"loss": 0.5, "nan": float("nan")})
    place.backend.report_metrics("validation", 10, {"val_loss": 0.25})
    place.backend.flush()
    assert place.rows() == [
        ("training", 10, {"loss": 0.5, "nan": "NaN"}),
        ("validation", 10, {"val_loss": 0.25}),
    ]


def test_the_best_validation_is_that_of_the_searchers_metric(place):
    assert place.backend.best_validation() is None
    for batches, value in ((10, 0.5), (20, 0.25), (30, float("nan")), (40, 0.75)):
        place.backend.report_metrics("validation", batches, {"val_loss": value, "other": 0.0})
    place.backend.flush()
    assert place.backend.best_validation() == 0.25


def test_checkpoints_come_newest_first_with_their_metadata(place):
    names = [place.save(batches) for batches in (10, 30, 20)]
    found = place.backend.checkpoints()
    assert [(record.uuid, record.steps_completed) for record in found] == [
        (names[1], 30),
        (names[2], 20),
        (names[0], 10),
    ]
    assert place.backend.checkpoint_metadata(names[2])["steps_completed"] == 20
    assert set(found[0].resources) >= {"metadata.json"}


def test_a_checkpoint_that_nobody_stored_is_refused(place):
    with pytest.raises(DetError):
        place.backend.checkpoint_metadata(str(uuid.uuid4()))


def test_run_metadata_replaces_what_was_there(place):
    assert place.backend.run_metadata() == {}
    assert place.backend.set_run_metadata({"a": 1}) == {"a": 1}
    assert place.backend.set_run_metadata({"b": [1, "x"]}) == {"b": [1, "x"]}
    assert place.backend.run_metadata() == {"b": [1, "x"]}


def test_reports_of_how_far_it_is_do_not_wait_and_do_not_fail(place):
    place.backend.report_progress(0.5)
    place.backend.set_status("validating")
    place.backend.report_system_metrics("cpu", {"cpu_util_simple": 12.0})
    place.backend.report_checkpoint_deleted(place.save(10))
    place.backend.flush()


def test_alert_is_kept_or_queued_for_webhooks(place, request):
    is_local = "local" in request.node.name
    world = None if is_local else request.getfixturevalue("world")
    if world is not None:
        admin = login(world, "admin", world.home.admin_password_file.read_text())
        body = {"url": "https://93.184.215.14/", "webhookType": "WEBHOOK_TYPE_DEFAULT", "name": ""}
        world.master.webhook_sender.step = lambda: 60.0
        admin.post("/api/v1/webhooks", {**body, "triggers": [{"triggerType": "TRIGGER_TYPE_CUSTOM"}]})
    place.backend.alert("Diverged", "loss is nan", "ERROR")
    place.backend.flush()
    if world is None:
        (line,) = (place.backend.unshared.run.path / "alerts.jsonl").read_text().splitlines()
        found = json.loads(line)
        assert (found["title"], found["description"], found["level"]) == ("Diverged", "loss is nan", "ERROR")
        return
    with world.master.store.reading() as found:
        (row,) = found.scalars(select(DeliveryRow)).all()
    told = json.loads(row.payload)["event_data"]
    assert told["custom_data"]["level"] == "LOG_LEVEL_ERROR"
    assert told["experiment"]["trial_id"] == place.backend.unshared.run.trial_id


def test_what_was_submitted_is_empty_or_the_users_own(place):
    config = place.backend.original_config()
    assert config is None or "train.py" in config
    assert place.backend.context_directory()[:2] in (b"", b"\x1f\x8b")


def test_only_a_trials_process_is_asked_to_stop(place):
    if place.backend.is_preemptible:
        assert place.backend.wait_for_preemption(0.0) is False
        place.backend.acknowledge_preemption()
        place.backend.flush()


def test_unshared_calls_reach_the_same_place(place):
    place.backend.unshared.report_metrics("training", 10, {"loss": 0.5})
    place.backend.unshared.flush()
    assert place.rows() == [("training", 10, {"loss": 0.5})]


def test_closing_twice_is_closing_once(place):
    place.backend.report_metrics("training", 10, {"loss": 0.5})
    place.backend.close()
    place.backend.close()
    assert len(place.rows()) == 1


@pytest.mark.parametrize("is_shared", [False, True], ids=["alone", "shared"])
def test_trial_that_its_search_stops_without_a_word_finds_out_after_a_validation(world, tmp_path, is_shared):
    """Determined 0.38.1 sets the trial's state and sends no request to stop."""
    place = trial(world, tmp_path)
    backend = SharedBackend(place.backend, DistributedContext()) if is_shared else place.backend
    preempt = PreemptContext(backend)
    backend.report_metrics("validation", 10, {"val_loss": 0.5})
    backend.flush()
    assert not preempt.is_requested
    with world.master.store.writing() as tx:
        tx.get(TrialRow, place.backend._trial.trial_id).state = states.STOPPING_COMPLETED
    backend.report_metrics("training", 15, {"loss": 0.5})
    backend.flush()
    assert not preempt.is_requested
    backend.report_metrics("validation", 20, {"val_loss": 0.5})
    backend.flush()
    assert preempt.is_requested
    backend.close()


def test_place_and_model_of_a_trial_are_reported_side_by_side(world, tmp_path):
    found = trial(world, tmp_path)
    address = f"/api/v1/trials/{found.backend.run.trial_id}/provenance"
    gate = threading.Event()

    def place_of_training():
        gate.wait()
        return {"host": "here"}

    # What is read first arrives last.
    found.backend.report_provenance(place_of_training)
    found.backend.report_provenance(lambda: {"model": {"name": "m"}})
    eventually(lambda: world.client.get(address)["provenance"] == {"model": {"name": "m"}})
    gate.set()
    found.backend.close()
    assert world.client.get(address)["provenance"] == {"host": "here", "model": {"name": "m"}}
