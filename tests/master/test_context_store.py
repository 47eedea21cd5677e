"""Bundles of files, honest and hostile."""

from __future__ import annotations

import tarfile

import pytest

from det_keras.master.database.context_store import ContextStore, FileEntry
from det_keras.master.errors import InvalidArgumentError
from det_keras.storage.archive import unpack
from master.fakes import file_entry


def entries(*raw: dict) -> list[FileEntry]:
    return [FileEntry.model_validate(one) for one in raw]


def link(path: str, target: str) -> dict:
    return file_entry(path, target.encode(), type=50)


@pytest.fixture
def bundles(tmp_path) -> ContextStore:
    return ContextStore(tmp_path / "contexts")


@pytest.mark.parametrize(
    "hostile",
    [
        [file_entry("../evil")],
        [file_entry("a/../../evil")],
        [file_entry("/etc/evil")],
        [file_entry("..")],
        [file_entry("")],
        [file_entry(".")],
        [file_entry("a\0b")],
        [file_entry("a/../..", type=53)],
        [link("a", "/etc")],
        [link("a", "..")],
        [link("a/b", "../../x")],
        [link("a", ".."), file_entry("a/evil")],
        [link("a", "sub"), file_entry("a/evil")],
        [link("a", "sub"), file_entry("a")],
        [link("p/q/a", "../.."), link("x", "p/q/a/../z")],
        [file_entry("a" * 256)],
        [file_entry("/".join(["sub" * 40] * 40))],
        [file_entry("a"), file_entry("a/b")],
        [file_entry("a", type=53), file_entry("a")],
        [file_entry("a") | {"mtime": 1 << 62}],
        [file_entry("a", type=49)],
        [file_entry("a", type=51)],
        [file_entry("a", content=b"") | {"content": "not base64!"}],
    ],
    ids=lambda value: "+".join(f"{one['type']}:{one['path']!r}" for one in value),
)
def test_bundle_that_leaves_its_directory_or_fits_in_none_is_refused(bundles, tmp_path, hostile):
    with pytest.raises(InvalidArgumentError):
        bundles.add(entries(file_entry("fine.py"), *hostile))
    assert not (tmp_path / "contexts").exists()


def test_files_directories_and_inner_links_are_kept(bundles, tmp_path):
    raw = [
        file_entry("sub", type=53, mode=0o40755),
        file_entry("./sub/run.sh", b"echo", mode=0o100755),
        link("latest", "sub/run.sh"),
    ]
    digest, size = bundles.add(entries(*raw))
    assert digest is not None
    assert size == 4
    with tarfile.open(bundles.path(digest)) as archive:
        unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "latest").read_text() == "echo"
    assert (tmp_path / "out" / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755


def test_same_files_are_stored_once(bundles, tmp_path):
    first, _ = bundles.add(entries(file_entry("a", b"1")))
    second, _ = bundles.add(entries(file_entry("a", b"1")))
    third, _ = bundles.add(entries(file_entry("a", b"2")))
    assert first == second != third
    assert len(list((tmp_path / "contexts").iterdir())) == 2


def test_no_files_are_no_bundle(bundles):
    assert bundles.add([]) == (None, 0)
    assert bundles.encoded(None) == ""
