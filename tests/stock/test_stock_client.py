"""Every command of the original client that the protocol's contract lists, against a fresh master.

The rows of the contract's section 6, in its order; what the client itself cannot do is asserted to fail as its own
fault makes it fail.
"""

from __future__ import annotations

import json
import re
import tarfile

import httpx
import pytest
import yaml

from stock.conftest import StockDet, tables, write_experiment

pytestmark = [pytest.mark.process, pytest.mark.stock]

UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def checkpoint_of(stock: StockDet, number: int, steps: int) -> str:
    rows = stock.table("experiment", "list-checkpoints", str(number))
    return next(row["UUID"] for row in rows if row["# of Batches"] == str(steps))


def shown(stock: StockDet, number: str) -> dict[str, str]:
    """Return an experiment as it is listed."""
    return next(row for row in stock.table("experiment", "list", "--all") if row["ID"] == number)


def created(text: str) -> str:
    return re.search(r"Created experiment (\d+)", text)[1]


# --- Who is there.


def test_login_and_logout(stock):
    password = stock.environment["DET_PASS"]
    assert "determined" in stock.out("user", "whoami")
    stock.out("user", "login", "determined", typed=f"{password}\n")
    assert "Invalid" in stock.refused("user", "login", "determined", typed="wrong\n")
    stock.out("user", "logout")
    assert stock.out("user", "whoami") == "You are logged in as user 'determined'\n"


def test_users_are_listed(stock):
    names = {row["Username"]: row["Admin"] for row in stock.table("user", "list")}
    assert names["admin"] == "True"
    assert names["determined"] == "False"


def test_master_introduces_itself(stock):
    info = yaml.safe_load(stock.out("master", "info"))
    assert (info["version"], info["branding"]) == ("0.38.1", "determined")
    assert UUID.fullmatch(info["clusterId"])


def test_master_shows_its_log_and_how_it_was_set_up(stock):
    shown = yaml.safe_load(stock.out("master", "config", "show"))
    assert shown["resource_pools"] == [{"pool_name": "default", "slots": 2}]
    stock.out("master", "logs", "--tail", "3")


def test_users_are_made_and_change_their_passwords(stock, stock_master):
    administrator = ("-u", "admin", "user")
    first = stock_master.home.admin_password_file.read_text()
    stock.out("user", "login", "admin", typed=f"{first}\n")
    stock.out(*administrator, "create", "someone", "--password", "Passw0rd-of-mine")
    assert "someone" in [row["Username"] for row in stock.table("user", "list")]
    stock.out("user", "login", "someone", typed="Passw0rd-of-mine\n")
    stock.out("-u", "someone", "user", "change-password", typed="Passw0rd-another\nPassw0rd-another\n")
    assert "someone" in stock.out("-u", "someone", "user", "whoami")
    refused = stock.refused("-u", "someone", "user", "change-password", "admin", typed="Aa345678\nAa345678\n")
    assert "administrators" in refused
    stock.out(*administrator, "deactivate", "someone")
    assert "user is inactive" in stock.refused("-u", "someone", "user", "whoami")


def test_what_is_not_served_is_named(stock):
    assert "/api/v1/notebooks is not served" in stock.refused("notebook", "start")
    assert "workspaceName" in stock.out("notebook", "list")


# --- Experiments are made.


def test_experiment_is_created_and_followed_to_its_end(stock):
    config = write_experiment(stock, "followed", steps=5)
    text = stock.out("experiment", "create", config, ".", "-f")
    assert "Following first trial" in text
    assert "|| run 1 starts at 0" in text
    assert "Reported checkpoint to master" in text
    assert "Trial log stream ended" in text
    assert text.index("starts at 0") < text.index("Reported checkpoint")


def test_experiment_created_paused_waits_for_its_activation(stock, paused_experiment):
    number = str(paused_experiment)
    (row,) = [row for row in stock.table("experiment", "list") if row["ID"] == number]
    assert (row["State"], row["Name"], row["Owner"]) == ("PAUSED", "paused", "determined")
    assert "is in paused state" in stock.refused("experiment", "wait", number)
    assert "Activated" in stock.out("experiment", "activate", number)
    stock.out("experiment", "wait", number)


