"""Real masters, supervisors and trials, killed at awkward moments: nothing is lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import psutil
import pytest
from database.server import changing
from sqlalchemy import text

from det_keras import search
from det_keras.config import load_experiment_config
from det_keras.master import process
from det_keras.master.resources import Launch, LocalPool, State
from det_keras.master.resources.slots import find_slots
from master.fakes import eventually, file_entry

pytestmark = [pytest.mark.process, pytest.mark.kill]

PRELUDE = Path(__file__).with_name("trial_script.py").read_bytes()
CONFIG = "entrypoint: [python3, train.py]\nsearcher: {name: single, metric: loss}\n"


def submit(real, script: str, config: str = CONFIG, **fields) -> tuple[int, dict]:
    files = [file_entry("train.py", PRELUDE + script.encode())]
    config += real.own_variables
    experiment_id = real.client.create(config, modelDefinition=files, **fields)
    return experiment_id, real.client.trials(experiment_id)[0]


def texts(real, trial) -> list[str]:
    """Return what the trial itself printed."""
    return [line["log"].rstrip("\n") for line in real.client.log(trial["id"]) if line["source"] == "task"]


def wait_for_text(real, trial, text: str) -> None:
    eventually(lambda: text in texts(real, trial))


def kill_master(real) -> None:
    os.kill(real.running.pid, signal.SIGKILL)
    psutil.Process(real.running.pid).wait(60) if psutil.pid_exists(real.running.pid) else None


def directory_of(real, trial, run_id: int = 1) -> Path:
    return real.directory_of(f"{trial['taskId']}.{run_id}")


def supervisor_of(real, trial, run_id: int = 1) -> psutil.Process:
    lock = directory_of(real, trial, run_id) / "supervisor.lock"
    eventually(lambda: lock.exists() and lock.read_text())
    return psutil.Process(int(lock.read_text()))


def processes_of(allocation_id: str) -> list[psutil.Process]:
    found = []
    for one in psutil.process_iter():
        try:
            if (
                one.environ().get("DET_ALLOCATION_ID") == allocation_id
                and one.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(one)
        except psutil.Error:
            pass
    return found


def test_trial_prints_on_while_the_master_is_dead_and_no_line_is_lost_or_doubled(real):
    script = """
go = os.path.join(ROOT, "go")
for i in range(3000):
    print("line", i)
    if i == 1000:
        print("waiting")
        while not os.path.exists(go):
            time.sleep(0.01)
report("validation", 1, loss=0.5)
"""
    experiment_id, trial = submit(real, script)
    wait_for_text(real, trial, "waiting")
    kill_master(real)
    (real.home.root / "go").touch()
    log = directory_of(real, trial) / "log.jsonl"
    eventually(lambda: "line 2999" in log.read_text())
    real.start()
    real.client.wait_for_state(experiment_id, "COMPLETED")
    expected = [f"line {i}" for i in range(3000)]
    expected.insert(1001, "waiting")
    assert texts(real, trial) == expected
    assert real.client.experiment(experiment_id)["bestTrialSearcherMetric"] == 0.5
    assert real.client.trial(trial["id"])["restarts"] == 0


def test_trial_that_ends_while_the_master_is_dead_is_judged_by_the_next(real):
    script = """
print("ready")
go = os.path.join(ROOT, "go")
while not os.path.exists(go):
    time.sleep(0.01)
sys.exit(3)
"""
    experiment_id, trial = submit(real, script, CONFIG + "max_restarts: 0\n")
    wait_for_text(real, trial, "ready")
    kill_master(real)
    (real.home.root / "go").touch()
    eventually(lambda: (directory_of(real, trial) / "exit.json").exists())
    real.start()
    real.client.wait_for_state(experiment_id, "ERROR")
    assert real.client.get(f"/api/v1/allocations/{trial['taskId']}.1")["allocation"]["statusCode"] == 3


def test_restarted_master_keeps_its_address_while_trials_know_it(real):
    _, trial = submit(real, "print('ready', flush=True)\nshould_stop(60)\n")
    wait_for_text(real, trial, "ready")
    before = real.running.url
    kill_master(real)
    real.start()
    assert real.running.url == before


def test_trial_that_knows_another_address_is_run_again_without_counting_a_restart(real):
    script = """
if RUN_ID == 2:
    print("second run")
    sys.exit(0)
print("ready")
time.sleep(60)
"""
    experiment_id, trial = submit(real, script)
    wait_for_text(real, trial, "ready")
    process.stop(real.home)
    taken = int(real.running.url.rpartition(":")[2])
    real.start(port=taken + 1 if taken < 65535 else taken - 1)
    real.client.wait_for_state(experiment_id, "COMPLETED")
    assert texts(real, trial)[-1] == "second run"
    assert real.client.trial(trial["id"])["restarts"] == 0


def test_killed_supervisor_takes_its_trial_along_and_costs_no_restart(shared):
    script = """
