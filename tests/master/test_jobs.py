"""Generic jobs, logs, and the views of the cluster."""

from __future__ import annotations

import base64
import io
import json
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from det_keras.master.database.concealing import without_copied_secrets
from det_keras.master.database.context_store import FileEntry
from det_keras.master.database.notifier import task_topic
from det_keras.master.resources import LogEntry
from det_keras.protocol.values import now
from master.fakes import FakePool, eventually, file_entry

JOB = {"entrypoint": ["echo", "hi"], "resources": {"slots": 0}}


def create(client, config=JOB, **fields) -> str:
    return client.post("/api/v1/commands", {"config": config, **fields})["command"]["id"]


def command(client, task_id: str) -> dict:
    return client.get(f"/api/v1/commands/{task_id}")["command"]


def task_log(client, task_id: str, **params) -> list[dict]:
    headers = {"Authorization": f"Bearer {client.token}"}
    response = client.http.get(f"/api/v1/tasks/{task_id}/logs", headers=headers, params=params)
    assert response.status_code == 200, response.text
    return [json.loads(line)["result"] for line in response.text.splitlines()]


def test_job_runs_and_tells_how_it_ended(world):
    task_id = create(world.client, files=[file_entry("a.py")])
    launch = eventually(lambda: world.pool.launched.get(f"{task_id}.1"))
    assert launch.argv == ["echo", "hi"]
    assert launch.variables["DET_TASK_TYPE"] == "COMMAND"
    assert json.loads(launch.variables["DET_TASK_CONFIG"])["resources"]["slots"] == 0
    assert "DET_TRIAL_ID" not in launch.variables
    assert launch.context is not None
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_RUNNING")
    world.pool.finish(f"{task_id}.1", 3)
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_TERMINATED")
    assert command(world.client, task_id)["exitStatus"] == "exit code 3"


def test_list_with_one_element_is_for_the_shell(world):
    task_id = create(world.client, {"entrypoint": ["echo $HOME | cat"], "resources": {"slots": 0}})
    launch = eventually(lambda: world.pool.launched.get(f"{task_id}.1"))
    assert launch.argv == ["sh", "-c", "echo $HOME | cat"]


def test_job_sees_its_secrets_and_views_do_not(world):
    config = {**JOB, "data": {"secrets": {"key": "hunter2"}}}
    answer = world.client.post("/api/v1/commands", {"config": config})
    assert "hunter2" not in json.dumps(answer)
    launch = eventually(lambda: world.pool.launched.get(f"{answer['command']['id']}.1"))
    assert "hunter2" in launch.variables["DET_TASK_CONFIG"]


def test_configs_among_the_files_of_a_job_are_stored_without_secrets(world):
    config = {**JOB, "data": {"secrets": {"key": "hunter2"}}}
    files = [
        file_entry("job.yaml", b"entrypoint: [echo]\ndata: {secrets: {key: hunter2}}\n"),
        file_entry("link", b"job.yaml", type=ord("2")),
    ]
    answer = world.client.post("/api/v1/commands", {"config": config, "files": files})
    archive = world.client.get(f"/api/v1/tasks/{answer['command']['id']}/context_directory")["b64Tgz"]
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive))) as members:
        assert b"hunter2" not in members.extractfile("job.yaml").read()
        assert members.getmember("link").linkname == "job.yaml"


def test_only_a_mebibyte_of_configs_among_the_files_is_parsed():
    content = b"entrypoint: a\ndata: {secrets: {key: hunter2}}\n" + 100_000 * b"#"
    entries = [FileEntry(**file_entry(f"{number}.yaml", content)) for number in range(12)]
    stored = without_copied_secrets(entries, {"hunter2"})
    is_changed = [entry.content != given.content for entry, given in zip(stored, entries, strict=True)]
    assert is_changed == 10 * [True] + 2 * [False]


