"""A plan's files: pieces and slices of memory, zip archives, and archives that are unpacked."""

from __future__ import annotations

import io
import tarfile
import zipfile

from det_keras.core.file_plan import FilePlan, Slice, store_files
from det_keras.storage import DirectoryStorage

UUID = "00000000-0000-4000-8000-000000000001"


def packed(name, content):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def test_every_part_of_a_plan_is_stored(tmp_path):
    memory = memoryview(bytes(range(200)))
    plan = FilePlan(
        files={"state": [b"head", Slice(10, 5), b"tail"], "deep/er": [Slice(0, 1)]},
        zips={"model": {"weights": [Slice(100, 50)], "config.json": [b"{}"]}},
        archives={"code": packed("sub/train.py", b"print()")},
    )
    storage = DirectoryStorage(tmp_path)
    store_files(storage, UUID, plan, memory)
    with storage.restore_path(UUID) as directory:
        assert (directory / "state").read_bytes() == b"head" + bytes(range(10, 15)) + b"tail"
        assert (directory / "deep/er").read_bytes() == b"\0"
        with zipfile.ZipFile(directory / "model") as archive:
            assert archive.testzip() is None
            assert archive.read("weights") == bytes(range(100, 150))
            assert archive.read("config.json") == b"{}"
        assert (directory / "code/sub/train.py").read_bytes() == b"print()"