def test_config_values_of_the_command_line_win(stock):
    config = write_experiment(stock, "override")
    text = stock.out("experiment", "create", config, ".", "--paused", "--config", "hyperparameters.steps=7")
    shown = yaml.safe_load(stock.out("experiment", "config", created(text)))
    assert shown["hyperparameters"]["steps"] == {"type": "const", "val": 7}


def test_experiment_is_tried_out_in_test_mode(stock):
    config = write_experiment(stock, "tried", steps=3)
    text = stock.out("experiment", "create", config, ".", "--test-mode")
    assert "Experiment configuration validation succeeded" in text
    assert "Model definition test succeeded" in text


def test_trial_that_fails_in_test_mode_shows_its_log(stock):
    config = write_experiment(stock, "broken", steps="[nonsense]")
    done = stock("experiment", "create", config, ".", "--test-mode")
    assert "TypeError" in done.out + done.err


def test_wrong_config_is_refused_with_what_is_wrong(stock):
    stock.write("wrong.yaml", "name: x\nentrypoint: y\nsearcher: {name: nonsense, metric: loss}\n")
    assert "nonsense" in stock.refused("experiment", "create", "wrong.yaml", ".")


# --- Experiments are looked at.


def test_experiments_are_listed(stock, done_experiment):
    (row,) = [row for row in stock.table("experiment", "list") if row["ID"] == str(done_experiment)]
    assert (row["State"], row["Progress"], row["Resource Pool"]) == ("COMPLETED", "100.0%", "default")
    # Whole seconds are shown, and a short experiment ends within one.
    assert row["Ended"] >= row["Started"] > "2020"
    assert len(stock.table("experiment", "list", "--all")) >= 1


def test_experiment_is_described_with_its_trials_and_workloads(stock, done_experiment):
    experiment, trials, workloads = tables(
        stock.out("experiment", "describe", str(done_experiment), "--metrics")
    )
    assert experiment[0]["State"] == trials[0]["State"] == "COMPLETED"
    assert json.loads(trials[0]["H-Params"]) == {"steps": 20, "ends_badly": False}
    assert [row["# of Batches"] for row in workloads] == [str(step) for step in range(1, 21)]
    assert float(workloads[9]["Validation Metric: loss"]) == 0.1
    assert float(workloads[4]["Training Metric: loss"]) == 0.2
    assert workloads[4]["Training Metric: odd"].lower() == "nan"
    assert workloads[19]["Checkpoint State"] == "COMPLETED"


def test_several_experiments_are_described_at_once(stock, done_experiment, paused_experiment):
    both = f"{done_experiment},{paused_experiment}"
    (experiments, *_) = tables(stock.out("experiment", "describe", both))
    assert [row["State"] for row in experiments] == ["COMPLETED", "PAUSED"]


def test_experiment_is_described_as_json(stock, done_experiment):
    (shown,) = json.loads(stock.out("experiment", "describe", str(done_experiment), "--json"))
    assert shown["experiment"]["id"] == done_experiment
    assert shown["experiment"]["state"] == "STATE_COMPLETED"
    assert shown["config"]["searcher"]["metric"] == "loss"


def test_logs_of_an_experiment_are_those_of_its_first_trial(stock, done_experiment):
    text = stock.out("experiment", "logs", str(done_experiment))
    lines = text.splitlines()
    assert re.fullmatch(r"\[\d{4}-\d\d-\d\dT[\d:.]+Z\] [0-9a-f]{8} \|\| run 1 starts at 0", lines[0])
    assert "INFO: " in text


