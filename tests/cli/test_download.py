from __future__ import annotations

import io
import shutil
import tarfile

import pytest
from storage.servers import running

from det_keras import storage as storages
from det_keras.cli.download import best_checkpoints_first
from det_keras.client import Session
from det_keras.connection.checkpoint_files import download
from det_keras.errors import CheckpointError, DetError, MasterError
from det_keras.storage import DirectoryStorage

UUID = "f43ab792-c258-451a-b528-458b3cd5cbc3"


@pytest.fixture
def storage(tmp_path):
    storage = DirectoryStorage(tmp_path / "storage")
    with storage.store_path(UUID) as path:
        (path / "weights.bin").write_bytes(b"abc" * 100)
        (path / "code").mkdir()
        (path / "code" / "a.py").write_text("x", encoding="utf-8")
    return storage


def record(storage, state="STATE_COMPLETED", **changes):
    section = {"type": "directory", "container_path": str(getattr(storage, "root", ""))}
    resources = {name: str(size) for name, size in storage.list_files(UUID).items()}
    training = {"experimentConfig": {"checkpoint_storage": section}}
    return {
        "uuid": UUID,
        "state": state,
        "resources": resources,
        "training": training,
        "metadata": {"steps_completed": 7},
        **changes,
    }


def archive(members, *, kind=tarfile.REGTYPE):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as files:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname = kind, len(content), "/etc/passwd"
            files.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packed(storage):
    directory = storage.root / UUID
    return archive(
        {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}
    )


def files(directory):
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def leftovers(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != "storage")


@pytest.fixture
def session(stub):
    with Session(stub.url, "token", patience_s=0.0) as session:
        yield session


COMPLETE = ["code/a.py", "manifest.json", "metadata.json", "weights.bin"]


def test_a_storage_in_sight_is_read_without_the_master(storage, session, stub, tmp_path):
    target = download(session, record(storage), tmp_path / "out")

    assert target == tmp_path / "out"
    assert files(target) == COMPLETE
    assert stub.calls == []


def test_without_the_storage_in_sight_the_master_sends_the_files(storage, session, stub, tmp_path):
    wanted = record(storage)
    stub.answers[f"/checkpoints/{UUID}"] = packed(storage)
    shutil.rmtree(storage.root)

    assert files(download(session, wanted, tmp_path / "out")) == COMPLETE


def test_mode_master_does_not_look_at_the_storage(storage, session, stub, tmp_path):
    stub.answers[f"/checkpoints/{UUID}"] = packed(storage)

    download(session, record(storage), tmp_path / "out", way="master")

    assert [path for _, path, _ in stub.calls] == [f"/checkpoints/{UUID}"]


@pytest.mark.parametrize("way", ["auto", "master"])
def test_one_altered_byte_is_found_and_nothing_is_left(storage, session, stub, tmp_path, way):
    path = storage.root / UUID / "weights.bin"
    path.write_bytes(b"X" + path.read_bytes()[1:])
    stub.answers[f"/checkpoints/{UUID}"] = packed(storage)

    with pytest.raises(CheckpointError, match=r"`weights\.bin` does not match its SHA-256"):
        download(session, record(storage), tmp_path / "out", way=way)

    assert leftovers(tmp_path) == []


def test_an_archive_that_is_cut_off_is_refused(storage, session, stub, tmp_path):
    stub.answers[f"/checkpoints/{UUID}"] = packed(storage)[:-60]

    with pytest.raises(CheckpointError):
        download(session, record(storage), tmp_path / "out", way="master")

    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("../evil", tarfile.REGTYPE),
        ("/tmp/evil", tarfile.REGTYPE),
        ("link", tarfile.SYMTYPE),
        ("hard", tarfile.LNKTYPE),
    ],
)
def test_members_that_could_leave_the_directory_are_refused(storage, session, stub, tmp_path, name, kind):
    stub.answers[f"/checkpoints/{UUID}"] = archive({name: b""}, kind=kind)

    with pytest.raises(CheckpointError, match="refused"):
        download(session, record(storage), tmp_path / "out", way="master")

    assert leftovers(tmp_path) == []