@pytest.mark.parametrize(
    "config", [{}, {"entrypoint": ["a"], "nonsense": 1}, {"entrypoint": ["a"], "resources": {"slots": 9}}]
)
def test_job_that_cannot_run_is_refused(client, config):
    client.post("/api/v1/commands", {"config": config}, status=400)
    assert client.get("/api/v1/commands")["commands"] == []


def test_killed_job_is_over(world):
    task_id = create(world.client)
    eventually(lambda: f"{task_id}.1" in world.pool.launched)
    world.client.post(f"/api/v1/commands/{task_id}/kill")
    eventually(lambda: command(world.client, task_id)["exitStatus"] == "killed")
    world.client.post(f"/api/v1/commands/{task_id}/kill")
    world.client.post("/api/v1/commands/nobody/kill", status=404)


def test_waiting_job_is_killed_before_it_starts(world):
    wide = {"entrypoint": ["a"], "resources": {"slots": 2}}
    first, second = create(world.client, wide), create(world.client, wide)
    eventually(lambda: f"{first}.1" in world.pool.launched)
    assert command(world.client, second)["state"] == "STATE_QUEUED"
    world.client.post(f"/api/v1/commands/{second}/kill")
    assert command(world.client, second)["state"] == "STATE_TERMINATED"
    world.pool.finish(f"{first}.1")
    eventually(lambda: command(world.client, first)["state"] == "STATE_TERMINATED")
    assert f"{second}.1" not in world.pool.launched


def test_lost_job_is_not_run_again(world):
    task_id = create(world.client)
    eventually(lambda: f"{task_id}.1" in world.pool.launched)
    world.pool.lose(f"{task_id}.1")
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_TERMINATED")
    assert list(world.pool.launched) == [f"{task_id}.1"]


@pytest.fixture
def printed(world) -> str:
    """Return a finished job that printed a few lines."""
    task_id = create(world.client)
    allocation_id = f"{task_id}.1"
    eventually(lambda: allocation_id in world.pool.launched)
    world.pool.say(allocation_id, "one\n")
    world.pool.say(allocation_id, "two\n", level="ERROR", rank=1)
    world.pool.say(allocation_id, "three\n", level="DEBUG")
    world.pool.finish(allocation_id)
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_TERMINATED")
    return task_id


def texts(client, task_id: str, **params) -> list[str]:
    return [line["log"].strip() for line in task_log(client, task_id, **params)]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["one", "two", "three"]),
        ({"limit": 2}, ["one", "two"]),
        ({"limit": 2, "orderBy": "ORDER_BY_DESC"}, ["three", "two"]),
        ({"levels": ["LOG_LEVEL_ERROR"]}, ["two"]),
        ({"levels": ["LOG_LEVEL_INFO", "LOG_LEVEL_ERROR"]}, ["one", "two"]),
        ({"rankIds": 1}, ["two"]),
        ({"stdtypes": "stderr"}, []),
        ({"searchText": "thr"}, ["three"]),
        ({"searchText": "^t", "enableRegex": "true"}, ["two", "three"]),
        ({"searchText": "^t", "enableRegex": "true", "limit": 1}, ["two"]),
        ({"timestampBefore": "2020-01-01T00:00:00Z"}, []),
        ({"timestampAfter": "2020-01-01T00:00:00.5Z"}, ["one", "two", "three"]),
        ({"follow": "true"}, ["one", "two", "three"]),
    ],
    ids=str,
)
def test_log_is_filtered_as_clients_ask(client, printed, params, expected):
    assert texts(client, printed, **params) == expected


def test_line_is_rendered_as_clients_print_it(client, printed):
    line = task_log(client, printed)[1]
    container = client.get(f"/api/v1/tasks/{printed}")["task"]["allocations"][0]
    assert container["statusCode"] == 0
    assert line["message"].endswith(" [rank=1] || ERROR: two\n")
    assert line["message"].startswith(f"[{line['timestamp']}] {line['containerId'][:8]} ")
    assert line["level"] == "LOG_LEVEL_ERROR"
    ids = [int(one["id"]) for one in task_log(client, printed)]
    assert ids == sorted(set(ids))


