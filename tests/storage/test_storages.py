"""The contract of a checkpoint storage; every kind runs it."""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest
from faulty_proxy import proxied
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras import storage
from det_keras.errors import CheckpointError, ConfigError, StorageError
from det_keras.storage.object_restore import _fetch_all


@pytest.fixture
def store(place):
    return place.store()


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


def test_finished_checkpoints_are_listed_whoever_stored_them(store, tmp_path):
    assert store.checkpoints() == []
    uuids = sorted(put(store) for _ in range(3))
    (tmp_path / "a").write_text("a")
    store.store_file("events/file", tmp_path / "a")
    store.store_file(f"{uuid4()}/file-without-a-manifest", tmp_path / "a")
    assert store.checkpoints() == uuids
    store.delete(uuids[1])
    assert store.checkpoints() == [uuids[0], uuids[2]]


def test_manifest_is_read_without_the_other_files(store):
    uuid = put(store)
    content = store.manifest(uuid)
    assert json.loads(content)["files"]["a.txt"] == {
        "size": 5,
        "sha256": hashlib.sha256(b"alpha").hexdigest(),
    }
    assert len(content) == store.list_files(uuid)["manifest.json"]
    assert store.location(uuid).endswith(f"/{uuid}")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        store.manifest(str(uuid4()))


def test_error_inside_the_block_leaves_nothing(store, place):
    uuid = str(uuid4())

    def fail_half_way():
        with store.store_path(uuid) as directory:
            (directory / "a").write_text("x")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert not store.exists(uuid)
    assert place.objects() == {}


def test_error_between_streams_leaves_nothing(store, place):
    uuid = str(uuid4())

    def fail_half_way():
        with store.store_streams(uuid) as target:
            with target.open("a") as file:
                file.write(b"x" * (40 << 20))
            with target.open("b") as file:
                file.write(b"y" * (40 << 20))
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert not store.exists(uuid)
    assert place.objects() == {}
    assert place.unfinished() == []


def archive_of(directory):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(directory, ".")
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


