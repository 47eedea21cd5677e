"""System metrics of trials: read by time, the newest ones on the cluster's page, and thinned where they are old."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from sqlalchemy import func, select, update

from det_keras.client import Session
from det_keras.cluster_info import WorkerInfo, read_cluster_info
from det_keras.core.backend.shared import SharedBackend
from det_keras.core.backend.trial import LoadReporter
from det_keras.core.context import Context
from det_keras.core.distributed import DistributedContext
from det_keras.master.database.models import AllocationRow, MetricRow, TrialRow
from det_keras.master.reports.metrics import Report, add_quickly
from det_keras.master.reports.pace import paces
from det_keras.master.reports.system import SystemMetric, SystemMetrics, SystemValue
from det_keras.protocol.values import now, timestamp
from det_keras.storage import DirectoryStorage
from master.fakes import eventually

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
AGENT = "machine-0"
TRIAL_CPU = SystemMetric("cpu", "cpu_util_trial", AGENT)


@pytest.fixture
def trial_id(world) -> int:
    return world.launch()[1]["id"]


def sample(world, trial_id, time, group="cpu", agent=AGENT, run_id=1, status=200, **load):
    """Report a sample as a client does."""
    body = {
        "group": group,
        "metrics": {
            "trialId": trial_id,
            "trialRunId": run_id,
            "stepsCompleted": None,
            "reportTime": timestamp(time),
            "metrics": {"avgMetrics": {agent: load}},
        },
    }
    return world.client.post(f"/api/v1/trials/{trial_id}/metrics", body, status=status)


def store_samples(world, trial_id, times, group="cpu", agent=AGENT, name="cpu_util_trial"):
    """Store samples whose values count from 0, all at once."""
    rows = [
        {
            "trial_id": trial_id,
            "run_id": 1,
            "group": group,
            "partition": "profiler",
            "total_batches": None,
            "archived": False,
            "metrics": {agent: {name: float(count)}},
            "end_time": time,
        }
        for count, time in enumerate(times)
    ]
    with world.master.store.adding() as connection:
        connection.execute(MetricRow.__table__.insert(), rows)


def series_of(world, trial_id, **options):
    found = world.master.system_metrics.read(trial_id, **options)
    return {series.metric: (series.times.tolist(), series.values.tolist()) for series in found}


def test_series_have_the_time_of_each_sample_and_grow(world, trial_id):
    assert world.master.system_metrics.read(trial_id) == []
    assert world.master.system_metrics.read(999) == []
    seconds = START.timestamp()
    sample(world, trial_id, START, cpu_util_trial=10.0, cpu_util_simple=20.0)
    assert series_of(world, trial_id)[TRIAL_CPU] == ([seconds], [10.0])
    sample(world, trial_id, START + timedelta(seconds=20), cpu_util_trial=30.0)
    # A late report of a sample, as after an outage.
    sample(world, trial_id, START + timedelta(seconds=10), cpu_util_trial=20.0)
    assert series_of(world, trial_id) == {
        TRIAL_CPU: ([seconds, seconds + 10, seconds + 20], [10.0, 20.0, 30.0]),
        SystemMetric("cpu", "cpu_util_simple", AGENT): ([seconds], [20.0]),
    }


def test_machines_and_gpus_have_series_of_their_own(world, trial_id):
    for agent, load in (("a", 40), ("b", 50)):
        gpus = {"GPU-1": {"gpu_util": load}, "GPU-2": {"gpu_util": load + 1}}
        sample(world, trial_id, START, "gpu", agent, **gpus)
    found = series_of(world, trial_id)
    assert {(metric.agent, metric.device): values for metric, (_, values) in found.items()} == {
        ("a", "GPU-1"): [40.0],
        ("a", "GPU-2"): [41.0],
        ("b", "GPU-1"): [50.0],
        ("b", "GPU-2"): [51.0],
    }


def test_former_names_and_values_that_are_no_numbers(world, trial_id):
    sample(world, trial_id, START, "network", network_sent_bytes=5, network_received_bytes="many")
    assert [metric.name for metric in series_of(world, trial_id)] == ["net_throughput_sent"]


def pace_of(world, trial_id, time):
    with world.master.store.reading() as session:
        return paces(session, [trial_id], time)


def test_pace_is_that_of_the_newest_sample_of_the_machine_that_has_it(world, trial_id):
    for second in (0, 10):
        time = START + timedelta(seconds=second)
        sample(world, trial_id, time, agent="a", samples_per_second=10.0 + second, seconds_left=100.0)
        sample(world, trial_id, time, agent="b", cpu_util_trial=5.0)
    now = START + timedelta(seconds=12)
    assert pace_of(world, trial_id, now) == {
        trial_id: {"samplesPerSecond": 20.0, "secondsLeft": 98.0},
    }


def test_pace_of_an_old_sample_is_unknown(world, trial_id):
    sample(world, trial_id, START, samples_per_second=10.0, seconds_left=100.0)
    assert pace_of(world, trial_id, START + timedelta(seconds=60)) == {}
    # Of a newer sample without a speed, as after the end of training, neither.
    sample(world, trial_id, START + timedelta(seconds=10), cpu_util_trial=5.0)
    assert pace_of(world, trial_id, START + timedelta(seconds=11)) == {}


def test_trial_in_the_rest_api_has_its_pace_while_it_runs(world, trial_id):
    assert world.client.trial(trial_id)["pace"] is None
    sample(world, trial_id, now(), samples_per_second=10.0)
    assert world.client.trial(trial_id)["pace"] == {"samplesPerSecond": 10.0}


def test_long_series_are_downsampled_with_their_extremes(world, trial_id):
    times = [START + timedelta(seconds=10 * count) for count in range(5000)]
    store_samples(world, trial_id, times)
    (series,) = world.master.system_metrics.read(trial_id, most_points=50)
    assert len(series.times) == len(series.values) <= 50
    assert series.total == 5000
    assert (series.values.min(), series.values.max()) == (0.0, 4999.0)
    np.testing.assert_array_equal(series.times, START.timestamp() + 10 * series.values)


def test_deleted_trial_leaves_nothing_to_one_with_its_number(world, trial_id):
    store_samples(world, trial_id, [START])
    assert world.master.system_metrics.read(trial_id) != []
    with world.master.store.writing() as tx:
        tx.get(TrialRow, trial_id).start_time = START + timedelta(days=1)
        for row in tx.scalars(select(MetricRow)):
            tx.delete(row)
    assert world.master.system_metrics.read(trial_id) == []


def test_least_recently_read_trials_are_dropped_from_the_cache(world, trial_id):
    metrics = SystemMetrics(world.master.store, most_trials=1)
    other = world.launch()[1]["id"]
    for one in (trial_id, other):
        store_samples(world, one, [START])
        assert len(metrics.read(one)) == 1
    assert list(metrics._kept) == [other]


def test_newest_values_are_those_of_each_machine(world, trial_id):
    other = world.launch()[1]["id"]
    store_samples(world, trial_id, [START - timedelta(seconds=past) for past in range(100, 0, -1)], agent="a")
    for seconds, agent, value in ((0, "a", 1.0), (10, "b", 2.0), (20, "a", 3.0)):
        sample(world, trial_id, START + timedelta(seconds=seconds), agent=agent, cpu_util_trial=value)
    assert world.master.system_metrics.latest([trial_id, other, 999]) == {
        trial_id: {
            SystemMetric("cpu", "cpu_util_trial", "a"): SystemValue(START.timestamp() + 20, 3.0),
            SystemMetric("cpu", "cpu_util_trial", "b"): SystemValue(START.timestamp() + 10, 2.0),
        }
    }


def test_sample_of_another_run_or_trial_is_refused(world, trial_id):
    assert "invalid run id" in str(sample(world, trial_id, START, run_id=2, status=400))
    sample(world, 999, START, status=404)


def test_samples_change_nothing_else_of_a_trial(world, trial_id):
    before = world.client.trial(trial_id)
    sample(world, trial_id, START, cpu_util_trial=1.0)
    after = world.client.trial(trial_id)
    assert (after["summaryMetrics"], after["totalBatchesProcessed"]) == (
        before["summaryMetrics"],
        before["totalBatchesProcessed"],
    )


def test_samples_and_other_reports_are_stored_together(world, trial_id):
    with world.master.store.adding() as connection:
        reports = [
            Report(trial_id, 1, "cpu", None, {AGENT: {"cpu_util_trial": 1.0}}),
            Report(trial_id, 1, "training", 5, {"loss": 1.0}),
            Report(trial_id, 1, "memory", None, {AGENT: {"memory_free": 1.0}}),
        ]
        assert add_quickly(connection, reports, ["call"] * 3) == [True, True, True]
    assert len(series_of(world, trial_id)) == 2
    assert world.client.trial(trial_id)["totalBatchesProcessed"] == 5


def count(world, trial_id, group):
    with world.master.store.reading() as session:
        return session.scalar(
            select(func.count()).where(MetricRow.trial_id == trial_id, MetricRow.group == group)
        )


def test_samples_older_than_a_day_are_thinned_to_one_a_minute(world, trial_id):
    moment = START + timedelta(days=10)
    times = [moment - timedelta(seconds=10 * past) for past in range(2 * 8640, 0, -1)]
    with world.master.store.writing() as tx:
        tx.get(TrialRow, trial_id).start_time = times[0]
    for group, agent in (("cpu", "a"), ("cpu", "b"), ("disk", "a")):
        store_samples(world, trial_id, times, group, agent)
    world.client.report(trial_id, "training", 1, {"loss": 1.0})
    kept = 8640 + 1440
    assert world.master.system_metrics.thin(moment) == 3 * (2 * 8640 - kept)
    assert world.master.system_metrics.thin(moment) == 0
    found = SystemMetrics(world.master.store).read(trial_id, most_points=100_000)
    assert [series.total for series in found] == [kept] * 3
    assert set(np.diff(found[0].times)) == {10.0, 60.0}
    assert count(world, trial_id, "training") == 1


@pytest.mark.parametrize(("ended_days_ago", "is_thinned"), [(1, True), (3, False)])
def test_trials_that_ended_long_ago_are_not_looked_at_again(world, trial_id, ended_days_ago, is_thinned):
    moment = START + timedelta(days=10)
    store_samples(world, trial_id, [moment - timedelta(days=5, seconds=s) for s in range(60)])
    with world.master.store.writing() as tx:
        trial = tx.get(TrialRow, trial_id)
        trial.start_time, trial.end_time = START, moment - timedelta(days=ended_days_ago)
    assert (world.master.system_metrics.thin(moment) > 0) is is_thinned


def test_garbage_collector_thins_once_an_hour(world, monkeypatch):
    calls = []
    collector = world.master.garbage_collector
    monkeypatch.setattr(world.master.system_metrics, "thin", calls.append)
    collector.tidy()
    assert calls == []
    moment = now() + timedelta(hours=1)
    monkeypatch.setattr("det_keras.master.services.garbage_collector.now", lambda: moment)
    collector.tidy()
    collector.tidy()
    assert calls == [moment]


def test_wall_draws_the_load_of_all_its_trials_from_the_begin_of_each(world, trial_id):
    other_id = world.launch()[1]["id"]
    for number, begin in ((trial_id, START), (other_id, START + timedelta(days=2))):
        with world.master.store.writing() as tx:
            trial = tx.get(TrialRow, number)
            # It waited for a day.
            trial.start_time = begin - timedelta(days=1)
            of_trial = AllocationRow.task_id == trial.task_id
            tx.execute(update(AllocationRow).where(of_trial).values(start_time=begin))
        for hour in range(3):
            sample(world, number, begin + timedelta(hours=hour), cpu_util_trial=10.0 * number + hour)
    cookie = {"Cookie": f"auth={world.client.token}"}
    params = {"trial": [trial_id, other_id]}
    wall = world.http.get("/figures/wall", params=params, headers=cookie).json()
    (card,) = [card for card in wall["cards"] if card["section"] == "System"]
    assert card["title"] == "CPU (%)"
    params["metric"] = [metric["key"] for metric in card["metrics"]]
    drawn = world.http.get(card["source"], params=params, headers=cookie).json()
    assert drawn["x"] == [0, 3600, 7200]
    assert {line["trial"]: line["y"] for line in drawn["lines"]} == {
        number: [10 * number, 10 * number + 1, 10 * number + 2] for number in (trial_id, other_id)
    }


def slots_of(world):
    cookie = {"Accept": "text/html", "Cookie": f"auth={world.client.token}"}
    return world.http.get("/cluster", headers=cookie).text.split('id="slots"')[1].split("</ul>")[0]


@pytest.mark.parametrize(("age_s", "is_shown"), [(1, True), (300, False)], ids=["new", "old"])
def test_cluster_page_shows_the_load_of_a_task_and_its_machine(world, trial_id, age_s, is_shown):
    assert "CPU 4" not in slots_of(world)
    time = now() - timedelta(seconds=age_s)
    sample(world, trial_id, time, cpu_util_trial=41.7, cpu_util_simple=63.2)
    sample(world, trial_id, time, "memory", memory_trial_bytes=3 << 30, memory_used_percent=55.0)
    sample(world, trial_id, time, agent="machine-1", cpu_util_trial=1.0, cpu_util_simple=1.0)
    gpus = {
        "GPU-b": {"gpu_util": 7.0},
        "GPU-a": {"gpu_util": 83.4, "gpu_used_memory": 5 << 30, "gpu_temperature": 65.0},
    }
    sample(world, trial_id, time, "gpu", **gpus)
    used, free = slots_of(world).split("slot 1")
    shown = "CPU 42%, machine 63% · memory 3.0GB, machine 55% · GPU 83%, 5.0GB, 65 °C · GPU 7%"
    assert (shown in used) is is_shown
    assert "CPU 4" not in free


def other_machine(world, tmp_path):
    """Return the task and the session of a trial's process on a machine without the chief."""
    (launch,) = world.pool.launched.values()
    info = read_cluster_info({**launch.variables, "DET_AGENT_ID": "machine-1"}, tmp_path)
    return info, Session(info.master_url, info.session_token, is_task=True, transport=world.http._transport)


