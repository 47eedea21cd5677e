from __future__ import annotations

import base64
import os

import pytest

from det_keras.cli.submission import context_directory
from det_keras.cli.submission.context_directory import bundle
from det_keras.errors import DetError


def write(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name, encoding="utf-8")


def paths(root):
    return [entry["path"] for entry in bundle(root).entries]


def test_parents_come_before_their_children(tmp_path):
    write(tmp_path, "b/c/d.py", "b/a.py", "a.py")

    assert paths(tmp_path) == ["a.py", "b", "b/a.py", "b/c", "b/c/d.py"]


def test_an_entry_carries_content_time_and_mode(tmp_path):
    write(tmp_path, "run.sh")
    (tmp_path / "run.sh").chmod(0o755)
    os.utime(tmp_path / "run.sh", (1_700_000_000, 1_700_000_000))

    (entry,) = bundle(tmp_path).entries

    assert base64.b64decode(entry["content"]) == b"run.sh"
    assert (entry["type"], entry["mtime"], entry["mode"] & 0o7777) == (48, "1700000000", 0o755)
    assert entry["uid"] == entry["gid"] == 0


def test_detignore_keeps_files_at_home_with_what_is_below_them(tmp_path):
    write(tmp_path, "train.py", "data/big.bin", "data/keep.py", "x.ckpt")
    (tmp_path / ".detignore").write_text("data/\n*.ckpt\n!data/keep.py\n", encoding="utf-8")

    assert paths(tmp_path) == [".detignore", "train.py"]


def test_git_and_byte_code_are_never_sent_even_if_asked_for(tmp_path):
    write(tmp_path, "train.py", ".git/config", "pkg/__pycache__/x.pyc", "pkg/x.py")
    (tmp_path / ".detignore").write_text("!*\n", encoding="utf-8")

    assert paths(tmp_path) == [".detignore", "pkg", "pkg/x.py", "train.py"]


def test_links_are_followed_and_loops_end(tmp_path):
    write(tmp_path, "context/train.py", "shared/lib.py")
    (tmp_path / "context/lib").symlink_to(tmp_path / "shared")
    (tmp_path / "context/again").symlink_to(tmp_path / "context")

    assert paths(tmp_path / "context") == ["again", "lib", "lib/lib.py", "train.py"]


def test_a_link_that_leads_nowhere_is_named_and_left_out(tmp_path):
    write(tmp_path, "train.py")
    (tmp_path / "gone").symlink_to("nowhere")

    found = bundle(tmp_path)

    assert found.skipped == ("gone",)
    assert [entry["path"] for entry in found.entries] == ["train.py"]


def test_a_name_that_is_not_utf8_is_refused_unless_it_is_ignored(tmp_path):
    write(tmp_path, "train.py")
    (tmp_path / os.fsdecode(b"caf\xe9.py")).write_text("")

    with pytest.raises(DetError, match=r"'caf\\xe9\.py' .* not UTF-8.* \.detignore"):
        bundle(tmp_path)

    (tmp_path / ".detignore").write_text("caf*\n")
    assert "train.py" in paths(tmp_path)


def test_too_much_names_the_limit_and_the_biggest_files(tmp_path, monkeypatch):
    monkeypatch.setattr(context_directory, "LARGEST_BYTES", 10 * 1024)
    for name, size in {"a": 1, "b": 9000, "c": 5000, "d": 100}.items():
        (tmp_path / name).write_bytes(b"x" * size)

    with pytest.raises(
        DetError, match=r"13\.8KB, and the limit is 10\.0KB.*b \(8\.8KB\), c \(4\.9KB\), d \(100B\)"
    ):
        bundle(tmp_path)


@pytest.mark.parametrize(("name", "problem"), [("nowhere", "does not exist"), ("file", "is not a directory")])
def test_what_is_no_directory_is_refused(tmp_path, name, problem):
    (tmp_path / "file").touch()

    with pytest.raises(DetError, match=problem):
        bundle(tmp_path / name)