if RUN_ID == 2:
    print("second run")
    sys.exit(0)
print("ready")
time.sleep(60)
"""
    experiment_id, trial = submit(shared, script, CONFIG + "max_restarts: 0\n")
    wait_for_text(shared, trial, "ready")
    assert len(processes_of(f"{trial['taskId']}.1")) == 1
    supervisor_of(shared, trial).kill()
    shared.client.wait_for_state(experiment_id, "COMPLETED")
    assert processes_of(f"{trial['taskId']}.1") == []
    assert texts(shared, trial)[-1] == "second run"
    assert shared.client.trial(trial["id"])["restarts"] == 0


def test_worker_in_a_session_of_its_own_is_dead_before_the_trial_runs_again(shared):
    script = """
import subprocess
if RUN_ID == 1:
    code = "import time; print('worker', flush=True); time.sleep(60)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
    time.sleep(60)
print("second run")
"""
    experiment_id, trial = submit(shared, script)
    wait_for_text(shared, trial, "worker")
    assert len(processes_of(f"{trial['taskId']}.1")) == 2
    supervisor_of(shared, trial).kill()
    shared.client.wait_for_state(experiment_id, "COMPLETED")
    assert processes_of(f"{trial['taskId']}.1") == []


def test_killed_supervisor_of_a_dead_master_takes_its_trial_along_and_is_noticed_by_the_next(real):
    script = """
if RUN_ID == 2:
    sys.exit(0)
print("ready")
time.sleep(60)
"""
    # The shell stands between: what dies with the supervisor is not its child alone.
    experiment_id, trial = submit(
        real, script, CONFIG.replace("[python3, train.py]", "python3 train.py; true")
    )
    wait_for_text(real, trial, "ready")
    kill_master(real)
    supervisor_of(real, trial).kill()
    eventually(lambda: not processes_of(f"{trial['taskId']}.1"))
    real.start()
    real.client.wait_for_state(experiment_id, "COMPLETED")
    assert real.client.trial(trial["id"])["restarts"] == 0


def test_killed_trial_restarts_from_its_latest_checkpoint(shared):
    script = """
import signal
uuids = ["11111111-2222-3333-4444-%012d" % n for n in range(9)]
print("start", RUN_ID, os.environ.get("DET_LATEST_CHECKPOINT"), os.environ["DET_STEPS_COMPLETED"])
if RUN_ID == 1:
    checkpoint(uuids[1], 10)
    checkpoint(uuids[2], 20)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    experiment_id, trial = submit(shared, script)
    shared.client.wait_for_state(experiment_id, "COMPLETED")
    assert texts(shared, trial) == [
        "start 1 None 0",
        "start 2 11111111-2222-3333-4444-000000000002 20",
    ]
    assert shared.client.trial(trial["id"])["restarts"] == 1
    eventually(lambda: not (shared.home.checkpoints / "11111111-2222-3333-4444-000000000001").exists())
    assert (shared.home.checkpoints / "11111111-2222-3333-4444-000000000002").exists()


def test_always_failing_script_runs_once_more_than_max_restarts(shared):
    experiment_id, trial = submit(shared, "print('run', RUN_ID)\nsys.exit(1)\n", CONFIG + "max_restarts: 2\n")
    shared.client.wait_for_state(experiment_id, "ERROR")
    assert texts(shared, trial) == ["run 1", "run 2", "run 3"]
    assert shared.client.trial(trial["id"])["restarts"] == 2


def test_pause_and_activate_continue_the_same_trial(shared):
    script = """
print("run", RUN_ID)
if RUN_ID == 1:
    assert should_stop(60)
    checkpoint("11111111-2222-3333-4444-555555555555", 7)
    acknowledge()
    sys.exit(0)
print("from", os.environ["DET_STEPS_COMPLETED"])
"""
    experiment_id, trial = submit(shared, script)
    wait_for_text(shared, trial, "run 1")
    asked_at = time.monotonic()
    shared.client.move(experiment_id, "pause")
    eventually(lambda: not processes_of(f"{trial['taskId']}.1"))
    assert time.monotonic() - asked_at < 5, "A long poll answers as soon as the trial is asked to stop."
    assert shared.client.experiment(experiment_id)["state"] == "STATE_PAUSED"
    shared.client.move(experiment_id, "activate")
    shared.client.wait_for_state(experiment_id, "COMPLETED")
    assert texts(shared, trial) == ["run 1", "run 2", "from 7"]
    assert shared.client.trial(trial["id"])["restarts"] == 0


