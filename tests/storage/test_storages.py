"""The contract of a checkpoint storage; every kind runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError

KINDS = {
    "directory": lambda root: {"type": "directory", "container_path": str(root)},
    "shared_fs": lambda root: {"type": "shared_fs", "host_path": str(root), "storage_path": "inner/place"},
}


@pytest.fixture(params=sorted(KINDS))
def store(request, tmp_path):
    return storage.from_config(KINDS[request.param](tmp_path / "root"))


def put(store, files=(("a.txt", b"alpha"), ("sub/b.bin", b"\x00\x01"))):
    uuid = str(uuid4())
    with store.store_path(uuid) as directory:
        for name, content in files:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
    return uuid


def test_stored_files_come_back_verified(store):
    uuid = put(store)
    assert store.exists(uuid)
    with store.restore_path(uuid) as directory:
        assert (directory / "sub/b.bin").read_bytes() == b"\x00\x01"
    files = store.list_files(uuid)
    assert files["a.txt"] == 5
    assert files["sub/"] == 0
    assert "manifest.json" in files


def test_error_inside_the_block_leaves_nothing(store):
    uuid = str(uuid4())

    def fail_half_way():
        with store.store_path(uuid) as directory:
            (directory / "a").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert not store.exists(uuid)
    assert list(store.root.iterdir()) == []


def test_unknown_checkpoint_is_named(store):
    uuid = str(uuid4())
    with pytest.raises(CheckpointError, match=uuid), store.restore_path(uuid):
        pass
    assert store.list_files(uuid) == {}


@pytest.mark.parametrize("name", ["../escape", "nonsense", "", "/etc"])
def test_only_uuids_name_checkpoints(store, name):
    with pytest.raises(CheckpointError, match="UUID"):
        store.exists(name)


def test_directory_without_manifest_is_no_checkpoint(store):
    uuid = put(store)
    (store.root / uuid / "manifest.json").unlink()
    assert not store.exists(uuid)
    with pytest.raises(CheckpointError, match="no manifest"), store.restore_path(uuid):
        pass


@settings(max_examples=30, deadline=None)
@given(content=st.binary(min_size=1, max_size=200), place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_is_found(tmp_path_factory, content, place, bit):
    store = storage.DirectoryStorage(tmp_path_factory.mktemp("flip"))
    uuid = put(store, [("data.bin", content)])
    path = store.root / uuid / "data.bin"
    altered = bytearray(content)
    altered[place % len(content)] ^= 1 << bit
    path.write_bytes(altered)
    with pytest.raises(CheckpointError, match=r"data\.bin"), store.restore_path(uuid):
        pass


def test_truncated_and_missing_files_are_found(store):
    uuid = put(store)
    path = store.root / uuid / "a.txt"
    path.write_bytes(b"alp")
    with pytest.raises(CheckpointError, match="3 bytes"), store.restore_path(uuid):
        pass
    path.unlink()
    with pytest.raises(CheckpointError, match="missing"), store.restore_path(uuid):
        pass


def test_partial_delete_keeps_the_rest_restorable(store):
    uuid = put(store)
    left = store.delete(uuid, ["sub/**"])
    assert "a.txt" in left
    assert "sub/b.bin" not in left
    with store.restore_path(uuid) as directory:
        assert (directory / "a.txt").read_bytes() == b"alpha"


def test_full_delete_leaves_nothing(store):
    uuid = put(store)
    assert store.delete(uuid) == {}
    assert store.delete(uuid) == {}
    assert list(store.root.iterdir()) == []


@pytest.mark.parametrize("glob", ["", "../*", "/etc/*"])
def test_globs_stay_inside_the_checkpoint(store, glob):
    uuid = put(store)
    with pytest.raises(ValueError, match="pattern"):
        store.delete(uuid, [glob])


def test_storing_twice_under_one_uuid_keeps_the_first(store):
    uuid = put(store)
    with pytest.raises(FileExistsError), store.store_path(uuid) as directory:
        (directory / "a.txt").write_text("other")
    with store.restore_path(uuid) as directory:
        assert (directory / "a.txt").read_bytes() == b"alpha"


@pytest.mark.process
@pytest.mark.kill
def test_what_a_killed_process_left_is_removed(tmp_path):
    code = (
        "import os, sys\nfrom det_keras.storage import DirectoryStorage\n"
        f"with DirectoryStorage(sys.argv[1]).store_path('{uuid4()}') as d:\n"
        "    (d / 'half').write_text('x'); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env=dict(os.environ))
    assert len(list(tmp_path.iterdir())) == 1
    uuid = put(storage.DirectoryStorage(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [uuid]


@pytest.mark.parametrize("fails", ["fsync", "rename"])
def test_failing_disk_leaves_the_storage_as_it_was(store, monkeypatch, fails):
    good = put(store)

    def fail(*_):
        raise OSError(28, "No space left on device")

    if fails == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="No space left"):
        put(store)
    monkeypatch.undo()
    assert [path.name for path in store.root.iterdir()] == [good]


def test_storage_path_outside_of_the_host_path_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="storage_path"):
        storage.from_config({"type": "shared_fs", "host_path": str(tmp_path / "a"), "storage_path": "../b"})


def test_remote_storage_says_what_to_use_instead():
    with pytest.raises(ConfigError, match="container_path"):
        storage.from_config({"type": "s3", "bucket": "b"})


def test_manifest_lists_sizes_and_hashes(tmp_path):
    store = storage.DirectoryStorage(tmp_path)
    uuid = put(store)
    files = json.loads((tmp_path / uuid / "manifest.json").read_text())["files"]
    assert files["a.txt"]["size"] == 5
    assert len(files["a.txt"]["sha256"]) == 64


@pytest.mark.parametrize("inner", [None, "a/b", "/host/shared/a/b"])
def test_shared_file_system_is_found_where_a_container_mounts_it(inner, tmp_path):
    section = {"type": "shared_fs", "host_path": "/host/shared", "storage_path": inner}
    store = storage.from_config(section, mount=tmp_path)
    assert store.root == tmp_path / ("a/b" if inner else "")
    assert storage.from_config(section).root == Path("/host/shared") / ("a/b" if inner else "")