def test_followed_log_ends_with_an_error_when_the_master_stops(world):
    _, trial, _ = world.launch()
    notifier = world.master.notifier
    path = f"/api/v1/trials/{trial['id']}/logs"
    headers = {"Authorization": f"Bearer {world.client.token}"}
    with ThreadPoolExecutor() as pool:
        followed = pool.submit(world.http.get, path, headers=headers, params={"follow": "true"})
        eventually(lambda: task_topic(trial["taskId"]) in notifier._waiters or followed.done())
        assert not followed.done()
        notifier.close()
        assert "The master is stopping." in followed.result(60).text


def test_followed_task_log_takes_no_limit(client, printed):
    for limit in (1, 3):
        client.get(f"/api/v1/tasks/{printed}/logs", params={"follow": "true", "limit": limit}, status=400)
    client.get("/api/v1/tasks/nobody/logs", status=404)
    bad = {"searchText": "(", "enableRegex": "true"}
    client.get(f"/api/v1/tasks/{printed}/logs", params=bad, status=400)


def test_shipped_lines_are_stored_beside_the_others(client, printed):
    line = {
        "task_id": printed,
        "log": "shipped\n",
        "level": "ERROR",
        "timestamp": "2026-01-02T03:04:05.678901+00:00",
    }
    client.post("/api/v1/task/logs", {"logs": [line]})
    assert task_log(client, printed)[-1]["timestamp"] == "2026-01-02T03:04:05.678901Z"
    for bad in ([], [{**line, "id": 3}], [line, {**line, "task_id": "other"}]):
        client.post("/api/v1/task/logs", {"logs": bad}, status=400)


def test_shipped_lines_whose_answer_was_lost_are_stored_once(client, printed):
    def lines(*texts, time="2026-01-02T03:04:05.6789", **marks):
        return [
            {"task_id": printed, "log": f"{text}\n", "timestamp": f"{time}{number:02}Z", **marks}
            for number, text in enumerate(texts, 1)
        ]

    def shipped():
        return [line["log"].rstrip() for line in task_log(client, printed) if line["log"][0] in "abcx"]

    long = "x" * 9000
    for rank in (0, 1):
        first = lines("a", "a", long, rank_id=rank)
        for _ in range(2):
            client.post("/api/v1/task/logs", {"logs": first})
            client.post("/task-logs", first)
    once = ["a", "a", long[:8192], long[8192:]]
    assert shipped() == 2 * once
    # Other lines at the same times, fewer lines, and lines with coarse times are not the same call.
    for other in (lines("b", "a"), lines("a"), *2 * [lines("c", time="2026-01-02T03:04:06.0000")[:1]]):
        other = [{**line, "timestamp": line["timestamp"].replace("06.000001", "06")} for line in other]
        client.post("/api/v1/task/logs", {"logs": other})
    assert shipped() == [*once, *once, "b", "a", "a", "c", "c"]


def test_long_log_is_streamed_whole_and_once(world):
    task_id = create(world.client)
    eventually(lambda: f"{task_id}.1" in world.pool.launched)
    for number in range(2500):
        world.pool.say(f"{task_id}.1", f"{number}\n")
    world.pool.finish(f"{task_id}.1")
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_TERMINATED")
    expected = [str(number) for number in range(2500)]
    assert texts(world.client, task_id) == expected
    assert texts(world.client, task_id, follow="true") == expected
    assert texts(world.client, task_id, limit=1500, orderBy="ORDER_BY_DESC") == expected[:999:-1]


def test_long_line_of_a_call_becomes_several_and_nothing_of_it_is_lost(world):
    task_id = create(world.client)
    text = "ü" * 2_500_000 + "end"
    for body, path in (({"logs": []}, "/api/v1/task/logs"), ([], "/task-logs")):
        lines = body if isinstance(body, list) else body["logs"]
        lines.append({"taskId": task_id, "log": text, "level": "LOG_LEVEL_ERROR", "rankId": 3})
        world.client.post(path, body)
    lines = task_log(world.client, task_id)
    assert "".join(line["log"] for line in lines) == text * 2
    assert max(len(line["log"].encode()) for line in lines) == 8192
    assert {(line["level"], line["rankId"]) for line in lines} == {("LOG_LEVEL_ERROR", 3)}