@pytest.mark.parametrize("size", [0, 1, (32 << 20) - 1, 32 << 20, (32 << 20) + 1, 70_000_003])
def test_streams_become_files_of_any_size(store, tmp_path, size):
    """Sizes around a part of an object store; written in uneven pieces."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("x = 1")
    content, uuid = os.urandom(1 << 20) * (size // (1 << 20) + 1), str(uuid4())
    with store.store_streams(uuid) as target:
        with target.open("deep/data.bin") as file:
            for start in range(0, size, 3_000_001):
                file.write(memoryview(content)[start : min(start + 3_000_001, size)])
        assert file.sha256 == hashlib.sha256(content[:size]).hexdigest()
        target.unpack(archive_of(tmp_path / "code"), "code")
    assert store.list_files(uuid)["deep/data.bin"] == size
    with store.restore_path(uuid) as directory:
        assert (directory / "deep/data.bin").read_bytes() == content[:size]
        assert (directory / "code/train.py").read_text() == "x = 1"


def test_memory_may_change_after_a_write(store):
    memory, uuid = bytearray(b"before"), str(uuid4())
    with store.store_streams(uuid) as target, target.open("a") as file:
        file.write(memoryview(memory))
        memory[:] = b"after!"
    with store.restore_path(uuid) as directory:
        assert (directory / "a").read_bytes() == b"before"


def test_empty_directories_come_back(store):
    uuid = str(uuid4())
    with store.store_path(uuid) as directory:
        (directory / "empty/inside").mkdir(parents=True)
    with store.restore_path(uuid) as directory:
        assert (directory / "empty/inside").is_dir()


def test_restored_files_are_those_that_were_stored_and_no_others(store):
    uuid = put(store)
    with store.restore_path(uuid) as directory:
        files = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    assert files == {"a.txt", "sub/b.bin", "manifest.json"}


def test_storage_works_in_another_process(store):
    uuid = put(store)
    assert pickle.loads(pickle.dumps(store)).exists(uuid)


def test_files_beside_checkpoints_are_mirrored_replaced_and_deleted(store, place, tmp_path):
    uuid = put(store)
    before = place.objects()
    source, copy = tmp_path / "events", tmp_path / "copy"
    assert not store.mirror_files("cluster/events", copy)
    for text in ("one", "other text"):
        source.write_text(text)
        store.store_file("cluster/events/trial/file", source)
        assert store.read_file("cluster/events/trial/file") == source.read_bytes()
        assert store.mirror_files("cluster/events", copy)
        assert (copy / "trial/file").read_text() == text
    store.delete_files("cluster/events")
    with pytest.raises(OSError, match="file"):
        store.read_file("cluster/events/trial/file")
    assert place.objects().keys() - {"cluster"} == before.keys()
    assert store.exists(uuid)
    assert store.find_orphans(0.0) == []


@pytest.mark.parametrize("name", ["", "/etc/x", "../x"])
def test_files_stay_inside_the_storage(store, name, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="relative path"):
        store.store_file(name, tmp_path / "file")
    with pytest.raises(ValueError, match="relative path"):
        store.read_file(name)


def test_unknown_checkpoint_is_named(store):
    uuid = str(uuid4())
    with pytest.raises(CheckpointError, match=uuid), store.restore_path(uuid):
        pass
    assert store.list_files(uuid) == {}


@pytest.mark.parametrize("name", ["../escape", "nonsense", "", "/etc"])
def test_only_uuids_name_checkpoints(store, name):
    with pytest.raises(CheckpointError, match="UUID"):
        store.exists(name)


def test_directory_without_manifest_is_no_checkpoint(store, place):
    uuid = put(store)
    place.remove(f"{uuid}/manifest.json")
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


def test_one_flipped_bit_is_found_in_every_kind(store, place):
    uuid = put(store)
    place.put(f"{uuid}/a.txt", b"alphb")
    with pytest.raises(CheckpointError, match=r"`a\.txt` does not match"), store.restore_path(uuid):
        pass


def test_truncated_and_missing_files_are_found(store, place):
    uuid = put(store)
    place.put(f"{uuid}/a.txt", b"alp")
    with pytest.raises(CheckpointError, match="3 bytes"), store.restore_path(uuid):
        pass
    place.remove(f"{uuid}/a.txt")
    with pytest.raises(CheckpointError, match="missing"), store.restore_path(uuid):
        pass


def test_partial_delete_keeps_the_rest_restorable(store):
    uuid = put(store)
    left = store.delete(uuid, ["sub/**"])
    assert "a.txt" in left
    assert "sub/b.bin" not in left
    with store.restore_path(uuid) as directory:
        assert (directory / "a.txt").read_bytes() == b"alpha"


def test_full_delete_leaves_nothing(store, place):
    uuid = put(store)
    assert store.delete(uuid) == {}
    assert store.delete(uuid) == {}
    assert place.objects() == {}


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
def test_failing_disk_leaves_the_storage_as_it_was(tmp_path, monkeypatch, fails):
    store = storage.DirectoryStorage(tmp_path)
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


def test_unknown_storage_says_what_to_use_instead():
    with pytest.raises(ConfigError, match="shared_fs"):
        storage.from_config({"type": "tape", "bucket": "b"})


@pytest.mark.parametrize(("kind", "module"), [("s3", "s3fs"), ("gcs", "gcsfs"), ("azure", "adlfs")])
def test_missing_package_is_named_with_its_extra(kind, module, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    section = {"type": kind, "bucket": "b", "container": "b", "account_url": "https://a"}
    with pytest.raises(ConfigError, match=rf"`{module}`: `pip install 'det_keras\[{kind}\]'`"):
        storage.from_config(section)


def test_connection_string_that_is_none_is_said():
    section = {"type": "azure", "container": "c", "connection_string": "nonsense"}
    with pytest.raises(StorageError, match=r"cannot be opened.*`checkpoint_storage`"):
        storage.from_config(section).exists(str(uuid4()))


@pytest.mark.parametrize("credential", ["key", "signature"])
def test_azure_account_is_reached_by_its_address(make_bucket, credential):
    bucket = make_bucket("azure")
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas
    from servers import AZURE_KEY

    address = f"http://127.0.0.1:{bucket.server.port}/devstoreaccount1"
    permission = AccountSasPermissions(read=True, write=True, list=True, delete=True, create=True)
    every = ResourceTypes(service=True, container=True, object=True)
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(hours=1)
    signature = generate_account_sas("devstoreaccount1", AZURE_KEY, every, permission, until)
    secret = AZURE_KEY if credential == "key" else signature
    section = {"type": "azure", "container": bucket.name, "account_url": address, "credential": secret}
    uuid = put(storage.from_config(section))
    assert f"{uuid}/a.txt" in bucket.objects()


@pytest.mark.parametrize("given", [True, False], ids=["in the section", "by the chain"])
def test_credentials_of_s3_come_from_the_section_or_from_the_chain(make_bucket, monkeypatch, tmp_path, given):
    bucket = make_bucket("s3")
    section = bucket.section()
    with proxied(bucket.server.port) as proxy:
        section["endpoint_url"] = f"http://127.0.0.1:{proxy.port}"
        if not given:
            del section["access_key"], section["secret_key"]
            (tmp_path / "credentials").write_text(
                "[default]\naws_access_key_id = from-chain\naws_secret_access_key = secret\n"
            )
            monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
        storage.from_config(section).exists(str(uuid4()))
        (request,) = proxy.requests
    name = b"Credential=key/" if given else b"Credential=from-chain/"
    assert name in request.head


def test_unfinished_checkpoints_of_living_processes_are_no_orphans(store, place):
    with store.store_path(str(uuid4())) as directory:
        (directory / "a").touch()
        assert place.store().find_orphans(0.0) == []


def test_a_deletion_that_was_killed_leaves_an_orphan(bucket):
    store = bucket.store()
    uuid, kept = put(store), put(store)
    bucket.put(f".uploads/elsewhere-1~7~{uuid}", b"")
    bucket.remove(f"{uuid}/manifest.json")
    assert store.find_orphans(3600.0) == []
    (orphan,) = store.find_orphans(0.0)
    assert (orphan.uuid, orphan.size_bytes) == (uuid, 7)
    assert orphan.name.endswith(f"{uuid}/")
    for _ in range(2):
        store.remove_orphan(orphan)
    assert store.find_orphans(0.0) == []
    assert {name.split("/")[0] for name in bucket.objects()} == {kept}


def test_checkpoints_of_other_programs_are_no_orphans(bucket):
    """Determined's own client writes no manifest, and may use the same bucket."""
    bucket.put(f"{uuid4()}/weights", b"other")
    assert bucket.store().find_orphans(0.0) == []