def test_trials_and_checkpoints_are_listed(stock, done_experiment):
    (trial,) = stock.table("experiment", "list-trials", str(done_experiment))
    assert (trial["State"], trial["# of Batches"]) == ("COMPLETED", "20")
    rows = stock.table("experiment", "list-checkpoints", str(done_experiment))
    assert [row["# of Batches"] for row in rows] == ["10", "20"]
    assert set(rows[1]["Resources"].split()) == {"metadata.json", "steps"}
    (best,) = stock.table("experiment", "list-checkpoints", str(done_experiment), "--best", "1")
    assert (best["# of Batches"], float(best["Validation Metric"])) == ("20", 0.05)


def test_best_checkpoint_of_an_experiment_is_downloaded(stock, done_experiment, tmp_path):
    text = stock.out("experiment", "download", str(done_experiment), "-o", str(tmp_path / "best"))
    (row,) = tables(text)[0]
    assert row["Steps Completed"] == "20"
    (found,) = (tmp_path / "best").glob("*/steps")
    assert found.read_text() == "20"


def test_config_and_code_come_back(stock, done_experiment, tmp_path):
    config = yaml.safe_load(stock.out("experiment", "config", str(done_experiment)))
    assert config["name"] == "done"
    stock.out("experiment", "download-model-def", str(done_experiment), "--output-dir", str(tmp_path))
    with tarfile.open(tmp_path / f"experiment_{done_experiment}_model_def.tgz") as archive:
        kept = archive.extractfile("script.py").read()
    assert kept == (stock.directory / "script.py").read_bytes()


# --- Experiments are moved and changed.


def test_experiment_is_paused_activated_and_cancelled(stock, stock_master, until):
    config = write_experiment(stock, "moved", ends_badly="true", steps=100000)
    number = created(stock.out("experiment", "create", config, "."))
    until(lambda: stock_master.client.trials(number)[0]["totalBatchesProcessed"] > 3, 30)
    assert "Paused" in stock.out("experiment", "pause", number)
    until(lambda: "paused at" in stock.out("experiment", "logs", number), 30)
    assert "Activated" in stock.out("experiment", "activate", number)
    assert "Canceled" in stock.out("experiment", "cancel", number)
    stock_master.client.wait_for_state(number, "CANCELED", 30)
    assert stock.refused("experiment", "wait", number) == ""


def test_experiment_and_trial_are_killed(stock, stock_master, until):
    config = write_experiment(stock, "killed", ends_badly="true", steps=100000)
    number = created(stock.out("experiment", "create", config, "."))
    until(lambda: stock_master.client.trials(number)[0]["totalBatchesProcessed"] > 0, 30)
    trial = str(stock_master.client.trials(number)[0]["id"])
    assert "Killed" in stock.out("trial", "kill", trial)
    stock_master.client.wait_for_state(number, "CANCELED", 30)
    assert shown(stock, number)["State"] == "CANCELED"
    assert "Killed" in stock.out("experiment", "kill", number)


def test_experiment_that_is_over_is_continued_from_its_checkpoint(stock):
    write_experiment(stock, "continued", steps=10)
    number = created(stock.out("experiment", "create", "continued.yaml", "."))
    stock.finish(number)
    said = stock.out("experiment", "continue", number, "--config", "hyperparameters.steps=20")
    assert said == f"Continued experiment {number}\n"
    stock.finish(number)
    log = stock.out("experiment", "logs", number)
    assert "run 1 starts at 0" in log
    assert "run 2 starts at 10" in log
    (trial,) = stock.table("experiment", "list-trials", number)
    found = stock.sdk(f"""
        found = list(client.get_trial({trial["Trial ID"]}).iter_metrics("training"))
        result = [one.steps_completed for one in found]
    """)
    assert found == list(range(1, 21))
    paused = created(stock.out("experiment", "create", "continued.yaml", ".", "--paused"))
    assert "PAUSED" in stock.refused("experiment", "continue", paused)
    stock.out("experiment", "kill", paused)


