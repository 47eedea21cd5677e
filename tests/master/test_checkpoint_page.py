"""The page of a checkpoint: its files, where they are, and the lines that load its model."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
import subprocess
import sys
import uuid

import numpy as np
import pytest

from det_keras import storage
from master.fakes import SINGLE
from master.test_web_pages import flat, page, report


@pytest.fixture
def checkpoint(world, tmp_path):
    """Return the UUID of a checkpoint that a trial reported, its trial, and its directory."""
    config = SINGLE + f"checkpoint_storage: {{type: directory, container_path: {tmp_path}}}\n"
    _, trial, _ = world.launch(config + "hyperparameters: {lr: 0.25}\n")
    name = str(uuid.uuid4())
    place = storage.from_config({"type": "directory", "container_path": str(tmp_path)})
    with place.store_path(name) as directory:
        (directory / "model.keras").write_bytes(b"abc")
        (directory / "<b>.txt").write_bytes(b"x")
    report(world, trial, 10, loss=0.125)
    body = {
        "uuid": name, "taskId": trial["taskId"], "metadata": {"steps_completed": 10},
        "resources": place.list_files(name),
    }  # fmt: skip
    world.client.post("/api/v1/checkpoints", body)
    return name, trial["id"], tmp_path / name


def test_checkpoint_page_shows_files_place_and_metrics(world, checkpoint):
    name, trial, directory = checkpoint
    text = flat(page(world, f"/checkpoints/{name}").text)
    for path in directory.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert (
            f'<td>{html.escape(path.name)}</td><td class="number" title="{path.stat().st_size} bytes">'
            in text
        )
        assert f"<code>{digest}</code>" in text
    assert f"<dd><code>{directory}</code></dd>" in text
    assert '<td>validation</td><td>loss</td><td class="number">0.125</td>' in text
    assert '<dt>lr</dt><dd class="number">0.25</dd>' in text
    assert f'href="/checkpoints/{name}"' in page(world, f"/trials/{trial}").text
    assert "det.keras.init()" in text


def test_files_have_the_digests_of_the_manifest(world, checkpoint):
    name, _, directory = checkpoint
    answer = world.client.get(f"/api/v1/checkpoints/{name}/files")
    manifest = (directory / "manifest.json").read_bytes()
    assert answer["manifestSha256"] == hashlib.sha256(manifest).hexdigest()
    hashes = {path: entry["sha256"] for path, entry in json.loads(manifest)["files"].items()}
    assert {file["path"]: file["sha256"] for file in answer["files"]} == {
        **hashes,
        "manifest.json": answer["manifestSha256"],
    }


def test_checkpoint_whose_manifest_cannot_be_read_is_still_shown(world, checkpoint):
    name, _, directory = checkpoint
    for content in (b"{", b"[]", b'{"files": {"a": 1}}', None):
        (directory / "manifest.json").unlink()
        if content is not None:
            (directory / "manifest.json").write_bytes(content)
        assert world.client.get(f"/api/v1/checkpoints/{name}/files")["problem"]
        assert "model.keras" in page(world, f"/checkpoints/{name}").text


def test_address_of_the_page_still_downloads_for_programs(world, checkpoint):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    answer = world.http.get(f"/checkpoints/{checkpoint[0]}", headers={**headers, "Accept": "application/zip"})
    assert answer.headers["content-type"] == "application/zip"
    assert world.http.get(f"/checkpoints/{checkpoint[0]}", headers=headers).status_code == 415


def test_checkpoint_that_is_not_there_is_an_error_page(world):
    page(world, f"/checkpoints/{uuid.uuid4()}", status=404)
    page(world, "/checkpoints/none", status=400)


def test_checkpoint_without_a_model_of_keras_has_the_command_that_downloads_it(world, checkpoint):
    name = checkpoint[0]
    body = {"checkpoints": [{"uuid": name, "resources": {"resources": {"state.npz": 3}}}]}
    world.client.call("PATCH", "/api/v1/checkpoints", body)
    text = page(world, f"/checkpoints/{name}").text
    assert f'data-copy="det checkpoint download {name}"' in text
    assert "det.keras.init()" not in text


# It trains, and then runs what it reads: TensorFlow is imported once.
SCRIPT = """\
import sys
import keras, numpy as np
import det_keras as det
with det.keras.init(master={url!r}, seed=1) as context:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile(context.wrap_optimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.arange(24, dtype="float32").reshape(8, 3) / 24
    y = x.sum(1, keepdims=True)
    context.fit(model, x, y, batch_size=4, epochs=1, verbose=0, validation_data=(x, y))
np.savez({trained!r}, *model.get_weights())
print("trained", flush=True)
found = {{}}
exec(sys.stdin.read(), found)
np.savez({loaded!r}, *found["model"].get_weights())
"""


@pytest.mark.process
def test_lines_of_the_page_load_the_model_that_was_trained(real, tmp_path):
    trained, loaded = str(tmp_path / "trained.npz"), str(tmp_path / "loaded.npz")
    code = SCRIPT.format(url=real.running.url, trained=trained, loaded=loaded)
    environ = {**os.environ, "DET_KERAS_HOME": str(real.home.root)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout.readline() == "trained\n"
        (experiment,) = real.client.get("/api/v1/experiments")["experiments"]
        stored = real.client.get(f"/api/v1/experiments/{experiment['id']}/checkpoints")["checkpoints"]
        name = max(stored, key=lambda shape: shape["metadata"]["steps_completed"])["uuid"]
        headers = {"Accept": "text/html", "Cookie": f"auth={real.client.token}"}
        text = real.http.get(f"/checkpoints/{name}", headers=headers).text
        shown = re.search(r'<pre class="source" id="loading"[^>]*>(.*?)</pre>', text, re.DOTALL)[1]
        lines = html.unescape(shown)
        assert html.unescape(re.search(r'data-copy="([^"]*)"', text)[1]) == lines
        assert len(lines.splitlines()) == 2
        script.communicate(lines)
    assert script.returncode == 0
    with np.load(trained) as before, np.load(loaded) as after:
        assert before.files == after.files == [f"arr_{index}" for index in range(4)]
        for key in before.files:
            np.testing.assert_array_equal(before[key], after[key])
    # No master started the training: it may run in a repository of the user.
    (trial,) = real.client.trials(experiment["id"])
    record = real.client.get(f"/api/v1/trials/{trial['id']}/provenance")["provenance"]
    assert record["keras"].startswith("3.")
    assert record["tensorflow"].startswith("2.")
    assert "repository" in record
    # The layers come in a report of their own.
    model = record["model"]
    assert [layer["class"] for layer in model["layers"]] == ["Dense", "Dense"]
    assert (model["trainable"], model["frozen"], model["bytes"]) == (11, 0, 44)