def test_paused_experiment_stays_paused_over_a_restart_of_the_master(real):
    experiment_id, _ = submit(real, "print('never')\n", activate=False)
    kill_master(real)
    real.start()
    assert real.client.experiment(experiment_id)["state"] == "STATE_PAUSED"
    real.client.move(experiment_id, "activate")
    real.client.wait_for_state(experiment_id, "COMPLETED")


def test_search_goes_on_from_the_database_after_the_master_was_killed(real):
    config = (
        "entrypoint: python3 train.py\nreproducibility: {experiment_seed: 42}\n"
        "hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}\n"
        "searcher: {name: random, metric: loss, max_trials: 4, max_concurrent_trials: 1}\n"
    )
    script = """
go = os.path.join(ROOT, "go")
if TRIAL_ID == 2:
    print("waiting")
    while not os.path.exists(go):
        time.sleep(0.01)
report("validation", 1, loss=TRIAL_ID)
"""
    files = [file_entry("train.py", PRELUDE + script.encode())]
    experiment_id = real.client.create(config + real.own_variables, modelDefinition=files)
    second = eventually(
        lambda: (found := real.client.trials(experiment_id)) and len(found) == 2 and found[1], 20
    )
    wait_for_text(real, second, "waiting")
    kill_master(real)
    (real.home.root / "go").touch()
    real.start()
    real.client.wait_for_state(experiment_id, "COMPLETED", 30)
    trials = real.client.trials(experiment_id)
    assert [trial["state"] for trial in trials] == ["STATE_COMPLETED"] * 4
    assert [trial["hparams"] for trial in trials] == undisturbed(config)


def undisturbed(config: str) -> list[dict]:
    """Return the hyperparameters of a search that nobody interrupts."""
    searcher = search.from_config(load_experiment_config(config).config)
    found, waiting = [], searcher.initial()
    while waiting:
        action = waiting.pop(0)
        if isinstance(action, search.Create):
            found.append(action.hparams)
            waiting += searcher.trial_created(action.request_id) + searcher.trial_exited(action.request_id)
    return found


def test_kill_ends_a_trial_that_ignores_everything(shared):
    script = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready")
while True:
    time.sleep(1)
