"""Drawn histories of masters, trials and clients under faults (benchmarks/histories.py), and their oracle."""

from __future__ import annotations

import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from amount import AMOUNT
from fault_histories.history import run_history
from fault_histories.oracle import judge
from fault_histories.plan import Action, Experiment, Fault, Plan, draw_plan
from fault_histories.world import make_template
from forked_masters import MasterServer

from det_keras.home import Home

pytestmark = [pytest.mark.process, pytest.mark.kill]

SEEDS = range(60 if AMOUNT == "all" else 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a function that runs a plan in a new folder."""
    folder = tmp_path_factory.mktemp("histories")
    template, masters = make_template(folder), MasterServer(shifts_clocks=True)
    yield lambda plan: run_history(plan, folder / plan.seed, template, masters, keeps=plan.seed == "quiet")
    masters.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_doubled_or_stuck(run, seed):
    result = run(draw_plan(f"test-{seed}"))
    assert not result.violations, f"{result.violations} in {result.kept}"


def test_seed_draws_the_same_history_again():
    assert draw_plan("a") == draw_plan("a")
    assert draw_plan("a") != draw_plan("b")


@pytest.fixture(scope="module")
def quiet(run):
    """A history with one fault, which the oracle finds in order, and its data root."""
    search = Experiment("experiment 0", "random", "plain", seed=1, period=1, pace_s=0.0, is_active=True)
    owner = (
        Action("create", "experiment 0"),
        Action("label", "experiment 0", "red"),
        Action("notes", "experiment 0", "note"),
        Action("archive", "experiment 0"),
    )
    visitor = (
        *(Action(verb, "login 0") for verb in ("log in", "use")),
        Action("rename", value="another name"),
        *(Action(verb, "login 1") for verb in ("log in", "log out", "use")),
    )
    reporter = (
        Action("job", "job 0", 1),
        *(Action(verb, "unmanaged 0") for verb in ("open", "begin")),
        Action("report", "unmanaged 0", 1),
        Action("log", "unmanaged 0", 1),
        Action("finish", "unmanaged 0"),
    )
    result = run(Plan("quiet", (search,), (owner, reporter, visitor), (Fault("master killed", 15),)))
    assert result.violations == []
    assert result.faults["master killed"] == 1
    return result.evidence


DAMAGES = {
    "UPDATE experiments SET notes = 'other' WHERE NOT is_unmanaged": "has the notes 'other'",
    "UPDATE experiments SET labels = '[]' WHERE NOT is_unmanaged": "`red` is wrong",
    "UPDATE experiments SET archived = 0": "is not archived",
    "UPDATE experiments SET state = 'ACTIVE' WHERE NOT is_unmanaged": "ends as ACTIVE",
    "UPDATE experiments SET description = 'other' WHERE is_unmanaged": "`unmanaged 0` was created and does not exist",
    "UPDATE tasks SET description = 'experiment 0' WHERE kind = 'COMMAND'": "`experiment 0` exists 2 times",
    "UPDATE trials SET state = 'ERROR' WHERE id = (SELECT min(trial_id) FROM checkpoints)": "failed",
    "UPDATE trials SET hparams = '{\"x\": 0.5}' WHERE external_id IS NULL": "its search decided",
    "DELETE FROM metrics WHERE \"group\" = 'validation'": "was acknowledged and is lost",
    "DELETE FROM metrics WHERE \"group\" = 'training' AND total_batches = 2": "has reports of the epochs [1, 3, 4]",
    "UPDATE metrics SET metrics = '{\"loss\": 2.0}'": "which no undisturbed run does",
    'INSERT INTO metrics SELECT id + 1000, trial_id, run_id, "group", partition, total_batches, archived, metrics, '
    "batch_metrics, searcher_metric, end_time FROM metrics": "2 times",
    "DELETE FROM checkpoints": "stored and not recorded",
    "UPDATE checkpoints SET state = 'DELETED'": "is DELETED and has files",
    "DELETE FROM task_logs WHERE text = 'line 1' || char(10)": "lacks lines",
    "DELETE FROM task_logs WHERE text = 'line 4' || char(10)": "ends at 4 of 5 printed lines",
    "INSERT INTO task_logs (id, task_id, allocation_id, time, source, text) "
    "SELECT id + 1000, task_id, allocation_id, time, source, text FROM task_logs": "has the lines [0, 1, 2, 3, 4, 0",
    "DELETE FROM task_logs WHERE text LIKE 'step 1%'": "The log of `unmanaged 0` lacks",
    "DELETE FROM history_events WHERE event LIKE '%validation_reported%'": "its search heard 0 times",
    "INSERT INTO history_events SELECT number + 1000, experiment_id, event FROM history_events "
    "WHERE event LIKE '%trial_exited%'": "ended 2 times",
    "DELETE FROM tokens": "`login 0` is lost in the database",
    "UPDATE allocations SET end_time = NULL": "has not ended",
    "INSERT INTO history_states SELECT number + 1000, kind, id, after, before FROM history_states": "went from COM",
}


@pytest.mark.parametrize("statement", DAMAGES)
def test_oracle_notices_a_damaged_end(quiet, tmp_path, statement):
    home = Home(Path(shutil.copytree(quiet.home.root, tmp_path / "home")))
    with sqlite3.connect(home.database) as connection:
        changed = connection.execute(statement).rowcount
    connection.close()
    assert changed > 0
    found = judge(replace(quiet, home=home))
    assert any(DAMAGES[statement] in text for text in found), found


def test_oracle_notices_lost_and_damaged_files(quiet, tmp_path):
    home = Home(Path(shutil.copytree(quiet.home.root, tmp_path / "home")))
    first, second, *_ = sorted(home.checkpoints.iterdir())
    (first / "state").write_text("other")
    shutil.rmtree(second)
    found = judge(replace(quiet, home=home))
    assert [text.partition(":")[0] for text in found if first.name in text] == [
        f"Checkpoint {first.name} is damaged"
    ]
    assert f"Checkpoint {second.name} is recorded and has no files." in found
