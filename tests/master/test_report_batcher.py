"""Reports that arrive together share a commit, and each gets an answer of its own."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from sqlalchemy import event, select

from det_keras.master.database.models import MetricRow
from det_keras.master.database.store import Store
from det_keras.master.errors import InvalidArgumentError, NotFoundError, UnavailableError
from det_keras.master.experiments.reporting import report_metrics
from det_keras.master.reports.batcher import ReportBatcher
from det_keras.master.reports.metrics import Report


def report(trial_id: int, steps: int, group: str = "training", run_id: int = 1, **metrics: float) -> Report:
    return Report(trial_id, run_id, group, steps, metrics or {"loss": 1.0 / steps})


def take_together(store, reports, *, each_in_a_call=True, store_one=report_metrics):
    """Have reports arrive while the database is busy, in calls of their own or in one; return their answers."""

    async def run():
        report_batcher = ReportBatcher(store, store_one)
        # The first commit has to wait for this one, so that the rest arrives meanwhile.
        with store.writing():
            report_batcher.start()
            calls = [[one] for one in reports] if each_in_a_call else [reports]
            tasks = [asyncio.create_task(report_batcher.take(call)) for call in calls]
            await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
        answers = await asyncio.gather(*tasks)
        report_batcher.stop()
        return [error for answer in answers for error in answer]

    return asyncio.run(run())


@pytest.fixture
def trial_id(world) -> int:
    return world.launch()[1]["id"]


def test_reports_that_arrive_together_share_a_commit(world, trial_id):
    commits = []
    event.listen(world.master.store.engine, "commit", lambda _: commits.append(1))
    reports = [report(trial_id, step) for step in range(1, 31)]
    assert take_together(world.master.store, reports) == [None] * 30
    # The busy one, perhaps one of the first report alone, the rest, and what the dispatcher did meanwhile.
    assert len(commits) < 10
    assert world.client.trial(trial_id)["summaryMetrics"]["avg_metrics"]["loss"]["count"] == 30


def test_report_that_only_adds_a_row_waits_for_one_turn(world, trial_id, monkeypatch):
    """Each turn may have to wait for another writer."""
    store, turns = world.master.store, []
    monkeypatch.setattr(
        store, "writing", lambda *, is_report=False: turns.append(is_report) or Store.writing(store)
    )

    async def run() -> list[Exception | None]:
        report_batcher = ReportBatcher(store, report_metrics)
        report_batcher.start()
        stored = await report_batcher.take([report(trial_id, 1)])
        report_batcher.stop()
        return stored

    assert asyncio.run(run()) == [None]
    assert True not in turns


@pytest.mark.parametrize("each_in_a_call", [True, False])
def test_report_that_is_refused_takes_no_other_along(each_in_a_call, world, trial_id):
    reports = [
        report(trial_id, 1),
        report(trial_id, 2, run_id=7),
        report(999, 1),
        report(trial_id, 3),
        report(trial_id, 3, loss=5.0),
        report(trial_id, 3, "validation", loss=0.5),
    ]
    answers = take_together(world.master.store, reports, each_in_a_call=each_in_a_call)
    kinds = [type(one) for one in answers]
    nothing = type(None)
    assert kinds == [nothing, InvalidArgumentError, NotFoundError, nothing, InvalidArgumentError, nothing]
    trial = world.client.trial(trial_id)
    assert trial["summaryMetrics"]["avg_metrics"]["loss"]["count"] == 2
    assert trial["latestValidation"]["totalBatches"] == 3


def test_reports_of_a_call_are_stored_in_their_order(world, trial_id):
    """One that is merged with an earlier report takes longer; the next does not overtake it."""
    store = world.master.store
    take_together(store, [report(trial_id, step, acc=0.1 * step) for step in range(1, 6)])
    reports = [
        report(trial_id, 4, loss=40.0),
        report(trial_id, 6, loss=60.0),
        report(trial_id, 6, "validation", loss=61.0),
        report(trial_id, 6, acc=0.6),
        report(trial_id, 4, loss=0.0),
    ]
    *stored, conflict = take_together(store, reports, each_in_a_call=False)
    assert stored == [None] * 4
    assert "conflicting key: loss" in str(conflict)
    trial = world.client.trial(trial_id)
    averages = trial["summaryMetrics"]["avg_metrics"]
    assert (averages["loss"]["last"], averages["loss"]["count"], averages["acc"]["last"]) == (60.0, 2, 0.6)
    assert trial["latestValidation"]["totalBatches"] == 6


def test_who_reads_between_two_commits_sees_the_reports_of_a_call_in_their_order(world, trial_id):
    """A validation takes longer than what came after it."""
    store, seen = world.master.store, []

    def store_one(tx, one):
        with store.reading() as session:
            seen.append(list(session.scalars(select(MetricRow.total_batches))))
        report_metrics(tx, one)

    steps = [(10, "training"), (10, "validation"), (20, "training"), (20, "mine")]
    reports = [report(trial_id, *place) for place in steps]
    assert take_together(store, reports, each_in_a_call=False, store_one=store_one) == [None] * 4
    assert seen[0] == [10]


@pytest.mark.parametrize("group", ["validation", "training"])
def test_report_that_failed_for_a_moment_is_not_overtaken(world, trial_id, group):
    """The client sends it again; the search, and the last value, go by the order."""
    store, fails, order = world.master.store, [3], []
    # Each is merged with one that is there, so that none only adds a row.
    take_together(store, [report(trial_id, step, group, acc=0.5) for step in range(1, 6)])

    def store_one(tx, one):
        if one.steps_completed in fails:
            raise UnavailableError("The connection to the database was lost.")
        report_metrics(tx, one)
        if one.group == group:
            tx.after_commit(lambda: order.append(one.steps_completed))

    reports = [report(trial_id, step, group, loss=10.0 * step) for step in range(1, 6)]
    other = report(trial_id, 9, "mine", x=1.0)
    answers = take_together(store, [*reports, other], each_in_a_call=False, store_one=store_one)
    assert [type(answer) for answer in answers] == [type(None)] * 2 + [UnavailableError] * 3 + [type(None)]
    fails.clear()
    assert take_together(store, reports[2:], each_in_a_call=False, store_one=store_one) == [None] * 3
    assert order == [1, 2, 3, 4, 5]
    name = "validation_metrics" if group == "validation" else "avg_metrics"
    assert world.client.trial(trial_id)["summaryMetrics"][name]["loss"]["last"] == 50.0


def test_calls_are_answered_when_their_own_reports_are_stored(world, trial_id):
    """A long call of slow reports holds no other one back."""
    store, answered = world.master.store, []

    async def run():
        report_batcher = ReportBatcher(store, report_metrics)
        with store.writing():
            report_batcher.start()
            slow = asyncio.create_task(
                report_batcher.take([report(trial_id, step, "validation") for step in range(1, 200)])
            )
            quick = asyncio.create_task(report_batcher.take([report(trial_id, 1)]))
            for name, task in (("slow", slow), ("quick", quick)):
                task.add_done_callback(lambda _, name=name: answered.append(name))
            await asyncio.sleep(0)
        await asyncio.gather(slow, quick)
        report_batcher.stop()

    asyncio.run(run())
    assert answered == ["quick", "slow"]


def test_fault_of_the_disk_is_told_to_everybody_and_nothing_is_half_stored(world, trial_id, monkeypatch):
    store = world.master.store
    calls = []

    def failing(real):
        @contextlib.contextmanager
        def fail(self, *arguments, **options):
            with real(self, *arguments, **options) as tx:
                yield tx
                calls.append(1)
                if len(calls) > 1:
                    raise OSError(28, "No space left on device")

        return fail

    # First: its transactions would be counted.
    world.master.dispatcher.stop()
    for name in ("writing", "adding"):
        monkeypatch.setattr(type(store), name, failing(getattr(type(store), name)))
    answers = take_together(store, [report(trial_id, step) for step in (1, 2)])
    assert [type(one) for one in answers] == [OSError, OSError]
    monkeypatch.undo()
    assert world.client.trial(trial_id)["totalBatchesProcessed"] == 0
