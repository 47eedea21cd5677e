"""Configs and metrics of any shape: stored, or refused with a clear error, and never a fault of the master's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_keras.config import dump_yaml
from master.fakes import SINGLE, file_entry

quick = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
metrics = st.dictionaries(st.text(max_size=10), values, max_size=8)
SECTIONS = [
    *(
        "name",
        "description",
        "labels",
        "entrypoint",
        "hyperparameters",
        "searcher",
        "resources",
        "environment",
    ),
    *("checkpoint_storage", "max_restarts", "reproducibility", "optimizations", "log_policies", "data"),
    *("min_validation_period", "scheduling_unit", "profiling", "bind_mounts"),
]
configs = st.dictionaries(st.sampled_from(SECTIONS) | st.text(max_size=8), values, max_size=8)


def send(world, path: str, text: str | bytes):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    return world.http.post(path, headers=headers, content=text)


def send_metrics(world, trial_id: int, steps: int, averages: str):
    text = '{"group": "training", "metrics": {"trialRunId": 1, "stepsCompleted": %d, "metrics": {"avgMetrics": %s}}}'
    return send(world, f"/api/v1/trials/{trial_id}/metrics", text % (steps, averages))


@pytest.fixture
def trial_id(world) -> int:
    return world.launch()[1]["id"]


def stored(world, trial_id: int) -> list[dict[str, Any]]:
    params = {"group": "training", "trialIds": trial_id}
    headers = {"Authorization": f"Bearer {world.client.token}"}
    lines = world.http.get("/api/v1/trials/metrics/trial_metrics", headers=headers, params=params).text
    return [
        one["metrics"]["avg_metrics"]
        for line in lines.splitlines()
        for one in json.loads(line, parse_constant=pytest.fail)["result"]["metrics"]
    ]


def plain(value: Any) -> Any:
    """Return a value as it comes back: NaN and infinities as their names."""
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


def test_metrics_of_any_shape_come_back_as_they_were_or_are_refused(world, trial_id):
    steps = iter(range(1, 10_000))

    @quick
    @given(averages=metrics)
    def check(averages):
        answer = send_metrics(world, trial_id, next(steps), json.dumps(averages))
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            assert stored(world, trial_id)[-1] == plain(averages)
        else:
            assert answer.json()["error"]["error"]

    check()
    world.client.trial(trial_id)


def test_config_of_any_shape_is_taken_or_refused_with_a_reason(world):
    @quick
    @given(config=configs, with_needed=st.booleans())
    def check(config, with_needed):
        whole = {"entrypoint": "true", "searcher": {"name": "single", "metric": "m"}, **config}
        text = dump_yaml(whole if with_needed else config)
        body = {"config": text, "validateOnly": True}
        answer = send(world, "/api/v1/experiments", json.dumps(body))
        assert answer.status_code in (200, 400), (text, answer.text)
        if answer.status_code == 400:
            assert answer.json()["error"]["error"]

    check()


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a [1]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]",
        "? [1, 2]\n: x",
        "1: x\ntrue: y\nnull: z",
        "!!python/object/apply:os.system [true]",
        "\0",
        "- " * 5000 + "x",
        "{" * 1000,
        "hyperparameters: " + "{a: " * 300 + "1" + "}" * 300,
        "x: " + "9" * 5000,
        "x: .nan\ny: .inf",
        "name: \ud83d",
        "a: 2026-01-01",
    ],
    ids=lambda text: text[:20],
)
def test_yaml_that_is_odd_is_refused_with_a_reason(world, text):
    # Of this process: the machine may have other things to do.
    began = time.process_time()
    body = json.dumps({"config": text, "validateOnly": True})
    answer = send(world, "/api/v1/experiments", body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["error"]
    assert time.process_time() - began < 5


def test_config_that_is_too_long_is_refused(world):
    text = SINGLE + "description: " + "x" * (1 << 20)
    answer = send(world, "/api/v1/experiments", json.dumps({"config": text, "validateOnly": True}))
    assert answer.status_code == 400
    assert "1 MiB" in answer.json()["error"]["error"]


def test_fifty_thousand_names_are_stored(world, trial_id):
    averages = {f"metric {i}": float(i) for i in range(50_000)}
    assert send_metrics(world, trial_id, 1, json.dumps(averages)).status_code == 200
    assert stored(world, trial_id) == [averages]


def test_more_names_than_the_limit_are_refused(world, trial_id):
    answer = send_metrics(world, trial_id, 1, json.dumps({str(i): 0.0 for i in range(50_001)}))
    assert answer.status_code == 400
    assert "at most 50000 metrics" in answer.json()["error"]["error"]


def test_body_of_ten_megabytes_is_stored_and_a_longer_report_is_refused(world, trial_id):
    assert send_metrics(world, trial_id, 1, json.dumps({"a": "x" * 10_000_000})).status_code == 200
    answer = send_metrics(world, trial_id, 2, json.dumps({"a": "x" * 17_000_000}))
    assert answer.status_code == 413
    assert "16 MiB" in answer.json()["error"]["error"]
    assert world.client.trial(trial_id)["totalBatchesProcessed"] == 1


@pytest.mark.parametrize(("depth", "status"), [(50, 200), (65, 400), (150, 400), (100_000, 400)])
def test_nesting_is_bounded(world, trial_id, depth, status):
    answer = send_metrics(world, trial_id, 1, '{"a": ' + "[" * depth + "]" * depth + "}")
    assert answer.status_code == status, answer.text[:300]
    if status == 400:
        assert "nested too deeply: more than 64" in answer.json()["error"]["error"]


@pytest.mark.parametrize(
    "averages",
    ["{1: 2}", '{"a": 1', "[]", "3", '"x"', '{"a": 01}', '{"a": \ud800}'.encode("utf-8", "surrogatepass")],
    ids=["number as a name", "cut off", "list", "number", "text", "not JSON", "half a letter"],
)
def test_body_that_is_no_metrics_is_refused(world, trial_id, averages):
    if isinstance(averages, bytes):
        averages = averages.decode("utf-8", "surrogateescape")
    text = averages.encode("utf-8", "surrogateescape").decode("latin-1")
    answer = send_metrics(world, trial_id, 1, text)
    assert answer.status_code == 400
    assert answer.json()["error"]["error"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-0.0", "5e-324", "9" * 400])
def test_numbers_at_the_edge_are_kept(world, trial_id, number):
    assert send_metrics(world, trial_id, 1, f'{{"loss": {number}}}').status_code == 200
    summary = world.client.trial(trial_id)["summaryMetrics"]["avg_metrics"]["loss"]
    assert summary["count"] == 1
    assert len(stored(world, trial_id)) == 1


@pytest.mark.parametrize(
    "half",
    [b"\\ud800", b"\\uDFFF", b"\\udc00\\ud800", b"\xed\xa0\x80"],
    ids=["high", "low", "twisted", "raw"],
)
def test_half_of_a_character_is_refused_by_every_call(world, trial_id, half):
    client, auth = world.client, {"Authorization": f"Bearer {world.client.token}"}
    task_id = client.trial(trial_id)["taskId"]
    outside = client.post("/api/v1/experiments", {"config": SINGLE, "unmanaged": True})["experiment"]["id"]
    metrics = {"trialRunId": 1, "stepsCompleted": 1, "metrics": {"avgMetrics": {"HALF": 1.0}}}
    calls = [
        ("PATCH", "/api/v1/experiments/1", {"labels": ["HALF"]}),
        ("PATCH", "/api/v1/experiments/1", {"name": "HALF", "notes": "HALF"}),
        ("POST", f"/api/v1/trials/{trial_id}/metrics", {"group": "training", "metrics": metrics}),
        ("POST", f"/api/v1/trials/{trial_id}/training_metrics", {"trialRunId": 1, "metrics": {"HALF": 1.0}}),
        ("POST", "/api/v1/trials", {"experimentId": outside, "hparams": {"a": ["HALF"]}, "unmanaged": True}),
        ("POST", "/api/v1/task/logs", {"logs": [{"taskId": task_id, "log": "HALF"}]}),
        ("POST", "/task-logs", [{"task_id": task_id, "log": "HALF"}]),
        ("POST", f"/api/v1/runs/{trial_id}/metadata", {"metadata": {"HALF": {"HALF": 1}}}),
        ("POST", "/api/v1/experiments", {"config": SINGLE, "modelDefinition": [file_entry("HALF.py")]}),
    ]
    for method, path, body in calls:
        content = json.dumps(body).encode().replace(b"HALF", half)
        answer = world.http.request(method, path, headers=auth, content=content)
        assert answer.status_code == 400, (path, answer.text)
        assert "The body is not JSON: " in answer.text, (path, answer.text)
    for path in ("experiments/1", f"trials/{trial_id}", f"experiments/{outside}/trials"):
        client.get(f"/api/v1/{path}")
    assert client.log(trial_id) == []


def test_characters_of_two_halves_and_zeros_are_kept(world, trial_id):
    assert send_metrics(world, trial_id, 1, '{"\\ud83d\\ude00": "\\\\ud800\\u0000"}').status_code == 200
    assert stored(world, trial_id) == [{"\U0001f600": "\\ud800\0"}]


def test_experiment_with_names_of_any_letters_is_listed(world):
    name = "'\"; DROP TABLE users; -- \u202e \u0000 \U0001f600"
    body = SINGLE + dump_yaml({"name": name.replace("\u0000", "")})
    number = world.client.create(body)
    assert world.client.experiment(number)["name"].startswith("'\";")
