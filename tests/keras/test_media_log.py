"""Media that a Keras script logs: at the right step, on the chief only, in a run directory."""

from __future__ import annotations

import json
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import det_keras as det
from det_keras.storage import DirectoryStorage

X = np.random.default_rng(3).normal(size=(40, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def make_model():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="dense")], name="model")
    model.compile(optimizer="sgd", loss="mse")
    return model


def listed(run_dir: Path):
    return [json.loads(line) for line in (run_dir / "media.jsonl").read_text().splitlines()]


def contents(run_dir: Path):
    """Return the content of each item, by its identity."""
    return {
        (row["kind"], row["name"], row["step"]): (run_dir / "media" / row["file"]).read_bytes()
        for row in listed(run_dir)
    }


class Notes(keras.callbacks.Callback):
    """Logs at every event, without a step."""

    def __init__(self, context, stop_at=None):
        super().__init__()
        self.context = context
        self.stop_at = stop_at

    def on_train_begin(self, logs=None):
        self.context.log_text("train begin", "")

    def on_train_batch_begin(self, batch, logs=None):
        self.context.log_text("batch begin", str(batch))

    def on_train_batch_end(self, batch, logs=None):
        self.context.log_text("batch end", str(batch))
        self.context.log_histogram("weights", self.model.get_weights()[0])
        if self.stop_at is not None and self.context._script.trained_batches == self.stop_at:
            # What a kill would leave: everything logged so far is stored.
            self.context.core.media.flush()
            raise InterruptedError

    def on_epoch_end(self, epoch, logs=None):
        self.context.log_text("epoch end", str(epoch))


def test_step_is_the_number_of_batches_trained_so_far(tmp_path):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        context.log_text("before", "")
        for _ in range(2):
            context.fit(
                make_model(), X, Y, batch_size=10, epochs=2, validate=False, verbose=0,
                callbacks=[Notes(context)],
            )  # fmt: skip
        context.log_text("after", "")
        context.log_text("own", "", step=np.int64(5))
    steps = {}
    for row in listed(tmp_path):
        steps.setdefault(row["name"], []).append(row["step"])
    assert steps == {
        "before": [0],
        "train begin": [0, 8],
        "batch begin": list(range(16)),
        "batch end": list(range(1, 17)),
        "weights": list(range(1, 17)),
        "epoch end": [4, 8, 12, 16],
        "after": [16],
        "own": [5],
    }