def test_a_checkpoint_without_manifest_is_held_against_the_masters_record(storage, session, stub, tmp_path):
    stub.answers[f"/checkpoints/{UUID}"] = archive({"model.pt": b"12"})
    foreign = record(storage, resources={"model.pt": "2"})
    short = record(storage, resources={"model.pt": "3"})

    assert files(download(session, foreign, tmp_path / "out", way="master")) == [
        "metadata.json",
        "model.pt",
    ]
    with pytest.raises(CheckpointError, match="does not have 3 bytes"):
        download(session, short, tmp_path / "other", way="master")


def test_files_that_were_deleted_on_purpose_are_not_missed(storage, session, tmp_path):
    storage.delete(UUID, ["code/**"])

    target = download(session, record(storage, state="STATE_PARTIALLY_DELETED"), tmp_path / "out")

    assert files(target) == ["manifest.json", "metadata.json", "weights.bin"]


def test_a_deleted_checkpoint_cannot_be_downloaded(storage, session, tmp_path):
    with pytest.raises(CheckpointError, match="its state is DELETED"):
        download(session, record(storage, state="STATE_DELETED"), tmp_path / "out")


def test_an_empty_directory_is_filled_and_one_with_files_is_not(storage, session, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious").touch()

    download(session, record(storage), tmp_path / "empty")
    with pytest.raises(DetError, match="exists already"):
        download(session, record(storage), tmp_path / "full")

    assert files(tmp_path / "full") == ["precious"]


def test_a_master_that_has_no_files_leaves_nothing_behind(storage, session, tmp_path):
    with pytest.raises(MasterError):
        download(session, record(storage), tmp_path / "out", way="master")

    assert leftovers(tmp_path) == []


def rated(metric, steps, *, smaller=True):
    config = {"searcher": {"smaller_is_better": smaller}}
    return {
        "metadata": {"steps_completed": steps},
        "training": {"searcherMetric": metric, "experimentConfig": config},
    }


def test_the_best_checkpoint_comes_first_and_the_unrated_last():
    found = best_checkpoints_first([rated(None, 1), rated("NaN", 9), rated(0.5, 2), rated(0.1, 3)])

    assert [one["metadata"]["steps_completed"] for one in found] == [3, 2, 9, 1]
    larger = [rated(0.5, 2, smaller=False), rated(0.9, 3, smaller=False)]
    assert best_checkpoints_first(larger)[0]["metadata"]["steps_completed"] == 3


#: What a Determined 0.38.1 master answers that does not use the keys of a config.
NO_KEYS = (
    500,
    {"message": f"unable to download checkpoint {UUID}: NoCredentialProviders: no valid providers in chain."},
)


@pytest.fixture
def stored():
    """The record of a checkpoint in an object store, as a master shows it."""
    with running("s3") as server:
        section = server.section(server.make_bucket())
        place = storages.from_config(section)
        with place.store_path(UUID) as path:
            (path / "weights.bin").write_bytes(b"abc" * 100)
        hidden = {**section, "access_key": "********", "secret_key": "********"}
        found = record(place)
        found["training"]["experimentConfig"]["checkpoint_storage"] = hidden
        yield found


@pytest.mark.process
@pytest.mark.parametrize("way", ["auto", "direct"])
def test_object_store_that_the_master_cannot_read_is_read_directly(
    stored, session, stub, tmp_path, monkeypatch, way
):
    found = stored
    stub.answers[f"/checkpoints/{UUID}"] = NO_KEYS
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    target = download(session, found, tmp_path / "out", way=way)
    assert files(target) == ["manifest.json", "metadata.json", "weights.bin"]
    assert len(stub.calls) == (1 if way == "auto" else 0)


@pytest.mark.process
def test_both_reasons_are_named_when_neither_way_leads_to_the_files(
    stored, session, stub, tmp_path, monkeypatch
):
    found = stored
    stub.answers[f"/checkpoints/{UUID}"] = NO_KEYS
    section = found["training"]["experimentConfig"]["checkpoint_storage"]
    section.update(bucket="elsewhere", access_key="AKIA-OPEN", secret_key="hunter2")
    with pytest.raises(CheckpointError, match=r"NoCredentialProviders.*elsewhere") as caught:
        download(session, found, tmp_path / "out")
    assert "hunter2" not in str(caught.value)
    assert "AKIA-OPEN" not in str(caught.value)
    assert leftovers(tmp_path) == []
    with pytest.raises(MasterError, match="NoCredentialProviders"):
        download(session, found, tmp_path / "out", way="master")
