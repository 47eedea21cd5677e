"""The same calls to a master on SQLite and to one on PostgreSQL get the same answers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from master.fakes import Client, FakePool

from database.server import assign
from det_keras.home import Home
from det_keras.master.app import create_app
from det_keras.master.database.notifier import Notifier
from det_keras.master.embedded import EmbeddedMaster, open_store

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
# Drawn numbers, and durations.
_DRAWN = re.compile(r'"(experiment_seed|seed|wallClockTime|duration)": ?[\d.e-]+')


class Twins:
    """Two masters that are asked the same."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Ask both, compare the answers, and return one."""
        answers = []
        for client in self._clients:
            headers = {"Authorization": f"Bearer {client.token}"}
            answers.append(client.http.request(method, path, headers=headers, json=body))
        first, second = (_normal(answer.text) for answer in answers)
        assert answers[0].status_code == answers[1].status_code, (first, second)
        assert first == second
        return answers[0]


def _normal(text: str) -> str:
    """Return an answer without what is drawn or taken from the clock; equal ids stay equal."""
    numbers = itertools.count()
    names: dict[str, str] = {}
    for pattern in (_ID, _TIME):
        for found in pattern.findall(text):
            names.setdefault(found, f"<{next(numbers)}>" if pattern is _ID else "<time>")
    for found, name in names.items():
        text = text.replace(found, name)
    return re.sub(r"/\S*?/(sqlite|postgresql)/", "/home/", _DRAWN.sub("<seed>", text))


@pytest.fixture
def twins(tmp_path: Path, url: str) -> Iterator[Twins]:
    clients, ends = [], []
    for kind in ("sqlite", "postgresql"):
        home = Home(tmp_path / kind).create()
        if kind == "postgresql":
            assign(home, url)
        notifier = Notifier()
        master = EmbeddedMaster(
            home, open_store(home, notifier, {}), notifier, url="http://127.0.0.1:8080", slots=[], environment={},
            pool=FakePool(),
        )  # fmt: skip
        http = TestClient(create_app(master), raise_server_exceptions=False)
        http.__enter__()
        ends.append(http)
        clients.append(Client(http, home.token_file.read_text()))
    yield Twins(clients)
    for http in ends:
        http.__exit__(None, None, None)


ODD = [
    "plain", "UPPER", "Ünïcode ß 漢 🎉", "NUL \0 inside", "\ufdd0", "percent % under_score back\\slash", "a" * 5000,
    "'quote' \"double\"", "", " space ",
]  # fmt: skip


@pytest.fixture
def filled(twins: Twins) -> Twins:
    """Experiments with odd names, one of them with reports and log lines."""
    for number, name in enumerate(ODD):
        config = {
            "name": name or "empty",
            "labels": [f"l{number % 3}"],
            "entrypoint": "x",
            "searcher": {"name": "single", "metric": "loss"},
        }
        twins.ask("POST", "/api/v1/experiments", {"config": json.dumps(config), "activate": False})
    for number in (1, 3, 5):
        twins.ask(
            "PATCH", f"/api/v1/experiments/{number}", {"notes": ODD[number], "description": ODD[-number]}
        )
    twins.ask("POST", "/api/v1/experiments/2/archive")
    twins.ask("POST", "/api/v1/experiments/4/kill")
    return twins


SORTS = [
    f"SORT_BY_{name}"
    for name in ("ID", "NAME", "START_TIME", "END_TIME", "STATE", "USER", "PROGRESS", "NUM_TRIALS")
]


