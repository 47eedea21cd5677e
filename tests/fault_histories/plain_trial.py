"""A trial that sends its calls with nothing but the standard library, one after another."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
import uuid
from typing import Any

from notes import Notes
from task_scripts import first_state, metric_of, next_state

from det_keras.protocol.origin import METADATA_NAME, origin_of, with_origin
from det_keras.storage.directory import DirectoryStorage

TRIAL_ID = int(os.environ["DET_TRIAL_ID"])
RUN_ID = int(os.environ["DET_TRIAL_RUN_ID"])
ALLOCATION_ID = os.environ["DET_ALLOCATION_ID"]
EPOCHS = int(os.environ["HISTORY_EPOCHS"])
PERIOD = int(os.environ["HISTORY_PERIOD"])
PACE_S = float(os.environ["HISTORY_PACE"])
AGAIN = (502, 503, 504)


def call(method: str, path: str, body: object = None) -> Any:
    """Call the master, as often as it takes."""
    while True:
        request = urllib.request.Request(
            os.environ["DET_MASTER"] + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Grpc-Metadata-x-allocation-token": "Bearer " + os.environ["DET_SESSION_TOKEN"]},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code not in AGAIN:
                raise
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)


def report(group: str, epoch: int, **metrics: float) -> None:
    """Report metrics."""
    values = {
        "trialId": TRIAL_ID,
        "trialRunId": RUN_ID,
        "stepsCompleted": epoch,
        "metrics": {"avgMetrics": metrics},
    }
    call("POST", f"/api/v1/trials/{TRIAL_ID}/metrics", {"group": group, "metrics": values})


def should_stop() -> bool:
    """Return whether the master wants this process to stop."""
    path = f"/api/v1/allocations/{ALLOCATION_ID}/signals/preemption?timeout_seconds=0"
    return bool(call("GET", path)["preempt"])


def save(storage: DirectoryStorage, notes: Notes, state: str, epoch: int) -> None:
    """Store a checkpoint and report it."""
    name = str(uuid.uuid4())
    metadata = {"steps_completed": epoch}
    with storage.store_path(name) as directory:
        (directory / "state").write_text(state)
        origin = origin_of(os.environ["DET_CLUSTER_ID"], ALLOCATION_ID)
        (directory / METADATA_NAME).write_text(json.dumps(with_origin(metadata, origin)))
    body = {
        "uuid": name,
        "taskId": os.environ["DET_TASK_ID"],
        "allocationId": ALLOCATION_ID,
        "storageId": STORAGE_ID,
        "state": "STATE_COMPLETED",
        "resources": {path: str(size) for path, size in storage.list_files(name).items()},
        "metadata": metadata,
    }
    call("POST", "/api/v1/checkpoints", body)
    notes.add("checkpoint", name)


def main() -> None:
    """Train."""
    notes = Notes()
    storage = DirectoryStorage(SECTION["container_path"])
    state, epoch = first_state(int(os.environ["DET_TRIAL_SEED"]), json.loads(os.environ["DET_HPARAMS"])), 0
    latest = os.environ.get("DET_LATEST_CHECKPOINT")
    if latest:
        epoch = int(os.environ["DET_STEPS_COMPLETED"])
        with storage.restore_path(latest) as directory:
            state = (directory / "state").read_text()
    notes.add("resumed", epoch)
    saved = epoch
    while epoch < EPOCHS:
        time.sleep(PACE_S)
        epoch += 1
        state = next_state(state, epoch)
        notes.print_line()
        report("training", epoch, loss=metric_of(state))
        report("validation", epoch, loss=metric_of(state), epochs=epoch)
        notes.add("reported", epoch)
        stops = should_stop()
        if stops or epoch % PERIOD == 0:
            save(storage, notes, state, epoch)
            saved = epoch
        if stops:
            call("POST", f"/api/v1/allocations/{ALLOCATION_ID}/signals/ack_preemption", {})
            break
    if saved < epoch:
        save(storage, notes, state, epoch)
    notes.print_line()
    notes.add("end")


SECTION = json.loads(os.environ["DET_EXPERIMENT_CONFIG"])["checkpoint_storage"]
STORAGE_ID = call("POST", "/api/v1/runs/start", {"runId": TRIAL_ID, "checkpointStorage": SECTION}).get(
    "storageId"
)
main()
