"""A streamed file holds what was written, whatever the pieces, and knows its hash."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from det_keras.storage import streamed_file
from det_keras.storage.streamed_file import StreamedFile

BLOCK = streamed_file._BLOCK_BYTES
SIZES = st.integers(0, 3 * BLOCK) | st.sampled_from([0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])


def test_blocks_suit_direct_writing_to_any_disk():
    assert BLOCK > 0
    assert BLOCK % 4096 == 0


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(SIZES, max_size=4), folder=st.sampled_from([None, "/dev/shm"]))
def test_content_is_what_was_written_on_a_disk_and_where_direct_writing_is_refused(sizes, folder):
    pieces = [os.urandom(size) for size in sizes]
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        path = Path(directory) / "file"
        with StreamedFile(path) as file:
            for piece in pieces:
                assert file.write(memoryview(piece)) == len(piece)
        assert path.read_bytes() == b"".join(pieces)
    assert file.sha256 == hashlib.sha256(b"".join(pieces)).hexdigest()


def test_archive_written_through_it_opens(tmp_path):
    content = os.urandom(2 * BLOCK + 17)
    with StreamedFile(tmp_path / "a.zip") as file, zipfile.ZipFile(file, "w") as archive:
        archive.writestr("small", b"123")
        archive.writestr("big", content)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.testzip() is None
        assert archive.read("big") == content
    assert file.sha256 == hashlib.sha256((tmp_path / "a.zip").read_bytes()).hexdigest()


def test_file_system_that_takes_the_flag_and_refuses_the_write_is_written_through_the_cache(
    tmp_path, monkeypatch
):
    content, refused = os.urandom(3 * BLOCK + 5), []
    write = StreamedFile._write_out

    def refusing(file):
        if fcntl.fcntl(file._file.fileno(), fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(1)
            raise OSError(errno.EINVAL, "no direct writing")
        write(file)

    monkeypatch.setattr(StreamedFile, "_write_out", refusing)
    with StreamedFile(tmp_path / "file") as file:
        file.write(content)
    assert len(refused) == 1
    assert (tmp_path / "file").read_bytes() == content


def test_full_disk_is_told(tmp_path):
    with pytest.raises(OSError, match="No space left"), StreamedFile(Path("/dev/full")) as file:
        file.write(bytes(2 * BLOCK))