def test_experiment_is_archived_and_brought_back(stock, done_experiment):
    number = str(done_experiment)
    stock.out("experiment", "archive", number)
    assert number not in [row["ID"] for row in stock.table("experiment", "list")]
    assert number in [row["ID"] for row in stock.table("experiment", "list", "--all")]
    assert "already archived" in stock.refused("experiment", "archive", number)
    stock.out("experiment", "unarchive", number)
    assert number in [row["ID"] for row in stock.table("experiment", "list")]


def test_experiment_is_deleted(stock, stock_master, paused_experiment, until):
    number = str(paused_experiment)
    assert "incompatible state" in stock.refused("experiment", "delete", number, "--yes")
    stock.out("experiment", "kill", number)
    stock.out("experiment", "delete", number, "--yes")
    until(
        lambda: stock_master.http.get(f"/api/v1/experiments/{number}", headers=bearer(stock_master)).is_error
    )
    assert "not found" in stock.refused("experiment", "describe", number)


def bearer(master) -> dict[str, str]:
    return {"Authorization": f"Bearer {master.client.token}"}


def test_name_description_and_labels_are_changed(stock, paused_experiment):
    number = str(paused_experiment)
    stock.out("experiment", "set", "name", number, "another")
    stock.out("experiment", "set", "description", number, "said more")
    stock.out("experiment", "label", "add", number, "one")
    stock.out("experiment", "label", "add", number, "two")
    stock.out("experiment", "label", "remove", number, "one")
    (experiment, *_) = tables(stock.out("experiment", "describe", number))
    assert (experiment[0]["Name"], experiment[0]["Labels"]) == ("another", "two")
    assert experiment[0]["Description"] == "said more"


def test_slots_weight_and_priority_are_changed(stock, paused_experiment):
    number = str(paused_experiment)
    for what, value in (("max-slots", "2"), ("weight", "1.5"), ("priority", "40")):
        stock.out("experiment", "set", what, number, value)
    resources = yaml.safe_load(stock.out("experiment", "config", number))["resources"]
    assert (resources["max_slots"], resources["weight"], resources["priority"]) == (2, 1.5, 40)


@pytest.mark.parametrize("answer", [[], ["--yes"]], ids=["asked", "--yes"])
def test_retention_is_changed_and_shown_before(stock, answer):
    config = write_experiment(stock, "pruned", steps=20)
    number = created(stock.out("experiment", "create", config, "."))
    stock.finish(number)
    keep = ["--save-experiment-best", "0", "--save-trial-best", "0", "--save-trial-latest", "1"]
    text = stock.out("experiment", "set", "gc-policy", *answer, *keep, number, typed="y\n")
    if not answer:
        assert "will delete 1 checkpoints with validations and 0 checkpoints without" in text
        assert UUID.search(text)
    config_now = yaml.safe_load(stock.out("experiment", "config", number))
    assert config_now["checkpoint_storage"]["save_trial_latest"] == 1


# --- Trials and checkpoints.


def test_trial_is_described(stock, done_experiment):
    trial = stock.table("experiment", "list-trials", str(done_experiment))[0]["Trial ID"]
    facts, workloads = tables(stock.out("trial", "describe", trial, "--metrics"))
    summary = json.loads(facts[0]["Summary Metrics"])
    assert summary["avg_metrics"]["loss"]["count"] == 20
    assert summary["validation_metrics"]["loss"]["last"] == 0.05
    assert summary["mine"]["name"] == {"type": "string", "last": "x"}
    assert len(workloads) == 20 + 2 + 2


def test_trial_logs_are_read_whole_in_part_and_followed(stock, done_experiment):
    trial = stock.table("experiment", "list-trials", str(done_experiment))[0]["Trial ID"]
    lines = [line for line in stock.out("trial", "logs", trial).splitlines() if "||" in line]
    assert [x for x in stock.out("trial", "logs", trial, "--head", "2").splitlines() if "||" in x] == lines[
        :2
    ]
    assert [x for x in stock.out("trial", "logs", trial, "--tail", "3").splitlines() if "||" in x] == lines[
        -3:
    ]
    assert [x for x in stock.out("trial", "logs", trial, "-f").splitlines() if "||" in x] == lines