def test_resumed_run_has_the_media_of_an_undisturbed_one(tmp_path):
    def train(run_dir, stop_at=None):
        with det.keras.init(
            run_dir=run_dir, seed=1, config={"min_checkpoint_period": {"batches": 3}}
        ) as context:
            context.log_text("before", "")
            context.fit(
                make_model(), X, Y, batch_size=10, epochs=4, validate=False, verbose=0,
                callbacks=[Notes(context, stop_at)],
            )  # fmt: skip
            context.log_text("after", "")

    train(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        train(tmp_path / "resumed", stop_at=8)
    first = contents(tmp_path / "resumed")
    assert ("text", "batch end", 8) in first
    train(tmp_path / "resumed")
    resumed = contents(tmp_path / "resumed")
    # Each process calls `on_train_begin`, at the batch at which it begins.
    (again,) = (key for key in resumed if key[1] == "train begin" and key[2] > 0)
    assert 0 < again[2] < 8
    del resumed[again]
    assert resumed == contents(tmp_path / "whole")
    rows = listed(tmp_path / "resumed")
    assert len(rows) == len({(row["kind"], row["name"], row["step"]) for row in rows})
    files = {path.name for path in (tmp_path / "resumed" / "media").iterdir()}
    assert files == {row["file"] for row in rows}


def test_checkpoint_is_stored_after_the_media_before_it(tmp_path, monkeypatch):
    store_file, seen = DirectoryStorage.store_file, []

    def store_slowly(self, name, source):
        time.sleep(0.05)
        store_file(self, name, source)

    monkeypatch.setattr(DirectoryStorage, "store_file", store_slowly)
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        store_path = context.core.checkpoint.storage.store_path

        def note(uuid, hashes=None):
            seen.append({row["step"] for row in listed(tmp_path) if row["name"] == "batch end"})
            return store_path(uuid, hashes)

        monkeypatch.setattr(context.core.checkpoint.storage, "store_path", note)
        context.fit(
            make_model(), X, Y, batch_size=10, epochs=2, validate=False, verbose=0,
            callbacks=[Notes(context)],
        )  # fmt: skip
    assert set(range(1, 5)) <= seen[0]
    assert seen[-1] == set(range(1, 9))


def test_every_kind_is_logged_with_tensors_too(tmp_path, monkeypatch):
    pixels = np.random.default_rng(5).integers(0, 256, (9, 6, 3), np.uint8)
    path = tmp_path / "notes.html"
    path.write_text("<script>alert(1)</script>")
    go = pytest.importorskip("plotly.graph_objects")
    with det.keras.init(run_dir=tmp_path / "run", seed=1) as context:
        context.log_image("image", tf.constant(pixels), caption="noise")
        context.log_figure("figure", go.Figure())
        context.log_table("table", tf.eye(2), columns=["a", "b"])
        context.log_histogram("histogram", tf.constant([1.0, 2.0, 4.0]), bins=2)
        context.log_text("text", "\u202etext")
        context.log_file("file", path)
        context.log_confusion_matrix("matrix", tf.constant([0, 1]), tf.constant([1, 1]), labels=["a", "b"])
    found = {kind: content for (kind, _, _), content in contents(tmp_path / "run").items()}
    np.testing.assert_array_equal(tf.io.decode_png(found["image"]).numpy(), pixels)
    assert json.loads(found["table"])["rows"] == [[1.0, 0.0], [0.0, 1.0]]
    assert json.loads(found["histogram"])["counts"] == [2, 1]
    assert json.loads(found["confusion_matrix"])["counts"] == [[0, 1], [0, 1]]
    assert found["text"].decode() == "\u202etext"
    assert found["file"] == path.read_bytes()
    assert "data" in json.loads(found["figure"])


def test_wrong_name_step_or_caption_is_refused(tmp_path):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        for name in ("", "x" * 501, 3, None, "\ud800"):
            with pytest.raises(ValueError, match="`name` must be"):
                context.log_text(name, "x")
        for step in (-1, 1.5, True, "1", 1 << 63):
            with pytest.raises(ValueError, match="`step` must be"):
                context.log_text("t", "x", step=step)
        for caption in (3, "x" * 2001, "\udfff"):
            with pytest.raises(ValueError, match="`caption` must be"):
                context.log_image("i", X[:, :, None], caption=caption)
        context.log_text("x" * 500, "")
    assert len(listed(tmp_path)) == 1


def test_closed_context_logs_no_more(tmp_path):
    context = det.keras.init(run_dir=tmp_path, seed=1)
    context.close()
    with pytest.raises(det.errors.DetError, match="context that is closed"):
        context.log_text("t", "x")


def test_ranks_other_than_the_chief_log_nothing(tmp_path, monkeypatch):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        with monkeypatch.context() as patch:
            patch.setattr(context.core, "distributed", Other.__new__(Other))
            # Not even converted, which takes time.
            context.log_image("i", "nowhere.png")
            context.log_text("t", "of rank 1")
        context.log_text("t", "of rank 0", step=1)
    assert list(contents(tmp_path).values()) == [b"of rank 0"]


class Other(det.core.DistributedContext):
    """A worker that is not the chief."""

    is_chief = False


def test_failing_media_do_not_end_a_training(tmp_path, caplog):
    with det.keras.init(run_dir=tmp_path, seed=1) as context:
        # The folder of the media cannot be made.
        (tmp_path / "media").write_text("")
        context.fit(
            make_model(), X, Y, batch_size=10, epochs=1, validate=False, verbose=0,
            callbacks=[Notes(context)],
        )  # fmt: skip
        assert context._script.trained_batches == 4
    warned = [record for record in caplog.records if "could not be stored" in record.getMessage()]
    assert [record.levelname for record in warned if record.levelname == "WARNING"] == ["WARNING"]
