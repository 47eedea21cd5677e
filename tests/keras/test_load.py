"""Models of checkpoints: what is said where one cannot be loaded, and how a master's is fetched."""

from __future__ import annotations

import io
import json
import tarfile

import keras
import pytest

from det_keras.errors import CheckpointError, MasterUnavailableError
from det_keras.keras.checkpoint.load import load_model, open_checkpoint
from det_keras.protocol.api import Api
from det_keras.storage.manifest import write_manifest


def double(x):
    return x * 2


def model_with(function):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Lambda(function, output_shape=(2,))])
    model.compile("sgd", "mse")
    return model


def test_lambda_is_to_become_a_named_function(tmp_path):
    model_with(lambda x: x * 2).save(tmp_path / "model.keras")
    with pytest.raises(CheckpointError, match="write a named function in the place of the lambda"):
        load_model(tmp_path, {"double": double})
    model_with(double).save(tmp_path / "model.keras")
    with pytest.raises(CheckpointError, match="functions of your own need `custom_objects"):
        load_model(tmp_path, None)
    assert load_model(tmp_path, {"double": double}).compiled


class Master:
    """Answers for one checkpoint, in small pieces; records the largest file that was unpacked before the last piece."""

    def __init__(self, content, folder, *, breaks=False):
        self.content = content
        self.folder = folder
        self.breaks = breaks
        self.written = 0

    @property
    def api(self):
        return Api(self)

    def get(self, path):
        return {"checkpoint": {"uuid": path.rpartition("/")[2]}}

    def download(self, path, *, accept):
        for start in range(0, len(self.content), 2**16):
            yield self.content[start : start + 2**16]
            sizes = (path.stat().st_size for path in self.folder.glob("det-checkpoint~*/u-1/weights"))
            self.written = max(self.written, *sizes)
            if self.breaks:
                raise MasterUnavailableError("gone")


@pytest.fixture
def content(tmp_path):
    directory = tmp_path / "made"
    directory.mkdir()
    (directory / "metadata.json").write_text(json.dumps({"steps_completed": 1}))
    (directory / "weights").write_bytes(bytes(2**20))
    write_manifest(directory)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        archive.add(directory, arcname=".")
    return file.getvalue()


def test_archive_is_unpacked_piece_by_piece(tmp_path, monkeypatch, content):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    master = Master(content, tmp_path)
    with open_checkpoint(master, trial_id=None, uuid="u-1", best=False) as directory:
        assert {path.name for path in directory.iterdir()} == {"metadata.json", "weights", "manifest.json"}
        assert [path.name for path in directory.parent.iterdir()] == ["u-1"]
    assert master.written > 2**19
    broken = Master(content, tmp_path, breaks=True)
    with (
        pytest.raises(CheckpointError, match="'u-1' cannot be downloaded: gone"),
        open_checkpoint(broken, trial_id=None, uuid="u-1", best=False),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