def test_trial_download_takes_the_last_of_several_checkpoints(stock, done_experiment, tmp_path):
    trial = stock.table("experiment", "list-trials", str(done_experiment))[0]["Trial ID"]
    text = stock.out("trial", "download", trial, "--latest", "-o", str(tmp_path))
    assert next(tmp_path.rglob("steps")).read_text() in ("10", "20"), text


def test_trial_download_fails_by_the_clients_own_faults(stock, tmp_path):
    # It takes the last checkpoint off the list and then finds the list empty; and it miscounts its options.
    config = write_experiment(stock, "single", steps=5)
    number = created(stock.out("experiment", "create", config, "."))
    stock.finish(number)
    trial = stock.table("experiment", "list-trials", number)[0]["Trial ID"]
    only = stock.table("experiment", "list-checkpoints", number)[0]["UUID"]
    for which in ("--latest", "--best"):
        text = stock.refused("trial", "download", trial, which, "-o", str(tmp_path))
        assert "No downloadable checkpoint found" in text
    text = stock.refused("trial", "download", trial, "--uuid", only, "-o", str(tmp_path))
    assert "exactly one of --latest, --best, or --uuid" in text


def test_checkpoint_is_described(stock, done_experiment):
    uuid = checkpoint_of(stock, done_experiment, 20)
    (row,) = stock.table("checkpoint", "describe", uuid)
    assert (row["Checkpoint UUID"], row["Steps Completed"]) == (uuid, "20")
    assert json.loads(row["Validation Metrics"])["avgMetrics"] == {"loss": 0.05}
    assert json.loads(row["Metadata"]) == {"steps_completed": 20}


@pytest.mark.parametrize("mode", ["auto", "direct", "master"])
def test_checkpoint_is_downloaded(stock, done_experiment, tmp_path, mode):
    uuid = checkpoint_of(stock, done_experiment, 10)
    stock.out("checkpoint", "download", uuid, "--mode", mode, "-o", str(tmp_path / "there"))
    assert (tmp_path / "there" / "steps").read_text() == "10"
    assert json.loads((tmp_path / "there" / "metadata.json").read_text()) == {"steps_completed": 10}
    assert {path.name for path in (tmp_path / "there").iterdir()} == {"steps", "metadata.json"}


def test_files_of_a_checkpoint_and_all_of_it_are_deleted(stock, until):
    config = write_experiment(stock, "shrinking", steps=5)
    number = created(stock.out("experiment", "create", config, "."))
    stock.finish(number)

    def row():
        return stock.table("experiment", "list-checkpoints", number)[0]

    uuid = row()["UUID"]
    stock.out("checkpoint", "rm", uuid, "--glob", "st*", "--yes")
    until(lambda: row()["State"] == "PARTIALLY_DELETED")
    assert row()["Resources"] == "metadata.json"
    stock.out("checkpoint", "delete", uuid, "--yes")
    until(lambda: row()["State"] == "DELETED")
    assert "DELETED" in stock.refused("checkpoint", "download", uuid)


@pytest.mark.parametrize("words", [("trial", "list"), ("checkpoint", "list"), ("resource-pool", "list")])
def test_commands_that_the_client_does_not_have(stock, words):
    assert "invalid choice: 'list'" in stock.refused(*words)


# --- Commands, jobs, tasks and the machine.


def test_command_runs_and_its_log_ends_with_it(stock):
    text = stock.out("cmd", "run", "echo", "hi", "there")
    assert re.search(r"\|\| hi there\n", text)
    assert "Task log stream ended" in text


