"""Media at the master: reported, listed, served so that nothing of them is executed, and deleted."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import pytest

from det_keras import storage
from det_keras.core.media.content import text_content
from det_keras.core.media.store import MediaStore
from det_keras.master import media
from det_keras.protocol.media import EXTENSIONS, MEDIA_TYPES, file_name
from det_keras.storage import DirectoryStorage
from master.detached_runs import open_detached
from master.fakes import eventually, file_entry

EVIL = [
    "<script>alert(1)</script>",
    "../../../etc/passwd",
    "/etc/passwd",
    "\"; filename=evil.html\r\nX-Evil: 1",
    "\u202e\u05d0\u05d1 right to left",
    "Gr\u00f6\u00dfe \U0001f600",
    "a\0b",
    "x" * 300,
]  # fmt: skip


#: What no browser executes.
HARMLESS = {
    "image/png", "image/jpeg", "image/gif", "image/webp", "text/plain; charset=utf-8", "application/json",
    "application/octet-stream",
}  # fmt: skip


@pytest.fixture
def trial(world):
    return world.launch()[1]


def item(kind: str = "text", name: str = "t", step: int = 1, extension: str | None = None, **fields):
    file = file_name(kind, name, step, extension or EXTENSIONS[kind][0])
    return {"kind": kind, "name": name, "step": str(step), "size": "3", "file": file, **fields}


def put(world, trial, content: bytes = b"abc", **fields):
    """Store and report an item as a trial does; return its shape."""
    path = f"/api/v1/trials/{trial['id']}/media"
    sent = item(**fields) | {"size": str(len(content))}
    place = storage.from_config(world.master.default_storage)
    folder = world.client.get(path)["folder"]
    target = Path(place.root, folder, sent["file"])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
    world.client.post(path, sent)
    return next(shape for shape in world.client.get(path)["media"] if shape["file"] == sent["file"])


def fetch(world, trial, shape, **params):
    headers = {"Authorization": f"Bearer {world.client.token}"}
    path = f"/api/v1/trials/{trial['id']}/media/{shape['id']}/content"
    return world.http.get(path, headers=headers, params=params)


def test_item_is_listed_and_its_file_is_returned(world, trial):
    shape = put(world, trial, b"\x89PNG", kind="image", name="i", step=120, caption="a cat")
    assert (shape["kind"], shape["name"], shape["step"]) == ("image", "i", "120")
    assert (shape["caption"], shape["size"], shape["mediaType"]) == ("a cat", "4", "image/png")
    answer = fetch(world, trial, shape)
    assert (answer.status_code, answer.content) == (200, b"\x89PNG")


def test_item_that_is_reported_again_replaces_the_earlier_one(world, trial):
    first = put(world, trial, b"first", caption="one")
    second = put(world, trial, b"2nd", caption="two")
    listed = world.client.get(f"/api/v1/trials/{trial['id']}/media")["media"]
    assert [(shape["id"], shape["caption"], shape["size"]) for shape in listed] == [(first["id"], "two", "3")]
    assert fetch(world, trial, second).content == b"2nd"
    # What a browser has cached is not shown for the new item.
    assert first["version"] != second["version"]
    assert "immutable" in fetch(world, trial, second, v=second["version"]).headers["cache-control"]
    for other in ({}, {"v": first["version"]}):
        assert fetch(world, trial, second, **other).headers["cache-control"] == "no-store"


def test_list_is_by_step_and_can_be_narrowed(world, trial):
    for step in (20, 3, 100):
        put(world, trial, name="a", step=step)
    put(world, trial, kind="image", name="a", step=7)
    put(world, trial, name="b", step=9)
    path = f"/api/v1/trials/{trial['id']}/media"
    steps = [shape["step"] for shape in world.client.get(f"{path}?name=a&kind=text")["media"]]
    assert steps == ["3", "20", "100"]
    found = world.client.get(f"{path}?name=a&orderBy=ORDER_BY_DESC&limit=2")
    assert [shape["step"] for shape in found["media"]] == ["100", "20"]
    assert found["pagination"]["total"] == 4
    groups = world.client.get(f"{path}/groups")["groups"]
    assert [(one["name"], one["kind"], one["count"], one["lastStep"]) for one in groups] == [
        ("a", "image", 1, "7"), ("a", "text", 3, "100"), ("b", "text", 1, "9"),
    ]  # fmt: skip
    assert groups[1]["size"] == "9"


def test_file_is_an_image_or_a_download_whatever_is_in_it(world, trial):
    html = b"<!doctype html><svg onload=alert(1)><script>alert(1)</script>"
    for kind, extension in [(kind, one) for kind, found in EXTENSIONS.items() for one in found]:
        answer = fetch(world, trial, put(world, trial, html, kind=kind, extension=extension))
        assert answer.content == html
        assert answer.headers["content-type"] == MEDIA_TYPES[extension]
        assert answer.headers["content-type"] in HARMLESS
        is_image = answer.headers["content-type"].startswith("image/")
        assert answer.headers["content-disposition"].startswith("inline;" if is_image else "attachment;")
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_any_name_is_kept_and_leads_nowhere(world, trial):
    path = f"/api/v1/trials/{trial['id']}/media"
    for name in EVIL:
        shape = put(world, trial, kind="file", name=name, caption=name)
        assert (shape["name"], shape["caption"]) == (name, name)
        assert len(world.client.get(f"{path}?name={quote(name, safe='')}")["media"]) == 1
        answer = fetch(world, trial, shape)
        assert answer.content == b"abc"
        assert "x-evil" not in answer.headers
        assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{quote(name, safe='')}"
    assert [group["name"] for group in world.client.get(f"{path}/groups")["groups"]] == sorted(EVIL)
    # All are in one folder, under names that are none of a user's.
    root = Path(world.master.default_storage["container_path"])
    files = [file for file in root.rglob("*") if file.is_file()]
    assert {file.parent for file in files} == {root / world.client.get(path)["folder"]}
    assert all(re.fullmatch(r"[\w-]+\.bin", file.name, re.ASCII) for file in files)
    assert len(files) == len(EVIL)


MALFORMED = [
    {"kind": "svg"}, {"kind": "html", "file": file_name("text", "t", 1, "txt")}, {"name": ""},
    {"name": "x" * 501}, {"caption": "x" * 2001}, {"step": -1}, {"size": -1}, {"size": (10 << 20) + 1},
    {"file": "../../../etc/passwd"}, {"file": "/etc/passwd"}, {"file": ""},
    {"file": file_name("text", "t", 1, "html")}, {"file": file_name("text", "t", 1, "png")},
    {"file": file_name("text", "t", 1, "txt") + "\n"}, {"kind": None}, {"step": 1 << 63},
]  # fmt: skip


def test_malformed_report_is_refused(world, trial):
    path = f"/api/v1/trials/{trial['id']}/media"
    for changes in MALFORMED:
        world.client.post(path, {**item(), **changes}, status=400)
    assert world.client.get(path)["media"] == []


@pytest.mark.parametrize(("limit", "value"), [("MOST_ITEMS", 2), ("MOST_TRIAL_BYTES", 8)])
def test_full_trial_refuses_more_items_and_not_the_same_ones(world, trial, monkeypatch, limit, value):
    monkeypatch.setattr(media, limit, value)
    path = f"/api/v1/trials/{trial['id']}/media"
    for step in (1, 2):
        world.client.post(path, item(step=step))
    world.client.post(path, item(step=3), status=400)
    world.client.post(path, item(step=2))
    assert len(world.client.get(path)["media"]) == 2


def test_media_of_another_trial_and_missing_files_are_not_found(world, trial):
    shape = put(world, trial)
    other = world.launch()[1]
    answer = fetch(world, other, shape)
    assert answer.status_code == 404
    assert f"trial '{other['id']}' has no media" in answer.text
    world.client.post(f"/api/v1/trials/{trial['id']}/media", item(step=2))
    missing = world.client.get(f"/api/v1/trials/{trial['id']}/media")["media"][1]
    answer = fetch(world, trial, missing)
    assert answer.status_code == 404
    assert "cannot be read" in answer.text
    for path in ("", "/groups"):
        world.client.get(f"/api/v1/trials/99/media{path}", status=404)


def test_strangers_see_nothing(world, trial):
    shape = put(world, trial)
    path = f"/api/v1/trials/{trial['id']}/media/{shape['id']}/content"
    assert world.http.get(path).status_code == 401


def test_media_are_deleted_with_their_experiment_and_not_with_a_checkpoint(world, tmp_path):
    experiment_id, trial, allocation_id = world.launch()
    kept = put(world, world.launch()[1])
    put(world, trial)
    # A trial whose storage is not that of the config, such as a detached one.
    elsewhere = tmp_path / "elsewhere"
    section = {"type": "directory", "container_path": str(elsewhere)}
    storage_id = world.client.post(
        "/api/v1/runs/start", {"runId": trial["id"], "checkpointStorage": section}
    )["storageId"]
    folder = world.client.get(f"/api/v1/trials/{trial['id']}/media")["folder"]
    sent = item(step=2, storageId=storage_id)
    (elsewhere / folder).mkdir(parents=True)
    (elsewhere / folder / sent["file"]).write_bytes(b"abc")
    world.client.post(f"/api/v1/trials/{trial['id']}/media", sent)
    root = Path(world.master.default_storage["container_path"])
    uuid = "11111111-2222-3333-4444-555555555555"
    body = {"uuid": uuid, "taskId": trial["taskId"], "metadata": {"steps_completed": 1}}
    world.client.post("/api/v1/checkpoints", body)
    world.client.call("DELETE", "/api/v1/checkpoints", {"checkpointUuids": [uuid]})
    eventually(
        lambda: world.client.get(f"/api/v1/checkpoints/{uuid}")["checkpoint"]["state"] == "STATE_DELETED"
    )
    assert (root / folder).is_dir()
    assert (elsewhere / folder / sent["file"]).is_file()
    world.pool.finish(allocation_id)
    world.client.wait_for_state(experiment_id, "COMPLETED")
    world.client.call("DELETE", f"/api/v1/experiments/{experiment_id}")
    eventually(lambda: world.http.get(
        f"/api/v1/experiments/{experiment_id}", headers={"Authorization": f"Bearer {world.client.token}"}
    ).status_code == 404)  # fmt: skip
    assert not (root / folder).exists()
    assert not (elsewhere / folder).exists()
    assert [path.name for path in root.rglob("*.txt")] == [kept["file"]]


# --- Real trials.

TRAINING = """
import os, signal
from pathlib import Path
import keras, numpy as np
import det_keras as det

