"""The contract's acceptance test: the original `determined.core` in a trial that is paused, resumed and killed."""

from __future__ import annotations

import re

import pytest

from stock.conftest import write_experiment
from stock.test_stock_client import created

pytestmark = [pytest.mark.process, pytest.mark.stock]

ROWS = """
    rows = {}
    for group in ("training", "validation", "mine"):
        found = list(client.get_trial(TRIAL).iter_metrics(group))
        rows[group] = [(one.steps_completed, one.trial_run_id) for one in found]
    result = rows
"""


def test_script_of_the_original_is_paused_resumed_and_killed_and_nothing_is_lost_or_doubled(stock, until):
    config = write_experiment(stock, "acceptance", steps=120, ends_badly="true", restarts=1)
    number = created(stock.out("experiment", "create", config, "."))
    master = stock.master.client

    def trial():
        return master.trials(number)[0]

    until(lambda: trial()["totalBatchesProcessed"] > 15, 60)
    stock.out("experiment", "pause", number)
    until(lambda: "paused at" in stock.out("experiment", "logs", number), 30)
    stock.out("experiment", "activate", number)
    master.wait_for_state(number, "COMPLETED", 90)

    log = stock.out("experiment", "logs", number)
    starts = {int(run): int(step) for run, step in re.findall(r"run (\d+) starts at (\d+)", log)}
    paused, killed = (int(re.search(rf"{what} at (\d+)", log)[1]) for what in ("paused", "killed"))
    # It went on where it was paused, and after it was killed from the checkpoint five steps before.
    assert starts == {1: 0, 2: paused, 3: killed - 5}
    assert trial()["restarts"] == 1

    rows = stock.sdk(ROWS.replace("TRIAL", str(trial()["id"])))
    for group, every in (("training", 1), ("mine", 1), ("validation", 10)):
        steps = [step for step, _ in rows[group]]
        assert steps == list(range(every, 121, every)), group
        # Nothing behind a resume point is left of the run before it.
        assert rows[group] == [[step, _run_of(step, starts)] for step in steps], group
    summary = trial()["summaryMetrics"]
    assert summary["avg_metrics"]["loss"]["count"] == summary["mine"]["rate"]["count"] == 120
    (latest, *_) = stock.sdk(f"""
        found = client.get_experiment({number}).list_checkpoints(sort_by=client.CheckpointSortBy.BATCH_NUMBER,
                                                                  order_by=client.OrderBy.DESC)
        result = [one.metadata["steps_completed"] for one in found]
    """)
    assert latest == 120


def _run_of(step: int, starts: dict[int, int]) -> int:
    return max(run for run, start in starts.items() if step > start)