def test_waiting_command_is_seen_everywhere_and_killed(stock, until):
    started = stock.out("cmd", "run", "-d", "sleep", "300").strip()
    assert UUID.fullmatch(started)

    def row():
        return next(one for one in stock.table("cmd", "list") if one["id"] == started)

    until(lambda: row()["state"] == "RUNNING")
    (task,) = [one for one in stock.table("task", "list") if one["Task ID"] == started]
    assert (task["Slots Needed"], task["Resource Pool"]) == ("1", "default")
    slots = stock.table("slot", "list")
    assert [one["Task Name"] for one in slots].count(task["Name"]) == 1
    assert {"FREE"} < {one["Allocation ID"] for one in slots}
    (job,) = [one for one in stock.table("job", "list") if one["Job Name"] == task["Name"]]
    assert (job["Type"], job["Slots (acquired/needed)"]) == ("TYPE_COMMAND", "1/1")
    assert started in stock.out("cmd", "kill", started[:8])
    until(lambda: row()["state"] == "TERMINATED")


def test_logs_of_a_task_are_read_by_its_id(stock):
    text = stock.out("cmd", "run", "echo", "once more")
    task_id = UUID.search(text)[0]
    assert "|| once more\n" in stock.out("task", "logs", task_id)


def test_logs_of_a_task_that_the_client_has_no_name_for_are_refused_by_it(stock):
    assert "partial UUIDs not supported" in stock.refused(
        "task", "logs", "1.0a8bb52b-8c52-4526-9327-bbca6ed8259f-1"
    )


def test_tensorboard_is_started_shown_listed_and_killed(stock, done_experiment, until):
    pytest.importorskip("tensorboard")
    said = stock.out("tensorboard", "start", str(done_experiment), "--no-browser")
    url = re.search(r"Tensorboard is running at: (\S+)", said)[1]
    (row,) = [one for one in stock.table("tensorboard", "list") if one["state"] == "RUNNING"]
    assert row["experimentIds"] == f"[{done_experiment}]"
    assert row["description"] == f"TensorBoard (experiments {done_experiment})"
    assert row["id"] in stock.out("task", "list")
    # A browser that is logged in gets from the client's address to the page.
    master = stock.master
    cookies = {"auth": master.home.token_file.read_text()}
    with httpx.Client(cookies=cookies, trust_env=False, follow_redirects=True, timeout=30) as browser:
        page = browser.get(url)
    assert "<title>TensorBoard</title>" in page.text
    stock.out("tensorboard", "kill", row["id"])
    until(lambda: not [one for one in stock.table("tensorboard", "list") if one["state"] != "TERMINATED"], 30)
    # The server is gone with its task.
    with pytest.raises(httpx.ConnectError):
        httpx.get(page.url, trust_env=False)
    assert "not found" in stock.refused("tensorboard", "start", "999", "--no-browser")


def test_search_is_previewed(stock, done_experiment):
    config = write_experiment(stock, "previewed")
    assert "train to completion" in stock.out("preview-search", config)


def test_machine_is_one_agent_with_its_slots(stock):
    (agent,) = stock.table("agent", "list")
    assert (agent["Slots"], agent["Resource Pool"], agent["Enabled"]) == ("2", "default", "True")
    assert [slot["Slot ID"] for slot in stock.table("slot", "list")] == ["0", "1"]


def test_queue_is_listed_when_it_is_empty(stock):
    assert "Slots (acquired/needed)" in stock.out("job", "list")


# --- The SDK.


def test_sdk_creates_waits_and_reads(stock, done_experiment):
    write_experiment(stock, "sdk")
    result = stock.sdk("""
        experiment = client.create_experiment("sdk.yaml", ".")
        trial = experiment.await_first_trial()
        state = experiment.wait(interval=0.2)
        top = experiment.top_checkpoint()
        result = {
            "state": state.name,
            "trials": [one.id for one in experiment.list_trials()] == [trial.id],
            "top": top.metadata["steps_completed"],
            "checkpoints": [one.metadata["steps_completed"] for one in experiment.list_checkpoints()],
            "few": len(experiment.list_checkpoints(max_results=1)),
            "sorted": [c.metadata["steps_completed"] for c in
                       experiment.list_checkpoints(sort_by="loss", order_by=client.OrderBy.DESC)],
            "training": [(one.steps_completed, one.metrics["loss"]) for one in trial.iter_metrics("training")][:2],
            "mine": [one.metrics["rate"] for one in trial.iter_metrics("mine")][:2],
            "none": list(trial.iter_metrics("unheard of")),
            "log": next(iter(trial.iter_logs())),
            "of_trial": len(trial.list_checkpoints()),
            "known": client.get_trial(trial.id).state.name,
            "listed": experiment.id in [one.id for one in client.list_experiments()],
        }
    """)
    assert (result["state"], result["known"]) == ("COMPLETED", "COMPLETED")
    assert (result["trials"], result["listed"], result["few"], result["of_trial"]) == (True, True, 1, 2)
    assert (result["top"], result["checkpoints"], result["sorted"]) == (20, [20, 10], [10, 20])
    assert (result["training"], result["mine"], result["none"]) == ([[1, 1.0], [2, 0.5]], [0.5, 1.0], [])
    assert "run 1 starts at 0" in result["log"]


