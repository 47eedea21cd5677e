"""Detached mode of the original: a script that runs anywhere reports to our master by `core_v2`."""

from __future__ import annotations

import shutil
import sqlite3

import pytest

from stock.conftest import HERE, StockDet

pytestmark = [pytest.mark.process, pytest.mark.stock]

METRICS = """
    found = list(client.get_trial(TRIAL).iter_metrics("training"))
    result = [[one.steps_completed, one.trial_run_id] for one in found]
"""


@pytest.fixture(scope="module")
def script(stock) -> None:
    shutil.copy(HERE / "detached.py", stock.directory)


def run(stock: StockDet, steps: int, ending: str):
    return stock.start("detached.py", str(stock.directory / "detached"), str(steps), ending)


def test_script_is_killed_resumed_fails_and_completes(stock, script, until):
    client, home = stock.master.client, stock.master.home

    def experiment():
        found = client.get("/api/v1/experiments", params={"name": "detached"})["experiments"]
        return found[0] if found else None

    # The first run is killed after it reported two steps more than it saved.
    killed = run(stock, 12, "never")
    try:
        number = until(experiment, 60)["id"]
        trial = until(lambda: client.trials(number), 30)[0]["id"]
        until(lambda: client.trial(trial)["totalBatchesProcessed"] == 12, 30)
        until(lambda: "run 1 starts at 0" in stock.out("trial", "logs", str(trial)), 30)
    finally:
        killed.kill()
        killed.wait(timeout=60)
    assert shown(stock, number) == "RUNNING"
    with sqlite3.connect(home.database, timeout=30) as database:
        # As if nothing had been heard of it for longer than it may be silent.
        database.execute("UPDATE trials SET heartbeat_at = datetime(heartbeat_at, '-6 minutes')")
    client.wait_for_state(number, "ERROR")
    assert "counts as lost" in stock.out("trial", "logs", str(trial), "--tail", "1")

    # The same external ids: it goes on at its checkpoint, and fails.
    failed = run(stock, 17, "badly")
    failed.communicate(timeout=60)
    assert failed.returncode == 1
    assert shown(stock, number) == "ERROR"

    done = run(stock, 20, "well")
    done.communicate(timeout=60)
    assert done.returncode == 0
    assert shown(stock, number) == "COMPLETED"
    log = stock.out("trial", "logs", str(trial))
    assert "run 2 starts at 10" in log
    assert "run 3 starts at 15" in log
    assert [row["Trial ID"] for row in stock.table("experiment", "list-trials", str(number))] == [str(trial)]
    runs = {10: 1, 15: 2, 20: 3}
    expected = [[step, next(run for end, run in runs.items() if step <= end)] for step in range(1, 21)]
    assert stock.sdk(METRICS.replace("TRIAL", str(trial))) == expected
    rows = stock.table("experiment", "list-checkpoints", str(number))
    assert {row["# of Batches"] for row in rows} == {"5", "10", "15", "20"}
    described = stock.out("experiment", "describe", str(number))
    assert "outside" in described


def shown(stock: StockDet, number: int) -> str:
    rows = stock.table("experiment", "list", "--all")
    return next(row["State"] for row in rows if row["ID"] == str(number))
