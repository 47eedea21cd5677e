"""Two clients at once on one experiment: always a legal state, and never a stuck one."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import httpx
import pytest

from master.fakes import Client, eventually, file_entry

pytestmark = pytest.mark.process

PRELUDE = Path(__file__).with_name("trial_script.py").read_bytes()
CONFIG = """
entrypoint: [python3, train.py]
searcher: {{name: single, metric: loss}}
hyperparameters: {{gate: "{gate}"}}
max_restarts: 0
"""
# Until it is told to stop or the gate is open. A run that is stopped says so, as scripts do.
SCRIPT = b"""
gate = pathlib.Path(json.loads(os.environ["DET_HPARAMS"])["gate"])
while not gate.exists():
    if should_stop(0.05):
        acknowledge()
        sys.exit(0)
report("validation", 1, loss=1.0)
"""
ROUNDS = 200
LEGAL = {"STATE_PAUSED", "STATE_QUEUED", "STATE_STARTING", "STATE_RUNNING"}


def at_once(*actions) -> list[BaseException]:
    """Do things at the same instant; return what went wrong."""
    barrier, errors = threading.Barrier(len(actions)), []

    def act(action):
        barrier.wait()
        try:
            action()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=act, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def test_pause_and_activate_race_and_the_experiment_is_never_stuck(shared, tmp_path):
    gate = tmp_path / "gate"
    files = [file_entry("train.py", PRELUDE + SCRIPT)]
    number = shared.client.create(CONFIG.format(gate=gate), modelDefinition=files)
    clients = [
        Client(httpx.Client(base_url=shared.running.url, timeout=30, trust_env=False), shared.client.token)
        for _ in range(2)
    ]
    ended = set()
    for round_ in range(ROUNDS):
        first, second = clients if round_ % 2 else reversed(clients)
        errors = at_once(
            lambda one=first: one.move(number, "pause"), lambda one=second: one.move(number, "activate")
        )
        assert not errors, errors
        state = shared.client.experiment(number)["state"]
        assert state in LEGAL, (round_, state)
        assert state == shared.client.trials(number)[0]["state"] or state != "STATE_PAUSED"
        ended.add(state == "STATE_PAUSED")
        if round_ % 40 == 39:
            # Whatever came out of it, it can be run, and it can be paused.
            shared.client.move(number, "activate")
            shared.client.wait_for_state(number, "RUNNING", 30)
            shared.client.move(number, "pause")
            eventually(lambda: not shared.client.get("/api/v1/tasks")["allocationIdToSummary"], 30)
            shared.client.wait_for_state(number, "PAUSED")
    # Both of them won now and then, or nothing raced.
    assert ended == {True, False}
    gate.touch()
    shared.client.move(number, "activate")
    assert shared.client.wait_for_state(number, "COMPLETED", 60)["progress"] == 1.0
    (trial,) = shared.client.trials(number)
    assert (trial["state"], trial["restarts"]) == ("STATE_COMPLETED", 0)
    for client in clients:
        client.http.close()


def test_every_pair_of_wishes_at_once_ends_in_a_legal_state(shared):
    verbs = ("pause", "activate", "cancel", "kill")
    for one in verbs:
        for other in verbs:
            number = shared.client.create(
                "entrypoint: [sleep, '60']\nsearcher: {name: single, metric: loss}\n", activate=one < other
            )
            answers = []

            def move(verb, number=number, answers=answers):
                headers = {"Authorization": f"Bearer {shared.client.token}"}
                path = f"{shared.running.url}/api/v1/experiments/{number}/{verb}"
                answers.append(httpx.post(path, headers=headers, trust_env=False, timeout=30).status_code)

            assert not at_once(functools.partial(move, one), functools.partial(move, other))
            assert set(answers) <= {200, 400}
            shared.client.move(number, "kill")
            assert shared.client.wait_for_state(number, "CANCELED", 20)["endTime"]