with det.keras.init() as context:
    dies = context.training.hparams["dies"] and os.environ["DET_TRIAL_RUN_ID"] == "1"

    class Log(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            weights = self.model.get_weights()[0]
            context.log_histogram("weights", weights)
            context.log_image("weights", np.clip(np.abs(weights), 0, 1), caption=f"batch {batch}")
            if dies and context._script.trained_batches == 11:
                context.core.media.flush()
                context.core.backend.flush()
                os.kill(os.getpid(), signal.SIGKILL)

        def on_epoch_end(self, epoch, logs=None):
            context.log_table("losses", {"loss": [logs["loss"]], "epoch": [epoch]})
            context.log_text("note", f"epoch {epoch} \\u202e<script>")
            context.log_confusion_matrix("classes", y[:, 0] > 0, self.model(x)[:, 0] > 0, labels=["-", "+"])
            Path("model.html").write_text(f"<script>alert({epoch})</script>")
            context.log_file("file", "model.html")
            context.log_figure("figure", Figure())

    # Like one of plotly, whose import takes long.
    Figure = type("Figure", (), {"__module__": "plotly.figure", "to_json": lambda self: '{"data": []}'})
    x = np.random.default_rng(1).normal(size=(40, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer="sgd", loss="mse")
    context.fit(model, x, y, batch_size=10, epochs=4, validate=False, verbose=0, callbacks=[Log()])
"""
CONFIG = """
entrypoint: [python3, train.py]
searcher: {{name: single, metric: loss}}
hyperparameters: {{dies: {dies}}}
min_checkpoint_period: {{batches: 3}}
reproducibility: {{experiment_seed: 3}}
max_restarts: 1
"""


def everything(real, trial_id: int):
    """Return the media of a trial by their identities: caption, file and content."""
    path = f"/api/v1/trials/{trial_id}/media"
    headers = {"Authorization": f"Bearer {real.client.token}"}
    return {
        (shape["kind"], shape["name"], int(shape["step"])): (
            shape["caption"],
            shape["file"],
            real.http.get(f"{path}/{shape['id']}/content", headers=headers).raise_for_status().content,
        )
        for shape in real.client.get(path)["media"]
    }


@pytest.mark.process
@pytest.mark.kill
def test_killed_trial_has_the_media_of_one_that_was_not(real):
    numbers = {}
    for dies in (True, False):
        files = [file_entry("train.py", TRAINING.encode())]
        config = CONFIG.format(dies=str(dies).lower()) + real.own_variables
        numbers[dies] = real.client.create(config, modelDefinition=files)
    for number in numbers.values():
        real.client.wait_for_state(number, "COMPLETED", 120)
    (killed,), (whole,) = (real.client.trials(numbers[dies]) for dies in (True, False))
    assert (killed["restarts"], whole["restarts"]) == (1, 0)
    expected = everything(real, whole["id"])
    assert everything(real, killed["id"]) == expected
    assert [key[2] for key in expected if key[:2] == ("histogram", "weights")] == list(range(1, 17))
    assert {kind for kind, _, _ in expected} == set(EXTENSIONS)
    # Each item has one row and one file.
    folders = [
        real.home.checkpoints / real.client.get(f"/api/v1/trials/{trial['id']}/media")["folder"]
        for trial in (killed, whole)
    ]
    for folder in folders:
        assert len(list(folder.iterdir())) == len(expected)
    real.client.call("DELETE", f"/api/v1/experiments/{numbers[True]}")
    eventually(lambda: not folders[0].exists())
    assert everything(real, whole["id"]) == expected


def test_detached_run_stores_media_in_its_own_storage(world, tmp_path):
    backend = open_detached(world, tmp_path, "outside")
    for text in ("first", "second"):
        store = MediaStore(DirectoryStorage(tmp_path / "storage"), backend)
        store.put("t", 3, text_content(text))
        store.close()
    backend.flush()
    trial = {"id": backend.run.trial_id}
    (shape,) = world.client.get(f"/api/v1/trials/{trial['id']}/media")["media"]
    assert fetch(world, trial, shape).content == b"second"
    (path,) = (tmp_path / "storage").rglob("*.txt")
    assert path.read_text() == "second"
    backend.close()
