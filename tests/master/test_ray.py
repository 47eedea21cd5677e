"""The master on Ray: machines and masters that die, secrets, demand, and what stands in the way of a start."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
from amount import AMOUNT

from det_keras.errors import DetError
from det_keras.home import Home
from det_keras.master import process
from det_keras.master.resources import RayPool, Share, State
from det_keras.master.resources import ray as ray_module
from master.conftest import RealMaster
from master.fakes import eventually, file_entry
from master.test_doors import login
from master.test_search_survival import CONFIG, METHODS, PRELUDE, SCRIPT, kill, undisturbed
from master.test_survival import processes_of, submit, texts, wait_for_text

pytestmark = [pytest.mark.process, pytest.mark.kill]

CONFIG_OF_ONE = "entrypoint: [python3, train.py]\nsearcher: {name: single, metric: loss}\nmax_restarts: 0\n"
KILLS, TRIALS = (10, 16) if AMOUNT == "all" else (4, 8)


@pytest.fixture
def on_ray(used_home, machines, monkeypatch):
    """A master on two machines of two slots each."""
    monkeypatch.setenv("DET_KERAS_RAY", machines.address)
    master = RealMaster(used_home)
    yield master
    master.close()


def agents(real) -> dict[str, int]:
    """Return the number of slots of each machine that has any."""
    found = real.client.get("/api/v1/agents")["agents"]
    return {agent["id"]: len(agent["slots"]) for agent in found if agent["slots"]}


def machine_of(real, trial) -> str:
    (summary,) = real.client.get("/api/v1/tasks")["allocationIdToSummary"].values()
    assert summary["taskId"] == trial["taskId"]
    (name,) = summary["resources"][0]["agentDevices"]
    return name


def test_search_ends_as_undisturbed_whichever_machines_and_masters_die(on_ray, machines):
    chance = random.Random(11)
    method = METHODS["adaptive_asha"].replace("max_trials: 30", f"max_trials: {TRIALS}")
    config = CONFIG + method + on_ray.own_variables
    files = [file_entry("train.py", PRELUDE + SCRIPT.encode())]
    experiment_id = on_ray.client.create(config, modelDefinition=files)
    for number in range(KILLS):
        # Nothing can be waited for: any moment may be the one that breaks something.
        time.sleep(chance.uniform(0.0, 1.0))
        if number == KILLS // 2:
            machines.kill(machines.names[0])
            machines.add()
        kill(on_ray)
    on_ray.client.wait_for_state(experiment_id, "COMPLETED", 180)
    trials = on_ray.client.get(f"/api/v1/experiments/{experiment_id}/trials", params={"limit": 1000})[
        "trials"
    ]
    found = Counter(
        (one["hparams"]["x"], one["state"].removeprefix("STATE_"), one["restarts"]) for one in trials
    )
    assert found == undisturbed(config)
    assert not list(on_ray.home.root.glob("doubled-*"))


def test_log_is_whole_when_the_master_is_killed_again_and_again(on_ray):
    experiment_id, trial = submit(
        on_ray, "for i in range(4000):\n    print('line', i)\n    time.sleep(0.001)\n"
    )
    wait_for_text(on_ray, trial, "line 0")
    for _ in range(3):
        time.sleep(0.3)
        kill(on_ray)
    on_ray.client.wait_for_state(experiment_id, "COMPLETED", 60)
    assert texts(on_ray, trial) == [f"line {i}" for i in range(4000)]


def test_trial_of_a_dead_machine_goes_on_elsewhere_and_counts_no_restart(on_ray, machines):
    script = """
print("run", RUN_ID, os.environ["DET_AGENT_ID"])
if RUN_ID == 1:
    time.sleep(120)
report("validation", 1, loss=0.5)
"""
    experiment_id, trial = submit(on_ray, script)
    eventually(lambda: any(text.startswith("run 1") for text in texts(on_ray, trial)))
    first = machine_of(on_ray, trial)
    machines.kill(first)
    on_ray.client.wait_for_state(experiment_id, "COMPLETED", 60)
    lines = [text for text in texts(on_ray, trial) if text.startswith("run")]
    assert lines[0] == f"run 1 {first}"
    assert len(lines) == 2
    assert first not in lines[1]
    assert on_ray.client.trial(trial["id"])["restarts"] == 0
    assert processes_of(f"{trial['taskId']}.1") == []
    eventually(lambda: first not in agents(on_ray))
    added = machines.add()
    eventually(lambda: added in agents(on_ray))


def test_disabled_machine_is_left_and_gets_nothing_though_ray_has_free_slots_there(on_ray):
    script = """
print("run", RUN_ID, os.environ["DET_AGENT_ID"])
if RUN_ID == 1:
    while not should_stop():
        time.sleep(0.05)
    acknowledge()
    sys.exit(0)
