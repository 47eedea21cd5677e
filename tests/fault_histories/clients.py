"""The clients of a history: each sends its requests one after another, as the command line and scripts do."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from master.fakes import file_entry

from det_keras.errors import MasterError, MasterUnavailableError
from det_keras.protocol.values import timestamp
from fault_histories.journal import ACKNOWLEDGED, REFUSED, Entry, Journal
from fault_histories.plan import EPOCHS, METHODS, Action, Experiment, Plan
from fault_histories.task_scripts import job_entrypoint, trial_files
from fault_histories.world import World

__all__ = ["HPARAMS", "LINES_PER_CALL", "Client", "config_of_plan", "settle"]

#: The lines of one call of an unmanaged trial's log.
LINES_PER_CALL = 3
HPARAMS = {"x": 0.5}
_MOST_TRIES = 40
_TERMINAL = frozenset({"STATE_COMPLETED", "STATE_CANCELED", "STATE_ERROR"})
_SPACES = {
    "grid": "{x: {type: categorical, vals: [0.1, 0.4, 0.7]}}",
    "single": "{x: 0.3}",
    "wide": "{x: {type: double, minval: 0, maxval: 1, count: 1200}}",
}
_UNMANAGED = "searcher: {name: single, metric: loss}\n"


def config_of_plan(experiment: Experiment, notes: str) -> str:
    """Return the config of an experiment as YAML."""
    space = _SPACES.get(experiment.method, "{x: {type: double, minval: 0, maxval: 1}}")
    variables = {
        "HISTORY_NOTES": notes,
        "HISTORY_EPOCHS": EPOCHS,
        "HISTORY_PERIOD": experiment.period,
        "HISTORY_PACE": experiment.pace_s,
        "HISTORY_PROMOTES": int(experiment.method == "asha promoting"),
    }
    lines = ", ".join(f"'{name}={value}'" for name, value in variables.items())
    return (
        f"description: {experiment.name}\nentrypoint: [python3, train.py]\nmax_restarts: 100\n"
        f"reproducibility: {{experiment_seed: {experiment.seed}}}\nhyperparameters: {space}\n"
        f"searcher: {METHODS[experiment.method]}\nenvironment: {{environment_variables: [{lines}]}}\n"
    )


class Client(threading.Thread):
    """Sends the requests of one client.

    Args:
        world: the master to send them to.
        plan: the history.
        actions: what it does.
        journal: where it notes the outcome.
        give_up: whether the history is over its time.
    """

    def __init__(
        self,
        world: World,
        plan: Plan,
        actions: tuple[Action, ...],
        journal: Journal,
        give_up: Callable[[], bool],
    ) -> None:
        super().__init__(daemon=True)
        self._world = world
        self._experiments = {experiment.name: experiment for experiment in plan.experiments}
        self._actions = actions
        self._journal = journal
        self._give_up = give_up
        self._session = world.session()
        self._api = self._session.api
        #: Numbers of experiments, ids of jobs, numbers and runs of unmanaged trials, by name.
        self._ids: dict[str, Any] = {}
        self._logged_at = datetime.now(timezone.utc)

    def run(self) -> None:
        """Do everything; what fails is a finding."""
        try:
            for action in self._actions:
                if self._give_up():
                    return
                self._do(action)
        except Exception as error:
            if not self._give_up():
                self._world.findings.append(f"A client failed: {type(error).__name__}: {error}")
        finally:
            self._session.close()

    def _do(self, action: Action) -> None:
        verb, name = action.verb, action.target
        if verb == "wait":
            self._world.proxy.wait_for_requests(int(action.value), _expiring(0.5))
        elif verb == "create":
            experiment = self._experiments[name]
            self._create(name, lambda: self._create_experiment(experiment), self._find_experiment)
        elif verb == "job":
            pace_s = int(action.value) / 200
            self._create(name, lambda: self._create_job(name, pace_s), self._find_job)
        elif verb == "kill trial":
            self._kill_trial(name)
        elif verb == "archive":
            self._archive(name)
        elif verb in ("log in", "log out", "use"):
            self._visit(action)
        else:
            self._send(action, self._call_of(action))

    def _call_of(self, action: Action) -> Callable[[], Any]:
        api, name, value = self._api.experiments, action.target, action.value
        calls: Mapping[str, Callable[[], Any]] = {
            "label": lambda: api.add_label(self._ids[name], str(value)),
            "unlabel": lambda: api.remove_label(self._ids[name], str(value)),
            "notes": lambda: api.change(self._ids[name], notes=value),
            "open": lambda: self._open(name),
            "begin": lambda: self._begin(name),
            "report": lambda: self._report(name, int(value)),
            "log": lambda: self._log(name, int(value)),
            "heartbeat": lambda: self._api.trials.report_state(self._ids[name][0]) and None,
            "rename": lambda: self._session.patch("/api/v1/users/2", {"displayName": value}) and None,
            "finish": lambda: self._api.trials.report_state(self._ids[name][0], "COMPLETED") and None,
        }
        return calls.get(action.verb) or (lambda: api.move(self._ids[name], action.verb))

    def _send(self, action: Action, call: Callable[[], Any], *, tries: int = _MOST_TRIES) -> Entry:
        """Send a request until it is answered; that a disk is full is not an answer."""
        entry = self._journal.begin(action.verb, action.target, action.value)
        for _ in range(tries):
            try:
                entry.answer = call()
                entry.outcome = ACKNOWLEDGED
            except MasterUnavailableError as error:
                entry.answer = str(error)
            except MasterError as error:
                entry.answer = f"{error.status} {error}"
                if error.status >= 500:
                    time.sleep(0.1)
                    continue
                entry.outcome = REFUSED
            break
        return entry

    def _create(self, name: str, create: Callable[[], Any], find: Callable[[str], Any | None]) -> None:
        """Create something of which there may be only one; after an unknown outcome, look for it first."""
        for _ in range(_MOST_TRIES):
            entry = self._send(Action("create", name), create, tries=1)
            found = entry.answer if entry.outcome == ACKNOWLEDGED else self._search(name, find)
            if found is not None:
                self._ids[name] = found
                return
            if entry.outcome == REFUSED or self._give_up():
                raise RuntimeError(f"{name} cannot be created: {entry.answer}")

    def _search(self, name: str, find: Callable[[str], Any | None]) -> Any | None:
        for _ in range(_MOST_TRIES):
            try:
                return find(name)
            except MasterError as error:
                if error.status < 500:
                    raise
                time.sleep(0.1)
        return None

    def _create_experiment(self, experiment: Experiment) -> int:
        files = [file_entry(path, content) for path, content in trial_files(experiment.script).items()]
        config = config_of_plan(experiment, str(self._world.notes))
        answer = self._api.experiments.create(config, files, activate=experiment.is_active)
        return int(answer["experiment"]["id"])

    def _find_experiment(self, name: str) -> int | None:
        found = [shape["id"] for shape in self._api.experiments.all() if shape["description"] == name]
        return found[0] if found else None

    def _create_job(self, name: str, pace_s: float) -> str:
        config = {"description": name, "entrypoint": job_entrypoint(pace_s)}
        return str(self._api.jobs.create(config, [])["command"]["id"])

    def _find_job(self, name: str) -> str | None:
        found = [shape["id"] for shape in self._api.jobs.all() if shape["description"] == name]
        return found[0] if found else None

    def _kill_trial(self, name: str) -> None:
        trials = self._api.experiments.trials(self._ids[name])
        if trials:
            trial_id = trials[-1]["id"]
            self._send(Action("kill trial", name, trial_id), lambda: self._api.trials.kill(trial_id))

    def _archive(self, name: str) -> None:
        while self._api.experiments.get(self._ids[name])["state"] not in _TERMINAL:
            if self._give_up():
                return
            time.sleep(0.1)
        self._send(Action("archive", name), lambda: self._api.experiments.move(self._ids[name], "archive"))

    def _visit(self, action: Action) -> None:
        """Log in, log out, or look whether a login works; the answer is the hash of its token."""
        name = action.target
        if action.verb == "log in":
            password = self._world.home.password_file.read_text(encoding="utf-8")
            entry = self._send(action, lambda: self._api.accounts.log_in("determined", password))
            if entry.outcome == ACKNOWLEDGED:
                self._ids[name] = entry.answer
                entry.answer = hashlib.sha256(entry.answer.encode()).hexdigest()
        elif name in self._ids:
            with self._world.session(token=self._ids[name]) as session:
                accounts = session.api.accounts
                call = accounts.log_out if action.verb == "log out" else accounts.me
                self._send(action, lambda: call() and None)

    def _open(self, name: str) -> int:
        """Create an unmanaged experiment with a trial, or find them."""
        config = f"description: {name}\n{_UNMANAGED}"
        experiment = self._api.experiments.create_unmanaged(config, name)["experiment"]
        trial = self._api.trials.create_unmanaged(experiment["id"], HPARAMS, name)
        self._ids[name] = (int(trial["id"]), 0)
        return int(trial["id"])

    def _begin(self, name: str) -> int:
        trial_id, _ = self._ids[name]
        run_id = int(self._api.trials.start(trial_id)["trialRunId"])
        self._ids[name] = (trial_id, run_id)
        return run_id

    def _report(self, name: str, step: int) -> None:
        trial_id, run_id = self._ids[name]
        group = "validation" if step % 3 == 0 else "training"
        body = self._api.trials.metrics_body(trial_id, run_id, group, step, {"loss": 1 / step})
        self._api.trials.report_metrics(trial_id, body)

    def _log(self, name: str, step: int) -> None:
        trial_id, _ = self._ids[name]
        task_id = self._api.trials.get(trial_id)["taskId"]
        lines = []
        for number in range(LINES_PER_CALL):
            self._logged_at += timedelta(microseconds=1)
            lines.append(
                {
                    "task_id": task_id,
                    "timestamp": timestamp(self._logged_at),
                    "log": f"step {step} line {number}\n",
                    "level": "LOG_LEVEL_INFO",
                    "stdtype": "stdout",
                    "source": "task",
                }
            )
        self._api.tasks.report_logs(lines)


def settle(world: World, give_up: Callable[[], bool]) -> list[str]:
    """Resume what is paused and wait until everything has ended; return what has not."""
    with world.session(by_proxy=False) as session:
        api = session.api
        while True:
            experiments = api.experiments.all(limit=-1)
            open_ones = [shape for shape in experiments if shape["state"] not in _TERMINAL]
            for shape in open_ones:
                if shape["state"] == "STATE_PAUSED":
                    api.experiments.move(shape["id"], "activate")
            jobs = [job["id"] for job in api.jobs.all() if job["state"] != "STATE_TERMINATED"]
            if not open_ones and not jobs:
                return []
            if give_up():
                names = [f"experiment {shape['id']} is {shape['state']}" for shape in open_ones]
                return names + [f"job {job_id} has not ended" for job_id in jobs]
            time.sleep(0.05)


def _expiring(seconds: float) -> Callable[[], bool]:
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() > deadline
