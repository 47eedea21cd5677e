"""Secrets of a config, looked for in everything that a real experiment shows and leaves behind."""

from __future__ import annotations

import base64
import io
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.conftest import Det
from master.conftest import RealMaster
from master.fakes import eventually

from det_keras.storage import from_config

pytestmark = pytest.mark.process

MARK = "marked-5e9c"
CONFIG = f"""
# {MARK}-data is the token of the data
name: marked
entrypoint: python3 train.py
searcher: {{name: single, metric: val_loss, max_length: {{batches: 4}}}}
max_restarts: 0
data: {{secrets: {{token: {MARK}-data}}}}
environment:
  registry_auth: {{username: me, password: {MARK}-registry}}
"""
# The API returns variables as they are: a config that is submitted again needs them. Pages and files hide them.
VARIABLES = (
    f"  environment_variables: [WANDB_API_KEY={MARK}-variable, WHERE=postgresql://me:{MARK}-url@host/db]\n"
)
SCRIPT = """
import os, pathlib, time
import keras, numpy as np
import det_keras as det
import yaml

context = det.keras.init()
assert context.config_data["secrets"]["token"].endswith("-data")
assert yaml.safe_load(pathlib.Path("const.yaml").read_text())["name"] == "marked"
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(optimizer=context.wrap_optimizer(keras.optimizers.SGD()), loss="mse")
x, y = np.ones((8, 2), "float32"), np.ones((8, 1), "float32")
context.fit(model, x, y, batch_size=2, validation_data=(x, y))
while not (pathlib.Path(os.environ["DET_KERAS_HOME"]) / "seen").exists():
    time.sleep(0.05)
"""
# Those that answer late, never end, or need another token.
NOT_READ = ("/signals/", "/rendezvous", "/live", "/proxy/", "/det/interactive/", "/auth/")


@pytest.fixture
def shown(used_home, tmp_path) -> Iterator[RealMaster]:
    before = os.umask(0o022)
    master = RealMaster(used_home)
    yield master
    master.close()
    os.umask(before)


def create(master: RealMaster, directory: Path, config: str) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    (directory / "run.sh").write_text("exit 0")
    (directory / "run.sh").chmod(0o755)
    (directory / "const.yaml").write_text(config)
    (directory / "other.yaml").write_text(config.replace("marked\n", "other\n"))
    det = Det(master.home.root, directory)
    done = det("experiment", "create", "const.yaml", ".")
    assert done.returncode == 0, done.stderr
    return done


def unpacked(content: bytes) -> bytes:
    """Return the bytes of an answer, with those of the archive that it may be or hold."""
    found = re.search(rb'"b64Tgz": ?"([^"]+)"', content)
    archive = base64.b64decode(found[1]) if found else content
    parts = [content]
    if archive.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            parts += [members.read(name) for name in members.namelist()]
    elif archive.startswith(b"\x1f\x8b"):
        with tarfile.open(fileobj=io.BytesIO(archive)) as members:
            parts += [file.read() for member in members if (file := members.extractfile(member))]
    return b"\n".join(parts)


