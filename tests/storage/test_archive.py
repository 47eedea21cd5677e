"""Archives are unpacked inside their directory, whether this Python has filters for that or not."""

from __future__ import annotations

import io
import tarfile

import pytest

from det_keras.storage.archive import unpack


@pytest.fixture(params=["with filters", "without filters"], autouse=True)
def python(request, monkeypatch):
    if request.param == "without filters":
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    elif not hasattr(tarfile, "data_filter"):
        pytest.skip("this Python has none")


def archive_of(*entries):
    """Return an archive of (name, content) files and (name, None, target) symbolic links."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content, *target in entries:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, target[0]
                archive.addfile(info)
            else:
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    buffer.seek(0)
    return tarfile.open(fileobj=buffer)


def test_files_and_links_are_unpacked(tmp_path):
    unpack(archive_of(("a/b.txt", b"text"), ("a/link", None, "b.txt")), tmp_path)
    assert (tmp_path / "a" / "b.txt").read_bytes() == b"text"
    assert (tmp_path / "a" / "link").read_bytes() == b"text"


@pytest.mark.parametrize("entry", [("../out", b"x"), ("a/../../out", b"x"), ("link", None, "/etc/passwd")])
def test_entry_that_leads_out_is_refused(entry, tmp_path):
    (tmp_path / "in").mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(archive_of(entry), tmp_path / "in")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "in" / "link").exists()