class FloodedPool(FakePool):
    """A pool in which one task prints faster than its log can be stored."""

    flooding = ""

    def read_log(self, allocation_id, offset):
        if allocation_id != self.flooding:
            return super().read_log(allocation_id, offset)
        return [LogEntry(now(), f"{offset}\n", "stdout")], offset + 1


def test_task_that_never_stops_printing_does_not_hold_up_the_other_tasks(make_world):
    pool = FloodedPool(2)
    world = make_world(pool)
    pool.flooding = f"{create(world.client)}.1"
    eventually(lambda: pool.flooding in pool.launched)
    task_id = create(world.client)
    eventually(lambda: f"{task_id}.1" in pool.launched)
    pool.finish(f"{task_id}.1")
    eventually(lambda: command(world.client, task_id)["state"] == "STATE_TERMINATED")
    # Nothing of the flood is skipped.
    flood = texts(world.client, pool.flooding.removesuffix(".1"))
    assert flood == [str(number) for number in range(len(flood))]


def test_cluster_is_shown_as_one_agent_with_one_pool(world):
    _, _, allocation_id = world.launch()
    (agent,) = world.client.get("/api/v1/agents")["agents"]
    summaries = world.client.get("/api/v1/tasks")["allocationIdToSummary"]
    container = summaries[allocation_id]["resources"][0]["containerId"]
    assert [slot["container"] and slot["container"]["id"] for slot in agent["slots"].values()] == [
        container,
        None,
    ]
    (pool,) = world.client.get("/api/v1/resource-pools")["resourcePools"]
    assert (pool["slotsAvailable"], pool["slotsUsed"], pool["defaultComputePool"]) == (2, 1, True)
    must = (
        "name description type numAgents slotsAvailable slotsUsed slotType auxContainerCapacity auxContainersRunning "
        "auxContainerCapacityPerAgent defaultComputePool defaultAuxPool preemptible minAgents maxAgents schedulerType "
        "schedulerFittingPolicy location imageId instanceType masterUrl masterCertName containerStartupScript "
        "agentDockerNetwork agentDockerRuntime agentDockerImage agentFluentImage maxIdleAgentPeriod "
        "maxAgentStartingPeriod startupScript details clusterName resourceManagerMetadata"
    )
    assert set(must.split()) <= set(pool)
    assert world.client.get("/api/v1/workspaces")["workspaces"][0]["numExperiments"] == 1
    assert [user["username"] for user in world.client.get("/api/v1/users")["users"]] == [
        "admin",
        "determined",
    ]


def test_queue_shows_who_runs_and_who_waits(world):
    first, _, _ = world.launch(
        "entrypoint: a\nsearcher: {name: single, metric: m}\nresources: {slots_per_trial: 2}\n"
    )
    task_id = create(world.client, {"entrypoint": ["a"], "resources": {"slots": 1}})
    running, waiting = (one["full"] for one in world.client.get("/api/v1/job-queues-v2")["jobs"])
    assert (running["entityId"], running["allocatedSlots"]) == (str(first), 2)
    assert (waiting["entityId"], waiting["summary"]) == (task_id, {"jobsAhead": 1, "state": "STATE_QUEUED"})


def test_preview_says_how_many_trials_a_search_runs(client):
    config = {
        "entrypoint": "a",
        "hyperparameters": {
            "x": {"type": "categorical", "vals": [1, 2, 3]},
            "y": {"type": "int", "minval": 0, "maxval": 9, "count": 2},
        },
        "searcher": {"name": "grid", "metric": "m"},
    }
    summary = client.post("/api/v1/preview-hp-search", {"config": config})["summary"]
    assert summary["trials"] == [{"count": 6, "unit": {"maxLength": True, "name": "", "value": 0}}]
    assert summary["config"]["name"] == "grid"
