"""Other programs that record trainings: under `context.fit` they record what they record under `model.fit`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from environments import Environment

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.process,
    # They have no packages for some versions of Python.
    pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the trackers are tried with Python 3.11"),
]
TRACKERS = {"mlflow": "mlflow", "comet": "comet_ml", "clearml": "clearml", "dvclive": "dvclive"}


@pytest.fixture(scope="module")
def environment(built, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trackers")
    environment = Environment.create(folder, "tensorflow-cpu>=2.18,<2.19", built["wheel"], *TRACKERS.values())
    # What they keep in the home of the user.
    environment.variables.update(HOME=str(folder), COMET_LOGGING_CONSOLE="error", CUDA_VISIBLE_DEVICES="-1")
    return environment


@pytest.mark.parametrize("kind", ["files", "database"])
def test_store_of_mlflow_is_imported_as_mlflow_reads_it(environment, kind):
    folder = environment.folder / f"store-{kind}"
    folder.mkdir()
    script = Path(__file__).parents[1] / "importing" / "oracle_mlflow.py"
    assert environment.run("python", script, folder, kind).stdout.splitlines() == ["read as MLflow reads it"]


@pytest.mark.parametrize("tracker", TRACKERS)
def test_tracker_records_what_it_records_of_plain_keras(environment, tracker):
    script = Path(__file__).with_name("tracked.py")
    recorded = {
        way: json.loads(
            environment.run(
                "python", script, tracker, way, environment.folder / f"{tracker}-{way}"
            ).stdout.splitlines()[-1]
        )
        for way in ("plain", "managed")
    }
    assert recorded["plain"]
    assert "loss" in json.dumps(recorded["plain"])
    assert recorded["managed"] == recorded["plain"]
    if tracker == "mlflow":
        assert [status for status, _, _ in recorded["managed"]] == ["FINISHED"]