report("validation", 1, loss=0.5)
"""
    admin = login(on_ray, "admin", on_ray.home.admin_password_file.read_text())
    first = sorted(agents(on_ray))[0]
    # Both of its slots are free, and Ray would place a trial there.
    admin.post(f"/api/v1/agents/{first}/disable")
    numbers = [submit(on_ray, script, config=CONFIG_OF_ONE) for _ in range(2)]
    for _, trial in numbers:
        eventually(lambda trial=trial: any(text.startswith("run 1") for text in texts(on_ray, trial)))
        assert first not in " ".join(texts(on_ray, trial))
    (second,) = set(agents(on_ray)) - {first}
    admin.post(f"/api/v1/agents/{second}/disable")
    admin.post(f"/api/v1/agents/{first}/enable")
    for experiment_id, trial in numbers:
        on_ray.client.wait_for_state(experiment_id, "COMPLETED", 60)
        assert texts(on_ray, trial) == [f"run 1 {second}", f"run 2 {first}"]
        assert on_ray.client.trial(trial["id"])["restarts"] == 0


def test_names_labels_and_files_of_ray_hold_no_secret(on_ray, machines):
    experiment_id, trial = submit(on_ray, "print('ready')\ntime.sleep(60)\n")
    wait_for_text(on_ray, trial, "ready")
    (task,) = (one for one in processes_of(f"{trial['taskId']}.1") if "train.py" in " ".join(one.cmdline()))
    secrets = [task.environ()[name].encode() for name in ("DET_SESSION_TOKEN", "DET_USER_TOKEN")]
    session = machines.session
    files = [path for path in session.rglob("*") if path.is_file()]
    assert len(files) > 10
    shown = [path.read_bytes() for path in files]
    done = subprocess.run(
        [sys.executable, "-c", "import ray, sys; ray.init(sys.argv[1], log_to_driver=False); "
         "print(ray.util.list_named_actors(True), ray.util.placement_group_table())",
         os.environ["DET_KERAS_RAY"]],
        capture_output=True, check=True,
    )  # fmt: skip
    assert trial["taskId"].encode() in done.stdout
    # Of a process that ended meanwhile, `info` says nothing.
    command_lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    shown += [done.stdout, *(" ".join(words).encode() for words in command_lines)]
    assert not [secret for secret in secrets for content in shown if secret in content]
    on_ray.client.move(experiment_id, "kill")
    on_ray.client.wait_for_state(experiment_id, "CANCELED")


def test_master_without_ray_does_not_run_trials_twice_that_run_there(on_ray, monkeypatch):
    experiment_id, trial = submit(on_ray, "print('ready')\ntime.sleep(120)\n")
    wait_for_text(on_ray, trial, "ready")
    process.stop(on_ray.home)
    with monkeypatch.context() as patch:
        patch.delenv("DET_KERAS_RAY")
        with pytest.raises(DetError, match=r"are running on Ray at .* Start the master with --ray"):
            process.start(on_ray.home, options=process.MasterOptions())
    on_ray.start()
    on_ray.client.move(experiment_id, "kill")
    on_ray.client.wait_for_state(experiment_id, "CANCELED")
    assert on_ray.client.trial(trial["id"])["restarts"] == 0


def test_log_that_the_master_refuses_holds_no_task_back(on_ray):
    """A rank of more digits than any number has."""
    experiment_id, trial = submit(
        on_ray, "print('[rank=' + '9' * 30 + '] x')\nreport('validation', 1, loss=0.5)\n"
    )
    on_ray.client.wait_for_state(experiment_id, "COMPLETED", 60)
    assert texts(on_ray, trial) == ["[rank=" + "9" * 30 + "] x"]


def test_without_ray_the_message_says_how_to_get_it(monkeypatch, home):
    monkeypatch.setattr(ray_module.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DetError, match=r"pip install 'det_keras\[ray\]'"):
        RayPool("auto", "id", Home(home.root), {}, is_only_local=True)


def test_start_without_a_cluster_says_where_it_looked(home):
    options = process.MasterOptions(ray="127.0.0.1:1")
    with pytest.raises(DetError, match=r"The Ray cluster at 127\.0\.0\.1:1 cannot be used: .+"):
        process.start(Home(home.root), options=options)


def test_tasks_on_a_cluster_that_is_gone_can_be_given_up(home, caplog):
    root = Home(home.root).create()
    (root.root / "ray.json").write_text(json.dumps({"address": "127.0.0.1:1", "cluster_id": "id"}))
    assert ray_module.former_address(root) == "127.0.0.1:1"
    ray_module.kill_everything(root)
    assert ray_module.former_address(root) is None
    assert "127.0.0.1:1 cannot be used" in caplog.text
    assert "Trials and jobs that ran there are given up." in caplog.text


def test_ray_that_stays_away_is_logged_once_and_shown(home, caplog, monkeypatch):
    root = Home(home.root).create()
    (root.root / "ray.json").write_text(json.dumps({"address": "127.0.0.1:1", "cluster_id": "id"}))
    monkeypatch.setattr(ray_module, "_FIRST_RETRY_S", 0.1)
    serve, tries = RayPool._serve, []
    monkeypatch.setattr(RayPool, "_serve", lambda pool: tries.append(serve(pool)))
    pool = RayPool("127.0.0.1:1", "id", root, {}, is_only_local=True)
    pool.start({"1.a.1": [Share("node", (0,))]})
    eventually(lambda: len(tries) == 3)
    assert pool.description == (
        "Ray at 127.0.0.1:1, which cannot be used: ConnectionRefusedError: [Errno 111] Connection refused"
    )
    pool.stop()
    assert [record.getMessage() for record in caplog.records if "Ray" in record.getMessage()] == [
        "Ray at 127.0.0.1:1 cannot be reached: ConnectionRefusedError: [Errno 111] Connection refused."
    ]


def test_machines_that_cannot_reach_the_master_are_refused(machines, home, monkeypatch, tmp_path):
    """As if the machines of the cluster were others: the bridge asks which addresses are its own."""
    (tmp_path / "sitecustomize.py").write_text("import psutil\npsutil.net_if_addrs = lambda: {}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2]}")
    pool = RayPool(machines.address, "id", Home(home.root).create(), {}, is_only_local=True)
    with pytest.raises(
        DetError, match=r"cannot reach a master that listens on loopback.*--host.*--advertise"
    ):
        pool.start({})


def test_machines_with_gpus_make_gpus_the_slots(machines, home):
    name = machines.add(2, num_gpus=3)
    try:
        pool = RayPool(machines.address, "id", Home(home.root).create(), {}, is_only_local=True)
        pool.start({})
        try:
            slots = {node.id: [slot.device for slot in node.slots] for node in pool.nodes if node.slots}
            assert slots == {name: ["cuda"] * 3}
            assert pool.device == "cuda"
        finally:
            pool.stop()
    finally:
        machines.kill(name)


# Answers each line that it reads: one process for all questions, because it takes seconds to connect. Ray prints what
# happens to its machines, whatever `log_to_driver` says: that goes to stderr, so that stdout has answers alone.
PENDING = """
import json, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
import ray
ray.init(sys.argv[1], log_to_driver=False)
for _ in sys.stdin:
    groups = [one for one in ray.util.placement_group_table().values() if one["state"] == "PENDING"]
    wanted = [sorted(bundle.get("CPU", 0) for bundle in one["bundles"].values()) for one in groups]
    print(json.dumps(wanted), file=answers, flush=True)