def test_load_reporter_sends_all_reports_before_it_closes(world, trial_id, tmp_path):
    reporter = LoadReporter(*other_machine(world, tmp_path))
    for value in (5.0, 6.0):
        reporter.report("cpu", {"cpu_util_trial": value})
    reporter.close()
    ((metric, (_, values)),) = series_of(world, trial_id).items()
    assert (metric, values) == (SystemMetric("cpu", "cpu_util_trial", "machine-1"), [5.0, 6.0])


class Exchange:
    """An exchange in which this worker is the only one of its machine."""

    def allgather(self, value, local=False):
        assert local
        return [value]

    def close(self):
        pass


@pytest.mark.parametrize("in_trial", [True, False], ids=["trial", "local"])
def test_machine_without_the_chief_reports_its_load_in_a_trial(
    world, trial_id, tmp_path, monkeypatch, in_trial
):
    info, session = other_machine(world, tmp_path)
    monkeypatch.setattr("det_keras.core.profiler._PERIOD_S", 0.05)
    monkeypatch.setattr("det_keras.core.backend.trial.open_task_session", lambda _: session)
    worker = WorkerInfo(rank=1, size=2, local_rank=0, local_size=1, cross_rank=1, cross_size=2)
    workers = DistributedContext.of(worker, Exchange())
    context = Context(
        SharedBackend(None, workers),
        DirectoryStorage(tmp_path),
        distributed=workers,
        info=info if in_trial else None,
    )
    context.profiler.on()
    assert ("det-profiler" in [thread.name for thread in threading.enumerate()]) is in_trial
    if in_trial:
        eventually(lambda: series_of(world, trial_id))
        assert {metric.agent for metric in series_of(world, trial_id)} == {"machine-1"}
    context.close()
    assert "det-load" not in [thread.name for thread in threading.enumerate()]