def test_lists_are_the_same_however_they_are_sorted_and_filtered(filled):
    for sort, order in itertools.product(SORTS, ("ASC", "DESC")):
        filled.ask("GET", f"/api/v1/experiments?sortBy={sort}&orderBy=ORDER_BY_{order}&limit=5&offset=2")
    for name in ("upper", "ÜN", "%25", "_", "\\", "nul", "a" * 300, "'", "🎉"):
        filled.ask("GET", f"/api/v1/experiments?name={name}")
    for query in (
        "archived=true",
        "labels=l1",
        "states=STATE_CANCELED",
        "userIds=3",
        "users=determined",
        "users=x%00y",
    ):
        filled.ask("GET", f"/api/v1/experiments?{query}")
    for number in range(len(ODD) + 2):
        filled.ask("GET", f"/api/v1/experiments/{number}")
        filled.ask("GET", f"/api/v1/experiments/{number}/trials")


def test_numbers_of_any_size_are_answered_alike(filled):
    for number in (0, -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**70, -(2**63) - 1):
        send_number(filled, number)


def send_number(filled: Twins, number: int) -> None:
    for path in ("experiments/{}", "trials/{}", "experiments/{}/checkpoints", "trials/{}/logs", "users/{}"):
        filled.ask("GET", f"/api/v1/{path.format(number)}")
    filled.ask("GET", f"/api/v1/experiments?experimentIdFilter.gt={number}")
    filled.ask(
        "GET", f"/api/v1/trials/time-series?trialIds=1&metricNames=loss&group=training&startBatches={number}"
    )
    body = {"trialId": 1, "trialRunId": 0, "stepsCompleted": number, "metrics": {"avgMetrics": {"loss": 1}}}
    filled.ask("POST", "/api/v1/trials/1/metrics", {"group": "training", "metrics": body})
    line = {"taskId": "x", "timestamp": "2026-01-01T00:00:00Z", "log": "x", "rankId": number}
    filled.ask("POST", "/api/v1/task/logs", {"logs": [line]})
    filled.ask("GET", "/api/v1/trials/metrics/trial_metrics?group=training&trialIds=1")


def test_texts_of_any_kind_are_answered_alike(filled):
    for text in [*ODD, "x" * 100_000]:
        send_text(filled, text)


def send_text(filled: Twins, text: str) -> None:
    trial = filled.ask("GET", "/api/v1/experiments/1/trials").json()["trials"][0]
    for step, metrics in enumerate(({text: 1.5}, {"loss": text}, {"loss": "NaN", "a": [text, None, True]})):
        body = {
            "trialId": trial["id"],
            "trialRunId": 0,
            "stepsCompleted": step,
            "metrics": {"avgMetrics": metrics},
        }
        filled.ask("POST", f"/api/v1/trials/{trial['id']}/metrics", {"group": "training", "metrics": body})
        filled.ask("POST", f"/api/v1/trials/{trial['id']}/metrics", {"group": text[:300], "metrics": body})
    for group in ("training", "validation"):
        filled.ask("GET", f"/api/v1/trials/metrics/trial_metrics?group={group}&trialIds={trial['id']}")
    filled.ask("GET", f"/api/v1/trials/time-series?trialIds={trial['id']}&metricNames=loss&group=training")
    filled.ask("GET", f"/api/v1/trials/{trial['id']}")
    filled.ask("PATCH", "/api/v1/experiments/1", {"name": text or "x", "notes": text, "labels": [text]})
    filled.ask("GET", "/api/v1/experiments/1")
    filled.ask("POST", "/api/v1/auth/login", {"username": text[:1000], "password": "x"})


def test_search_in_logs_ignores_case_on_both(filled, twins):
    for client in twins._clients:
        task = client.trials(1)[0]["taskId"]
        lines = [
            {"taskId": task, "timestamp": f"2026-01-01T00:00:{i:02}Z", "log": text, "level": "LOG_LEVEL_INFO"}
            for i, text in enumerate(ODD)
        ]
        client.post("/api/v1/task/logs", {"logs": lines})
    # Not NUL: a pattern of SQLite ends there.
    for text in ("upper", "UPPER", "nul", "ü", "ÜNÏ", "%25", "_", "SPACE", "\\"):
        found = filled.ask("GET", f"/api/v1/trials/1/logs?searchText={text}")
        assert found.text.count("\n") >= 1
