"""What trials of these tests begin with: calls to the master with nothing but the standard library."""

import http.client
import json
import os
import pathlib
import sys  # noqa: F401 - the scripts that follow use it
import time
import urllib.error
import urllib.request

TRIAL_ID = int(os.environ.get("DET_TRIAL_ID", 0))
RUN_ID = int(os.environ.get("DET_TRIAL_RUN_ID", 0))
TASK_ID = os.environ["DET_TASK_ID"]
ALLOCATION_ID = os.environ["DET_ALLOCATION_ID"]
# Where the test itself looks; on a node of Ray the master's variable names the node's own folder.
ROOT = os.environ.get("TEST_ROOT") or os.environ["DET_KERAS_HOME"]


def call(method, path, body=None):
    """Call the master, as long as it takes."""
    while True:
        request = urllib.request.Request(
            os.environ["DET_MASTER"] + path,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Grpc-Metadata-x-allocation-token": "Bearer " + os.environ["DET_SESSION_TOKEN"]},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code != 503:
                raise
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)


def report(group, steps, **metrics):
    values = {
        "trialId": TRIAL_ID,
        "trialRunId": RUN_ID,
        "stepsCompleted": steps,
        "metrics": {"avgMetrics": metrics},
    }
    call("POST", f"/api/v1/trials/{TRIAL_ID}/metrics", {"group": group, "metrics": values})


def should_stop(timeout=0):
    return call("GET", f"/api/v1/allocations/{ALLOCATION_ID}/signals/preemption?timeout_seconds={timeout}")[
        "preempt"
    ]


def acknowledge():
    call("POST", f"/api/v1/allocations/{ALLOCATION_ID}/signals/ack_preemption")


def checkpoint(uuid, steps):
    root = json.loads(os.environ["DET_EXPERIMENT_CONFIG"])["checkpoint_storage"]["container_path"]
    path = pathlib.Path(root, uuid)
    path.mkdir(parents=True)
    (path / "weights").write_text("x" * 10)
    body = {
        "uuid": uuid,
        "taskId": TASK_ID,
        "allocationId": ALLOCATION_ID,
        "resources": {"weights": "10"},
        "metadata": {"steps_completed": steps},
    }
    call("POST", "/api/v1/checkpoints", body)
