"""`det import`: what it prints, and that it can be killed at any moment."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest
from importing.stores import START_MS, Written, events, mlflow_database, mlflow_files, simple

from cli.test_terminals import on_terminal

pytestmark = pytest.mark.process
WANDB = Path(__file__).parents[1] / "importing" / "files" / "run-first001.wandb"


def runs(tracker: str, count: int = 3) -> list[Written]:
    """Return short runs; the ids of different stores differ."""
    points = [(START_MS + step, 1 / (step + 1), step) for step in range(5)]
    return [
        Written(f"{tracker}-{number}", name=f"{tracker} {number}", metrics={"loss": points})
        for number in range(count)
    ]


def test_runs_of_each_tracker_are_imported_once(cluster, tmp_path):
    events(tmp_path / "logs" / "a", (1, [simple("loss", 1.0)]))
    folder = tmp_path / "wandb" / "offline-run-20260102_030405-first001"
    folder.mkdir(parents=True)
    (folder / WANDB.name).write_bytes(WANDB.read_bytes())
    commands = {
        ("mlflow", str(mlflow_files(tmp_path, runs("files")))): 3,
        ("mlflow", str(mlflow_database(tmp_path, runs("database")))): 3,
        ("wandb", str(tmp_path / "wandb")): 1,
        ("tensorboard", str(tmp_path / "logs")): 1,
    }
    for command, count in commands.items():
        assert cluster.out("import", *command) == f"{count} new, 0 continued, 0 unchanged\n"
        assert cluster.out("import", *command) == f"0 new, 0 continued, {count} unchanged\n"
    listed = cluster.json("experiment", "list")
    assert {label for each in listed for label in each["labels"]} >= {"mlflow", "wandb", "tensorboard"}


def test_broken_runs_are_named_and_the_others_imported(cluster, tmp_path):
    store = mlflow_files(tmp_path, runs("broken"))
    file = next(store.glob("*/broken-1/metrics/loss"))
    file.write_text(f"{START_MS} 1.0 0\n{START_MS} nothing 1\n")
    done = cluster("import", "mlflow", str(store))
    assert done.returncode == 1
    assert done.stdout == "2 new, 0 continued, 0 unchanged\n"
    assert done.stderr == (
        f"{file}:2: expected `timestamp value step`, found '{START_MS} nothing 1'.\n"
        "1 run could not be imported.\n"
    )
    names = [each["name"] for each in cluster.json("experiment", "list")]
    assert "broken 0" in names
    assert "broken 1" not in names
    file.write_text(f"{START_MS} 1.0 0\n")
    assert cluster.out("import", "mlflow", str(store)) == "1 new, 0 continued, 2 unchanged\n"


@pytest.mark.parametrize("tracker", ["mlflow", "wandb", "tensorboard"])
def test_wrong_path_is_one_sentence_and_starts_no_master(det, tracker):
    done = det("import", tracker, "nowhere")
    assert done.returncode == 1
    assert re.fullmatch(r"nowhere does not exist\. Expected a directory .*\.\n", done.stderr)
    assert not (det.home / "master.json").exists()


def test_master_of_determined_is_refused_in_a_sentence(det, stub, tmp_path):
    stub.answers["/info"] = {"version": "0.38.1", "cluster_id": "c"}
    user = det.with_variables(DET_USER_TOKEN="token")
    done = user("-m", stub.url, "import", "mlflow", str(mlflow_files(tmp_path, runs("refused"))))
    assert done.returncode == 1
    assert done.stderr == (
        f"Runs can be imported only by det_keras's own master, and {stub.url} is one of Determined.\n"
    )


def test_terminal_gets_a_bar_and_the_line_at_the_end(cluster, tmp_path):
    printed = on_terminal(cluster, "import", "mlflow", str(mlflow_files(tmp_path, runs("terminal"))))
    assert re.search(r"\d/3", printed)
    assert printed.rstrip().endswith("3 new, 0 continued, 0 unchanged")


@pytest.mark.kill
def test_import_that_is_killed_at_any_moment_is_completed_without_doubles(cluster, tmp_path):
    def points(count: int, factor: int) -> list[tuple[int, float, int]]:
        return [(START_MS + step, factor * step / 7, step) for step in range(count)]

    # Long ones are sent in several parts.
    written = [
        Written(
            f"killed-{number}",
            name=f"killed {number}",
            metrics={
                "loss": points(25_000 if number % 3 == 0 else 50, number),
                "val_loss": points(20, number),
            },
        )
        for number in range(15)
    ]
    store = str(mlflow_files(tmp_path, written))
    draw = random.Random(3)

    def progress() -> tuple[int, int]:
        """Return the numbers of imported runs and of those with an end."""
        found = cluster.rest("/api/v1/experiments?name=killed")["experiments"]
        return len(found), sum(each["state"] == "STATE_COMPLETED" for each in found)

    interrupted = 0
    for _ in range(6):
        before = progress()
        process = cluster.start("import", "mlflow", store)
        while process.poll() is None and progress() == before:
            time.sleep(0.005)
        time.sleep(draw.uniform(0, 0.15))
        process.kill()
        process.communicate()
        interrupted += progress()[1] < len(written)
    assert interrupted > 2

    done = cluster.out("import", "mlflow", store)
    counts = [int(number) for number in re.findall(r"\d+", done)]
    assert sum(counts) == len(written)
    assert cluster.out("import", "mlflow", store) == f"0 new, 0 continued, {len(written)} unchanged\n"
    assert progress() == (15, 15)
    for experiment in cluster.rest("/api/v1/experiments?name=killed")["experiments"]:
        (run,) = [each for each in written if each.name == experiment["name"]]
        (trial,) = cluster.rest(f"/api/v1/experiments/{experiment['id']}/trials")["trials"]
        workloads = cluster.rest(f"/api/v1/trials/{trial['id']}/workloads?limit=-1")["workloads"]
        for group, name in (("training", "loss"), ("validation", "val_loss")):
            expected = [(step, value) for _, value, step in run.metrics[name]]
            reports = [workload[group] for workload in workloads if workload[group]]
            assert (
                sorted((report["totalBatches"], report["metrics"]["avgMetrics"][name]) for report in reports)
                == expected
            )
            summary = trial["summaryMetrics"]["avg_metrics" if group == "training" else "validation_metrics"]
            assert summary[name]["count"] == len(expected)
            assert summary[name]["sum"] == pytest.approx(sum(value for _, value in expected))