def test_sdk_changes_labels_and_metadata_and_deletes(stock, tmp_path, until):
    write_experiment(stock, "changing")
    result = stock.sdk(f"""
        experiment = client.create_experiment("changing.yaml", ".")
        experiment.wait(interval=0.2)
        experiment.add_label("kept"); experiment.add_label("gone"); experiment.remove_label("gone")
        experiment.archive(); experiment.unarchive()
        experiment.set_name("renamed"); experiment.set_notes("noted")
        checkpoint = client.get_checkpoint(experiment.top_checkpoint().uuid)
        checkpoint.add_metadata({{"more": [1], "less": 2}})
        checkpoint.remove_metadata(["less", "steps_completed"])
        checkpoint.reload()
        path = checkpoint.download("{tmp_path / "there"}")
        experiment.reload()
        result = {{
            "labels": sorted(experiment.labels), "name": experiment.name, "notes": experiment.notes,
            "metadata": checkpoint.metadata, "path": path, "uuid": checkpoint.uuid, "id": experiment.id,
        }}
        checkpoint.remove_files(["st*"])
        checkpoint.delete()
    """)
    assert (result["labels"], result["name"], result["notes"]) == (["kept"], "renamed", "noted")
    # What a checkpoint's batches are nobody can take away.
    assert result["metadata"] == {"more": [1], "steps_completed": 20}
    assert (tmp_path / "there" / "steps").read_text() == "20"
    rows = "experiment", "list-checkpoints", str(result["id"])
    until(lambda: "DELETED" in [row["State"] for row in stock.table(*rows) if row["UUID"] == result["uuid"]])


def test_sdk_that_waits_for_a_paused_experiment_says_so(stock, paused_experiment):
    with pytest.raises(AssertionError, match=r"(?i)paused"):
        stock.sdk(f"result = client.get_experiment({paused_experiment}).wait(interval=0.2)")


def test_sdk_names_what_is_not_there(stock):
    with pytest.raises(AssertionError, match="trial '99999' not found"):
        stock.sdk("result = client.get_trial(99999).id")


def test_priority_and_weight_of_a_job_are_changed_in_the_queue(stock):
    write_experiment(stock, "queued", steps=100000)
    text = stock.out("experiment", "create", "queued.yaml", ".")
    number = text.split("Created experiment ")[1].split()[0]
    name = f"queued ({number})"
    (job,) = [one for one in stock.table("job", "list") if one["Job Name"] == name]
    assert job["Priority"] == "42"
    stock.out("job", "update", job["ID"], "--priority", "7")
    (job,) = [one for one in stock.table("job", "list") if one["Job Name"] == name]
    assert job["Priority"] == "7"
    stock.out("job", "update", job["ID"], "--weight", "2.5")
    (entry,) = [
        one for one in json.loads(stock.out("job", "list", "--json"))["jobs"] if one["entityId"] == number
    ]
    assert entry["weight"] == 2.5
    assert "has one, 'default'" in stock.refused("job", "update", job["ID"], "--resource-pool", "gpus")
    stock.out("experiment", "kill", number)
