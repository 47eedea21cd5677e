"""The check that trains on the cluster: a trial with a checkpoint, a pause and a resume."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from det_keras.cli.checking.finding import Finding, Outcome
from det_keras.client import Session
from det_keras.config import apply_overrides, dump_yaml, load_experiment_config
from det_keras.errors import DetError, MasterError, MasterUnavailableError
from det_keras.protocol.states import COMPLETED, bare, is_over, named

T = TypeVar("T")

_EPOCHS = 20
# One batch an epoch.
_SCRIPT = f'''
import time

import keras
import numpy as np
import tensorflow as tf

import det_keras as det


class Slow(keras.callbacks.Callback):
    """Leaves time for a pause."""

    def on_epoch_end(self, epoch, logs=None):
        time.sleep(0.4)


context = det.keras.init()
print(f"TensorFlow {{tf.__version__}}, Keras {{keras.__version__}}, det_keras {{det.__version__}}")
x = np.random.RandomState(0).rand(64, 4).astype("float32")
x, y = context.wrap_data(x, x.sum(axis=1))
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
optimizer = context.wrap_optimizer(keras.optimizers.SGD(0.01))
model.compile(optimizer=optimizer, loss="mse")
context.fit(
    model, x, y, batch_size=32, epochs={_EPOCHS}, validation_split=0.5, callbacks=[Slow()], verbose=0
)
'''
_CONFIG = {
    "name": "det cluster check",
    "entrypoint": "python3 train.py",
    "hyperparameters": {},
    "searcher": {"name": "single", "metric": "val_loss"},
    "max_restarts": 0,
}
_PERIOD_S = 0.5
_LOG_LINES = 15
# What the log of a failed trial says -> what to do.
_FIXES = {
    r"No module named '?det_keras": "The image has no det_keras. Build one as docs/determined.md says, and name it "
    "with `--config environment.image=IMAGE`.",
    r"No module named '?(tensorflow|keras)\b": "The image has no TensorFlow or Keras. Build one as docs/determined.md "
    "says, and name it with `--config environment.image=IMAGE`.",
    r"python3: not found|exec: \"?python3": "The image has no Python. Build one as docs/determined.md says.",
    r"pull access denied|manifest unknown|ErrImagePull": "The image cannot be pulled: check its name and "
    "`environment.registry_auth`.",
    r"Permission denied|Read-only file system": "The user of the containers may not write to the storage: make its "
    "directory writable for that user.",
    r"is recorded by the master and missing in": "The storage of one container is not that of the next: name one that "
    "all agents share in `checkpoint_storage`.",
}
_ERROR_LINE = re.compile(r"\b\w+Error\b|not found|denied", re.IGNORECASE)
# The last lines of a trial arrive after its end.
_LOG_LATE_S = 10.0


class _FailedTrainingError(Exception):
    """The trial did not do what was waited for."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


def find_training(session: Session, overrides: Sequence[str], limit_s: float) -> Iterator[Finding]:
    """Train on the cluster and yield a result for each step; the first failure is the last step.

    Args:
        session: with the master.
        overrides: changes of the experiment's config, such as `environment.image=IMAGE`.
        limit_s: how long one step may take, in seconds.
    """
    number = _create(session, overrides)
    trial = _Trial(session, number, limit_s)
    yield Finding("submit", Outcome.OK, f"experiment {number}")
    steps: list[tuple[str, Callable[[], str]]] = [
        ("train", trial.has_trained),
        ("pause", trial.is_paused),
        ("resume", trial.has_ended),
        ("log", trial.has_log),
    ]
    try:
        for name, step in steps:
            try:
                finding = Finding(name, Outcome.OK, step())
            except _FailedTrainingError as error:
                finding = Finding(name, Outcome.FAILED, str(error), error.fix)
            except (DetError, MasterError, MasterUnavailableError) as error:
                finding = Finding(name, Outcome.FAILED, str(error), f"See `det experiment logs {number}`.")
            yield finding
            if finding.outcome is Outcome.FAILED:
                return
    finally:
        # Also after Ctrl-C: nothing may stay behind on a cluster of others.
        with contextlib.suppress(DetError, MasterError, MasterUnavailableError):
            trial.kill()


def _create(session: Session, overrides: Sequence[str]) -> int:
    config = apply_overrides(dict(_CONFIG), overrides)
    portable = load_experiment_config(config).portable
    content = base64.b64encode(_SCRIPT.encode()).decode()
    script = {
        "path": "train.py",
        "type": 48,
        "content": content,
        "mtime": "0",
        "mode": 0o100644,
        "uid": 0,
        "gid": 0,
    }
    answer = session.api.experiments.create(dump_yaml(portable), [script], activate=True)
    return int(answer["experiment"]["id"])