def test_a_marker_beside_a_complete_checkpoint_is_removed_alone(bucket):
    store = bucket.store()
    uuid = put(store)
    bucket.put(f".uploads/elsewhere-1~7~{uuid}", b"")
    (orphan,) = store.find_orphans(0.0)
    assert orphan.size_bytes == 0
    store.remove_orphan(orphan)
    assert {name.split("/")[0] for name in bucket.objects()} == {uuid}
    with store.restore_path(uuid):
        pass


def test_objects_that_are_no_files_of_a_checkpoint_harm_nobody(bucket, tmp_path):
    """Determined's own client stores an empty object for each directory, and others may write to the bucket."""
    store, uuid, stock = bucket.store(), str(uuid4()), str(uuid4())
    for name in ("code/", "code/train.py", "weights"):
        bucket.put(f"{stock}/{name}", b"" if name.endswith("/") else b"x")
    assert store.list_files(stock) == {"code/": 0, "code/train.py": 1, "weights": 1}
    with store.raw_path(stock) as path:
        assert (path / "code" / "train.py").read_bytes() == b"x"
    assert store.delete(stock) == {}
    assert bucket.objects() == {}

    outside = tmp_path / "outside"
    for name in (f"//{outside}", "weights"):
        bucket.put(f"{uuid}/{name}", b"x")
    with pytest.raises(CheckpointError, match="is not inside of its directory"), store.raw_path(uuid):
        pass
    assert not outside.exists()
    assert store.delete(uuid) == {}


def test_names_that_leave_the_directory_are_not_fetched(tmp_path):
    for name in ("../x", "/x", "a/../../x", ""):
        with pytest.raises(CheckpointError, match="is not inside of its directory"):
            asyncio.run(_fetch_all(None, {name: ("key", 1)}, tmp_path))


STORES_IN_ANOTHER_CONTAINER = """
import sys
from uuid import uuid4
from det_keras.storage import DirectoryStorage
with DirectoryStorage(sys.argv[1]).store_path(str(uuid4())) as path:
    (path / "x").write_text("x")
"""


def test_a_container_of_the_same_machine_leaves_what_another_writes(tmp_path):
    """Containers may have the machine's name, and process ids of their own."""
    isolated = ["unshare", "-Urpf", "--mount-proc"]
    if shutil.which("unshare") is None or subprocess.run([*isolated, "true"], check=False).returncode != 0:
        pytest.skip("this machine's kernel gives ordinary users no namespaces")
    uuid = str(uuid4())
    with storage.DirectoryStorage(tmp_path).store_path(uuid) as path:
        (path / "x").write_text("x")
        command = [*isolated, sys.executable, "-c", STORES_IN_ANOTHER_CONTAINER, str(tmp_path)]
        subprocess.run(command, check=True)
    assert storage.DirectoryStorage(tmp_path).exists(uuid)


def test_of_another_machine_only_what_is_old_is_an_orphan(tmp_path):
    store, uuid = storage.DirectoryStorage(tmp_path), str(uuid4())
    (tmp_path / f".staging-elsewhere-7-{uuid}").mkdir()
    assert store.find_orphans(60.0) == []
    (orphan,) = store.find_orphans(0.0)
    assert orphan.uuid == uuid
    store.remove_orphan(orphan)
    assert list(tmp_path.iterdir()) == []


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


MOUNTED_FROM_THE_SAME_FILE_SYSTEM = """
import sys
from pathlib import Path
from det_keras.storage import container_mount, directory
directory._CONTAINER_MOUNT = Path(sys.argv[1])
print(container_mount(), Path(sys.argv[1]).is_mount())
"""


def test_a_mount_from_the_file_system_of_the_container_itself_is_seen(tmp_path):
    """As with Podman, Singularity, Enroot, and Docker's driver `vfs`."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-rm", "true"], check=False).returncode != 0
    ):
        pytest.skip("this machine's kernel gives ordinary users no mount namespaces")
    host, mounted = tmp_path / "host", tmp_path / "mounted"
    host.mkdir()
    mounted.mkdir()
    python = [sys.executable, "-c", MOUNTED_FROM_THE_SAME_FILE_SYSTEM, str(mounted)]
    assert subprocess.run(python, capture_output=True, text=True, check=True).stdout == "None False\n"
    script = f'mount --bind {host} {mounted} && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *python]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    # What Python itself says of it depends on its version.
    assert found[0] == str(mounted)