"""


@pytest.fixture
def pending(machines):
    """Return a function that asks Ray for the sizes of the bundles of each group that has no place."""
    command = [sys.executable, "-c", PENDING, machines.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask():
            process.stdin.write("\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield ask
        process.stdin.close()


def test_what_does_not_fit_is_demand_that_ray_sees(machines, home, pending):
    pool = RayPool(machines.address, "demand", Home(home.root).create(), {}, is_only_local=True)
    pool.start({})
    try:
        # The machine with GPUs of an earlier test may still be leaving.
        eventually(lambda: pool.device == "cpu")
        pool.demand([2, 5])
        # The one that fits is pending for a moment as well.
        eventually(lambda: pending() == [[1.0, 2.0, 2.0]])
        pool.demand([])
        eventually(lambda: pending() == [])
        assert pool.look("1.never.1").state in (State.PENDING, State.ENDED)
        # An autoscaler that has taken all machines away adds such as there were.
        for name in machines.names:
            machines.kill(name)
        eventually(lambda: not any(node.slots for node in pool.nodes), 60)
        pool.demand([3])
        eventually(lambda: pending() == [[1.0, 2.0]])
    finally:
        pool.stop()
        while len(machines.names) < 2:
            machines.add()


def test_machine_without_the_package_is_named_as_such(on_ray, machines, tmp_path):
    broken = tmp_path / "det_keras"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('there is no det_keras here')\n")
    for name in machines.names:
        machines.kill(name)
    name = machines.add(2, env_vars={"PYTHONPATH": str(tmp_path)})
    eventually(lambda: list(agents(on_ray)) == [name])
    try:
        experiment_id, trial = submit(on_ray, "print('never')\n")
        on_ray.client.wait_for_state(experiment_id, "ERROR", 60)
        log = "".join(line["log"] for line in on_ray.client.log(trial["id"]))
        assert "there is no det_keras here" in log
        assert "the machines of Ray need det_keras" in log
    finally:
        machines.kill(name)
        machines.add()
        machines.add()