class _Trial:
    """The trial of the check, and what is expected of it, step by step."""

    def __init__(self, session: Session, experiment_id: int, limit_s: float) -> None:
        self._session = session
        self._experiment_id = experiment_id
        self._limit_s = limit_s
        self._paused_at = 0

    def has_trained(self) -> str:
        """Wait for the first validations."""
        started = time.monotonic()
        self._wait("no validation was reported", lambda: self._trial().get("totalBatchesProcessed", 0) >= 2)
        return f"the first epochs were reported after {time.monotonic() - started:.0f} s"

    def is_paused(self) -> str:
        """Pause, and wait for the checkpoint."""
        self._session.api.experiments.move(self._experiment_id, "pause")
        self._wait("the trial did not end", lambda: not self._is_running())
        checkpoint = self._wait("no checkpoint was reported", self._checkpoint)
        assert checkpoint is not None
        self._paused_at = checkpoint["metadata"]["steps_completed"]
        return f"checkpoint {checkpoint['uuid']} at batch {self._paused_at}"

    def has_ended(self) -> str:
        """Resume, and wait for the end."""
        self._session.api.experiments.move(self._experiment_id, "activate")
        self._wait("the experiment did not end", self._is_over, may_be_over=True)
        state = self._session.api.experiments.get(self._experiment_id)["state"]
        if state != named(COMPLETED):
            raise self._failure(f"the experiment is in state {bare(state)}")
        reported = [
            report["totalBatches"]
            for workload in self._session.api.trials.workloads(self._trial_id())[0]
            if (report := workload.get("validation"))
        ]
        if reported != list(range(1, _EPOCHS + 1)):
            raise _FailedTrainingError(
                f"it did not continue at batch {self._paused_at}: it reported batches {reported} of {_EPOCHS}",
                f"See `det experiment logs {self._experiment_id}`.",
            )
        return (
            f"continued at batch {self._paused_at} and ended at batch {_EPOCHS}; each epoch was reported once"
        )

    def has_log(self) -> str:
        """Return what the script printed about its versions."""
        log = "".join(str(line["message"]) for line in self._session.api.trial_logs(self._trial_id()).lines())
        versions = re.search(r"TensorFlow \S+ Keras \S+ det_keras \S+", log)
        if versions is None:
            raise _FailedTrainingError(
                "the script's output is not in the log", "The agents must be able to send logs to the master."
            )
        return versions[0]

    def kill(self) -> None:
        """End the experiment, if it runs."""
        if not self._is_over():
            self._session.api.experiments.move(self._experiment_id, "kill")

    def _wait(self, failure: str, condition: Callable[[], T], *, may_be_over: bool = False) -> T:
        deadline = time.monotonic() + self._limit_s
        while not (found := condition()):
            if not may_be_over and self._is_over():
                raise self._failure("the trial ended before that")
            if time.monotonic() > deadline:
                raise self._failure(f"{failure} within {self._limit_s:.0f} s")
            time.sleep(_PERIOD_S)
        return found

    def _failure(self, text: str) -> _FailedTrainingError:
        trials = self._session.api.experiments.trials(self._experiment_id)
        if not trials:
            return _FailedTrainingError(
                text, "Does the cluster have a free slot? `--limit` gives it more time."
            )
        lines = self._last_lines()
        fix = next((fix for pattern, fix in _FIXES.items() if re.search(pattern, "".join(lines))), None)
        if fix is None:
            fix = f"See `det experiment logs {self._experiment_id}`."
        cause = next((line for line in reversed(lines) if _ERROR_LINE.search(line)), "".join(lines[-1:]))
        return _FailedTrainingError(f"{text}; its log ends with: {cause.strip() or 'nothing'}", fix)

    def _last_lines(self) -> list[str]:
        deadline = time.monotonic() + _LOG_LATE_S
        log = self._session.api.trial_logs(self._trial_id())
        while not (lines := log.tail(_LOG_LINES)) and time.monotonic() < deadline:
            time.sleep(_PERIOD_S)
        return [str(line["message"]) for line in lines]

    def _is_over(self) -> bool:
        return is_over(self._session.api.experiments.get(self._experiment_id)["state"])

    def _trial(self) -> dict[str, Any]:
        trials = self._session.api.experiments.trials(self._experiment_id)
        return trials[0] if trials else {}

    def _trial_id(self) -> int:
        number = self._trial().get("id")
        if number is None:
            raise DetError(f"Experiment {self._experiment_id} has no trial.")
        return int(number)

    def _is_running(self) -> bool:
        return self._trial().get("taskId") in self._session.api.tasks.running()

    def _checkpoint(self) -> dict[str, Any] | None:
        found = [
            checkpoint
            for checkpoint in self._session.api.experiments.checkpoints(self._experiment_id)
            if checkpoint["state"] == named(COMPLETED)
        ]
        return max(found, key=lambda checkpoint: checkpoint["metadata"]["steps_completed"], default=None)
