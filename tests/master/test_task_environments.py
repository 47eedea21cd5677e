"""Environments of trials and jobs of a real master."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from launch.tasks import write_wheel

from det_keras.launch.environments.uv import MISSING, find_uv
from det_keras.master import process
from master.fakes import FakePool, eventually, file_entry

from .test_jobs import command, create, task_log

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_uv(os.environ["PATH"]) is None, reason="needs uv: the extra `environments`"),
]
SHOW = "import importlib.metadata as m, sys; print(m.version('pydantic'), sys.prefix, flush=True)\n"


@pytest.fixture
def wheels(tmp_path) -> Path:
    """Wheels of a package, and of an old version of one that the master itself needs."""
    write_wheel(tmp_path, "brush", "2.0")
    write_wheel(tmp_path, "pydantic", "1.0")
    return tmp_path


def config(wheels: Path, environment: str = "{}", **fields: str) -> str:
    more = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return (
        "entrypoint: python3 train.py\nsearcher: {name: single, metric: loss}\nmax_restarts: 0\n"
        f"environment: {environment}\n{more}"
    ).replace("WHEELS", str(wheels))


def printed(real, trial) -> list[str]:
    return [line["log"].rstrip("\n") for line in real.client.log(trial["id"]) if line["source"] == "task"]


def run_trial(real, text: str, script: str, **files: str) -> list[str]:
    """Run a trial to its end; return what it printed."""
    entries = [file_entry("train.py", script.encode())]
    entries += [
        file_entry(name.replace("__", "-") + ".sh", content.encode()) for name, content in files.items()
    ]
    experiment_id = real.client.create(text, modelDefinition=entries)
    trial = real.client.trials(experiment_id)[0]
    eventually(lambda: real.client.trial(trial["id"])["endTime"])
    return printed(real, trial)


ASKED = "{pip: [brush, --no-index, --find-links WHEELS]}"


def test_trial_imports_what_its_config_asks_for(shared, wheels):
    lines = run_trial(shared, config(wheels, ASKED), "import brush, keras; print(brush.VERSION)\n")
    assert lines[-1] == "2.0"
    assert any(line.startswith("Built the environment") and "brush 2.0" in line for line in lines)
    assert len([path for path in shared.home.environments.iterdir() if path.is_dir()]) == 1


def test_job_imports_what_its_config_asks_for(shared, wheels):
    environment = {"pip": ["brush", "--no-index", f"--find-links {wheels}"]}
    job = {
        "entrypoint": ["python3", "-c", "import brush; print('brush', brush.VERSION)"],
        "resources": {"slots": 0},
        "environment": environment,
    }
    task_id = create(shared.client, job)
    eventually(lambda: command(shared.client, task_id)["state"] == "STATE_TERMINATED")
    assert "brush 2.0" in [line["log"].rstrip("\n") for line in task_log(shared.client, task_id)]
    assert command(shared.client, task_id)["exitStatus"] == "exit code 0"


def test_hook_that_downgrades_a_package_of_the_master_changes_only_its_trial(real, wheels):
    mine = importlib.metadata.version("pydantic")
    hook = f"pip install -q --no-index --no-deps --find-links {wheels} 'pydantic<2'\n"
    lines = run_trial(real, config(wheels), SHOW, startup__hook=hook)
    assert lines[-1].startswith("1.0 ")
    assert importlib.metadata.version("pydantic") == mine

    (later,) = run_trial(real, config(wheels), SHOW)
    assert later.startswith(f"{mine} ")
    # The next start of the master imports pydantic.
    process.stop(real.home)
    real.start()
    assert real.client.get("/api/v1/master")


def test_environment_that_cannot_be_built_ends_the_trial_without_a_restart(shared, wheels):
    text = config(wheels, "{pip: [brush>=9, --no-index, --find-links WHEELS]}").replace(
        "max_restarts: 0", "max_restarts: 5"
    )
    experiment_id = shared.client.create(text)
    shared.client.wait_for_state(experiment_id, "ERROR")
    trial = shared.client.trials(experiment_id)[0]
    assert shared.client.trial(trial["id"])["restarts"] == 0
    assert any("brush>=9" in line["log"] for line in shared.client.log(trial["id"]))


def test_failure_of_the_network_is_counted_as_a_restart(shared, wheels):
    variables = "['UV_DEFAULT_INDEX=http://127.0.0.1:9/simple', UV_HTTP_RETRIES=0]"
    environment = f"{{pip: [brush], environment_variables: {variables}}}"
    experiment_id = shared.client.create(config(wheels, environment).replace("restarts: 0", "restarts: 1"))
    shared.client.wait_for_state(experiment_id, "ERROR")
    trial = shared.client.trials(experiment_id)[0]
    assert shared.client.trial(trial["id"])["restarts"] == 1


def test_interpreter_that_the_master_does_not_find_is_refused_at_submission(shared, wheels):
    body = {"config": config(wheels, "{python: /no/python3}")}
    message = shared.client.post("/api/v1/experiments", body, status=400)["error"]["error"]
    assert "'/no/python3'" in message


class PoolWithoutUv(FakePool):
    def refusal(self, request):
        return MISSING if request.needs_packages else None


def test_missing_uv_is_refused_at_submission(make_world):
    world = make_world(PoolWithoutUv())
    job = {"entrypoint": ["a"], "environment": {"pip": ["brush"]}}
    answer = world.client.call("POST", "/api/v1/commands", {"config": job}, status=400)
    assert "pip install 'det_keras[environments]'" in str(answer)
    create(world.client, {"entrypoint": ["a"]})