"""
    experiment_id, trial = submit(shared, script)
    wait_for_text(shared, trial, "ready")
    shared.client.move(experiment_id, "kill")
    shared.client.wait_for_state(experiment_id, "CANCELED")
    assert processes_of(f"{trial['taskId']}.1") == []
    assert shared.client.trial(trial["id"])["state"] == "STATE_CANCELED"


def test_trial_that_does_not_stop_in_time_is_killed(shared):
    script = "print('ready')\ntime.sleep(60)\n"
    experiment_id, trial = submit(shared, script, CONFIG + "preemption_timeout: 1\n")
    wait_for_text(shared, trial, "ready")
    shared.client.move(experiment_id, "cancel")
    shared.client.wait_for_state(experiment_id, "CANCELED")


def test_master_killed_between_recording_and_spawning_launches_again(real):
    """A row without a supervisor is what a master leaves that dies between the two."""
    experiment_id, trial = submit(real, "print('run', RUN_ID)\n", activate=False)
    kill_master(real)
    values = {
        "id": f"{trial['taskId']}.1",
        "task_id": trial["taskId"],
        "shares": json.dumps([{"node": "here", "slot_ids": [0], "address": "127.0.0.1"}]),
        "url": real.running.url,
    }
    with changing(real.home) as connection:
        connection.execute(text("UPDATE experiments SET state = 'ACTIVE'"))
        connection.execute(text("UPDATE trials SET state = 'ACTIVE', run_id = 1"))
        connection.execute(
            text(
                "INSERT INTO allocations (id, task_id, run_id, state, resources_id, shares, master_url, is_preempted,"
                " is_acknowledged, is_killed, log_offsets, exit_reason, start_time)"
                " VALUES (:id, :task_id, 1, 'STARTING', 'r', :shares, :url, false, false, false, '{}', '',"
                " '2026-01-01')"
            ),
            values,
        )
    real.start()
    real.client.wait_for_state(experiment_id, "COMPLETED")
    assert texts(real, trial) == ["run 2"]
    assert real.client.trial(trial["id"])["restarts"] == 0


def test_supervisor_that_starts_after_it_was_given_up_runs_nothing(shared, tmp_path):
    """A master that dies during a launch leaves a supervisor that may be slow."""
    pool, later = (LocalPool(shared.home, find_slots(1), dict(os.environ)) for _ in range(2))
    ran = tmp_path / "ran"

    def launch(name: str) -> None:
        pool.launch(Launch(name, ["touch", str(ran)], {"DET_ALLOCATION_ID": name}))

    launch("1.quick.1")
    eventually(ran.exists)
    ran.unlink()
    server = psutil.Process(pool._supervisors.pid)
    server.suspend()
    eventually(lambda: server.status() == psutil.STATUS_STOPPED)
    slow = threading.Thread(target=launch, args=("1.slow.1",))
    slow.start()
    directory = shared.home.logs / "1.slow.1"
    eventually((directory / "supervisor.log").exists)
    assert later.look("1.slow.1").state is State.ENDED
    server.resume()
    slow.join(10)
    eventually(lambda: not server.children())
    assert not ran.exists()
    assert not pool.working_directory("1.slow.1").exists()
    assert not (directory / "exit.json").exists()
    pool.stop()


def test_clean_stop_leaves_trials_running_and_takes_them_up_again(real):
    experiment_id, trial = submit(real, "print('ready')\nshould_stop(60)\nprint('asked')\nacknowledge()\n")
    wait_for_text(real, trial, "ready")
    stopped_at = time.monotonic()
    process.stop(real.home)
    assert time.monotonic() - stopped_at < 5, "Long polls do not hold a stopping master up."
    assert not real.home.master_file.exists()
    assert len(processes_of(f"{trial['taskId']}.1")) == 1
    real.start()
    real.client.move(experiment_id, "cancel")
    real.client.wait_for_state(experiment_id, "CANCELED")


def test_stop_kills_tasks_when_asked(real):
    experiment_id, trial = submit(real, "print('run', RUN_ID)\nif RUN_ID == 1: time.sleep(60)\n")
    wait_for_text(real, trial, "run 1")
    process.stop(real.home, kill_tasks=True)
    eventually(lambda: not processes_of(f"{trial['taskId']}.1"), 5.0)
    real.start()
    real.client.wait_for_state(experiment_id, "COMPLETED")
    assert texts(real, trial) == ["run 1", "run 2"]


def test_followed_log_ends_when_the_trial_does(shared):
    _, trial = submit(shared, "for i in range(5):\n    print('line', i)\n    time.sleep(0.05)\n")
    headers = {"Authorization": f"Bearer {shared.client.token}"}
    path = f"/api/v1/trials/{trial['id']}/logs"
    with shared.http.stream("GET", path, headers=headers, params={"follow": "true"}) as response:
        assert response.headers["transfer-encoding"] == "chunked"
        lines = list(response.iter_lines())
    assert "" not in lines
    assert [json.loads(line)["result"]["log"] for line in lines] == [f"line {i}\n" for i in range(5)]


def test_tokens_of_a_task_are_not_left_on_disk(shared, tmp_path):
    told = tmp_path / "token"
    script = (
        f"open({str(told)!r}, 'w').write(os.environ['DET_SESSION_TOKEN'])\nprint('told')\nshould_stop(60)\n"
    )
    _, trial = submit(shared, script)
    wait_for_text(shared, trial, "told")
    token = told.read_bytes()
    assert len(token) > 30
    holders = [path for path in shared.home.root.rglob("*") if path.is_file() and token in path.read_bytes()]
    assert holders == []


def test_hundred_long_polls_keep_nobody_waiting(shared):
    """They wait on the event loop: a thread for each would leave none for anything else."""
    # The trial outlives the answers: a poll that came only after its end would be told nothing.
    _, trial = submit(shared, "time.sleep(120)\n", CONFIG + "preemption_timeout: 120\n")
    eventually(lambda: processes_of(f"{trial['taskId']}.1"))
    path = f"/api/v1/allocations/{trial['taskId']}.1/signals/preemption?timeout_seconds=30"
    headers = {"Authorization": f"Bearer {shared.client.token}"}
    answers: list[dict] = []
    limits = httpx.Limits(max_connections=200)

    async def poll_and_look() -> float:
        async with httpx.AsyncClient(
            base_url=shared.running.url, timeout=60, limits=limits, trust_env=False
        ) as http:
            polls = [asyncio.create_task(http.get(path, headers=headers)) for _ in range(100)]
            await asyncio.sleep(0.5)
            began = time.monotonic()
            for _ in range(5):
                assert (await http.get("/api/v1/me", headers=headers)).status_code == 200
            took = time.monotonic() - began
            await http.post(f"/api/v1/experiments/{trial['experimentId']}/cancel", headers=headers)
            answers.extend([response.json() for response in await asyncio.gather(*polls)])
            return took

    # Threads that the polls kept would come free after 30 s.
    assert asyncio.run(poll_and_look()) < 15.0
    assert answers == [{"preempt": True}] * 100