def answers(master: RealMaster, known: dict[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield what each call and page answers, as a user and as an administrator."""
    password = master.home.admin_password_file.read_text().strip()
    login = {"username": "admin", "password": password, "isHashed": False}
    admin = master.client.post("/api/v1/auth/login", login)["token"]
    paths = list(master.client.get("/openapi.json")["paths"].items())
    pages = [
        "",
        "/config",
        "/code",
        "/code?file=const.yaml",
        "/checkpoints",
        "/report",
        "/fork",
        "/provenance",
    ]
    asked = [path for path, calls in paths if "get" in calls]
    asked += [f"/experiments/{{experiment_id}}{page}" for page in pages]
    asked += [
        "/trials/{trial_id}",
        "/trials/{trial_id}/logs",
        "/cluster",
        "/jobs",
        "/compare?trial={trial_id}",
    ]
    for token in (master.client.token, admin):
        for path in asked:
            wanted = re.sub(r"\{(\w+)(?::\w+)?\}", lambda match: known.get(match[1], "1"), path)
            if any(part in path for part in NOT_READ):
                continue
            for accept in ("text/html", "application/json", "application/x-tar", "application/zip"):
                headers = {"Authorization": f"Bearer {token}", "Cookie": f"auth={token}", "Accept": accept}
                answer = master.http.get(wanted, headers=headers)
                assert answer.status_code < 500 or answer.status_code == 501, (wanted, answer.text)
                yield f"{accept} {wanted}", unpacked(answer.content)


def command_lines() -> bytes:
    found = b""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += file.read_bytes()
        except OSError:
            continue
    return found


def run(master: RealMaster, config: str, directory: Path) -> dict[str, str]:
    """Run an experiment to its end; return what it is called, after a look at the running processes."""
    done = create(master, directory, config)
    assert MARK not in done.stdout + done.stderr
    experiment_id = int(re.search(r"Created experiment (\d+)", done.stdout)[1])
    checkpoints = f"/api/v1/experiments/{experiment_id}/checkpoints"
    (trial,) = master.client.trials(experiment_id)

    def has_checkpoint() -> bool:
        state = master.client.experiment(experiment_id)["state"]
        assert state != "STATE_ERROR", "".join(line["message"] for line in master.client.log(trial["id"]))
        return bool(master.client.get(checkpoints)["checkpoints"])

    eventually(has_checkpoint, 120)
    assert MARK.encode() not in command_lines()
    (master.home.root / "seen").touch()
    master.client.wait_for_state(experiment_id, "COMPLETED", 120)
    (checkpoint,) = master.client.get(checkpoints)["checkpoints"]
    return {
        "experiment_id": str(experiment_id),
        "trial_id": str(trial["id"]),
        "task_id": trial["taskId"],
        "allocation_id": f"{trial['taskId']}.1",
        "uuid": checkpoint["uuid"],
    }


def test_marked_secret_is_in_no_answer_page_archive_log_command_line_or_file(shown, tmp_path):
    known = run(shown, CONFIG, tmp_path / "context")
    read = dict(answers(shown, known))
    assert b"other.yaml" in read["application/x-tar /checkpoints/" + known["uuid"]]
    assert b"train.py" in read[f"application/json /api/v1/experiments/{known['experiment_id']}/model_def"]
    assert [name for name, content in read.items() if MARK.encode() in content] == []
    files = [path for path in shown.home.root.rglob("*") if path.is_file()]
    read = {str(path.relative_to(shown.home.root)): unpacked(path.read_bytes()) for path in files}
    assert any(name.startswith("contexts/") for name in read)
    # The database has what the next run of the trial needs.
    with_mark = [name for name, content in read.items() if MARK.encode() in content]
    assert [name for name in with_mark if not name.startswith("master.db")] == []


def test_marked_variable_is_on_no_page_and_in_no_code(shown, tmp_path):
    known = run(shown, CONFIG + VARIABLES, tmp_path / "context")
    # The other calls, and the page for forks, return configs that can be submitted again.
    files = ("model_def", "context_directory", "/logs")
    for name, content in answers(shown, known):
        is_submitted_again = "/api/" in name and not any(part in name for part in files)
        if not is_submitted_again and "/fork" not in name:
            assert MARK.encode() not in content, name
    for path in (shown.home.root / "checkpoints").rglob("*"):
        assert not path.is_file() or MARK.encode() not in path.read_bytes(), path


def test_code_in_a_checkpoint_is_readable_by_its_owner_only(shown, tmp_path):
    known = run(shown, CONFIG, tmp_path / "context")
    code = from_config({"type": "directory", "container_path": str(shown.home.checkpoints)})
    with code.raw_path(known["uuid"]) as directory:
        modes = {
            path.name: path.stat().st_mode & 0o777 for path in (directory / "code", *directory.glob("code/*"))
        }
    wanted = {"code": 0o700, "run.sh": 0o700, "train.py": 0o600, "const.yaml": 0o600, "other.yaml": 0o600}
    assert {name: modes[name] for name in wanted} == wanted
