"""A pool without processes, and a client that knows the protocol's shapes."""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from det_keras.home import Home
from det_keras.master.lifecycle import Ending, Exit
from det_keras.master.resources import Launch, LogEntry, Node, ResourcePool, Slot, State, TaskState
from det_keras.master.resources.node_variables import node_variables
from det_keras.storage import DirectoryStorage

T = TypeVar("T")

SINGLE = "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\n"


def eventually(ask: Callable[[], T], timeout_s: float = 60.0) -> T:
    """Return the first true answer of `ask`."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = ask()
        if answer:
            return answer
        assert time.monotonic() < deadline, "It did not come true in time."
        time.sleep(0.01)


class Clock:
    """Seconds that pass as the test says."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def file_entry(path: str, content: bytes = b"", **changes: Any) -> dict[str, Any]:
    """Return a file as clients send it."""
    entry = {
        "path": path,
        "type": 48,
        "content": base64.b64encode(content).decode(),
        "mtime": "1767323045",
        "mode": 33188,
        "uid": 0,
        "gid": 0,
    }
    return {**entry, **changes}


class FakePool(ResourcePool):
    """A place where tasks run as long as the test says."""

    def __init__(self, *slots: int) -> None:
        self.machines = [
            Node(f"machine-{number}", "127.0.0.1", [Slot(index, "cpu", "CPU") for index in range(count)])
            for number, count in enumerate(slots or (2,))
        ]
        self.demands: list[int] = []
        self.released: list[str] = []
        self._lock = threading.Lock()
        self.launched: dict[str, Launch] = {}
        self.exits: dict[str, Exit] = {}
        self.logs: dict[str, list[LogEntry]] = {}
        self.kills: list[tuple[str, bool]] = []
        self.removed: list[str] = []
        self.launch_error: OSError | None = None
        self.is_spread = False
        self.is_stubborn = False

    @property
    def nodes(self) -> Sequence[Node]:
        return self.machines

    @property
    def is_one_machine(self) -> bool:
        return not self.is_spread

    @property
    def slotless_node(self) -> str | None:
        return self.machines[0].id

    def demand(self, wanted: Sequence[int]) -> None:
        self.demands = list(wanted)

    def release(self, allocation_id: str) -> None:
        self.released.append(allocation_id)

    def launch(self, launch: Launch) -> None:
        if self.launch_error is not None:
            raise self.launch_error
        with self._lock:
            assert launch.allocation_id not in self.launched, "No allocation is launched twice."
            own = node_variables(
                shares=launch.shares,
                index=0,
                node=self.machines[0].id,
                slots=self.machines[0].slots,
                threads=1,
                directory=Path("/nowhere") / launch.allocation_id,
                home=Path("/nowhere"),
                inherited={},
            )
            self.launched[launch.allocation_id] = replace(launch, variables={**own, **launch.variables})

    def look(self, allocation_id: str) -> TaskState:
        if allocation_id in self.exits:
            return TaskState(State.ENDED, self.exits[allocation_id])
        if allocation_id not in self.launched:
            return TaskState(State.ENDED, Exit(Ending.LOST, detail="never launched"))
        return TaskState(State.RUNNING)

    def read_log(self, allocation_id: str, offset: int) -> tuple[list[LogEntry], int]:
        entries = self.logs.get(allocation_id, [])[offset:]
        return entries, offset + len(entries)

    def kill(self, allocation_id: str, *, force: bool) -> None:
        self.kills.append((allocation_id, force))
        if allocation_id not in self.exits and (force or not self.is_stubborn):
            self.finish(allocation_id, 137)

    def remove(self, allocation_id: str) -> None:
        self.removed.append(allocation_id)
        self.logs.pop(allocation_id, None)

    def finish(self, allocation_id: str, code: int = 0, detail: str = "") -> None:
        """End a task."""
        self.exits[allocation_id] = Exit(Ending.EXITED, code, detail=detail)

    def lose(self, allocation_id: str) -> None:
        """Take a task's supervisor away."""
        self.exits[allocation_id] = Exit(Ending.LOST, detail="it was lost")

    def say(self, allocation_id: str, text: str, **marks: Any) -> None:
        """Print a line."""
        entry = LogEntry(datetime.now(timezone.utc), text, "stdout", **marks)
        self.logs.setdefault(allocation_id, []).append(entry)


class Client:
    """Calls of a user, and a few of his trials.

    Args:
        http: a test client, or an `httpx.Client`.
        token: of the user.
    """

    def __init__(self, http: Any, token: str) -> None:
        self.http = http
        self.token = token

    def call(self, method: str, path: str, body: Any = None, *, status: int = 200, **options: Any) -> Any:
        """Call and return the decoded answer, whose status has to be right."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        content = {} if body is None else {"content": json.dumps(body)}
        response = self.http.request(method, path, headers=headers, **content, **options)
        assert response.status_code == status, response.text
        return response.json()

    def get(self, path: str, **options: Any) -> Any:
        return self.call("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        return self.call("POST", path, body, **options)

    def create(self, config: str = SINGLE, **fields: Any) -> int:
        """Make an experiment and return its number."""
        answer = self.post("/api/v1/experiments", {"config": config, **fields})
        number = answer["experiment"]["id"]
        assert isinstance(number, int)
        return number

    def experiment(self, experiment_id: int) -> Any:
        return self.get(f"/api/v1/experiments/{experiment_id}")["experiment"]

    def trials(self, experiment_id: int) -> Any:
        return self.get(f"/api/v1/experiments/{experiment_id}/trials")["trials"]

    def trial(self, trial_id: int) -> Any:
        return self.get(f"/api/v1/trials/{trial_id}")["trial"]

    def move(self, experiment_id: int, verb: str, **options: Any) -> Any:
        return self.post(f"/api/v1/experiments/{experiment_id}/{verb}", **options)

    def wait_for_state(self, experiment_id: int, state: str, timeout_s: float = 60.0) -> Any:
        """Return the experiment once it is in `state`."""
        return eventually(
            lambda: (found := self.experiment(experiment_id))["state"] == f"STATE_{state}" and found,
            timeout_s,
        )

    def report(
        self, trial_id: int, group: str, steps: int | None, metrics: Any, *, run_id: int = 1, **options: Any
    ) -> Any:
        """Report metrics as a trial does."""
        sent = {"trialId": trial_id, "trialRunId": run_id, "stepsCompleted": steps}
        body = {"group": group, "metrics": {**sent, "metrics": {"avgMetrics": metrics}}}
        return self.post(f"/api/v1/trials/{trial_id}/metrics", body, **options)

    def log(self, trial_id: int, **params: Any) -> list[Any]:
        """Return the lines of a trial's log."""
        headers = {"Authorization": f"Bearer {self.token}"}
        response = self.http.get(f"/api/v1/trials/{trial_id}/logs", headers=headers, params=params)
        assert response.status_code == 200, response.text
        return [json.loads(line)["result"] for line in response.text.splitlines()]


def store_checkpoint(home: Home, client: Client, trial: Any, steps: int, **metadata: Any) -> str:
    """Write a checkpoint of a trial and report it; return its UUID."""
    uuid = str(uuid4())
    with DirectoryStorage(home.checkpoints).store_path(uuid) as path:
        (path / "model.keras").write_bytes(b"model")
    body = {
        "uuid": uuid,
        "taskId": trial["taskId"],
        "state": "STATE_COMPLETED",
        "resources": {"model.keras": "5"},
        "metadata": {"steps_completed": steps, **metadata},
    }
    client.post("/api/v1/checkpoints", body)
    return uuid
