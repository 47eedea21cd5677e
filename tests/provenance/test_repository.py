"""The state of a repository, compared with what git itself says."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from det_keras.provenance.repository import MOST_DIFF_BYTES, read_repository
from provenance.git_repository import ENVIRON, Repository


@pytest.fixture
def repository(tmp_path) -> Repository:
    return Repository(tmp_path)


def read(repository: Repository, below: str = "."):
    found = read_repository(repository.root / below, ENVIRON)
    assert found is not None
    return found


def test_clean_tree_has_a_commit_and_no_diff(repository):
    found = read(repository)
    assert found["commit"] == repository.git("rev-parse", "HEAD").strip()
    assert found["branch"] == repository.git("branch", "--show-current").strip() == "trunk"
    assert found["root"] == repository.git("rev-parse", "--show-toplevel").strip()
    assert (found["isDirty"], found["diff"], found["untracked"]) == (False, "", [])


def test_diff_is_the_one_of_git_and_can_be_applied(repository, tmp_path_factory):
    repository.write("train.py", "one\nzwei \u00e4\ntwo")
    repository.write("new name.py", "new\n")
    repository.git("add", "new name.py")
    repository.git("mv", "data.bin", "moved.bin")
    repository.write("notes.txt", "untracked")
    found = read(repository)
    assert found["diff"] == repository.git("diff", "HEAD")
    assert (found["isDirty"], found["isCut"], found["untracked"]) == (True, False, ["notes.txt"])
    clone = tmp_path_factory.mktemp("clone")
    repository.git("clone", "-q", ".", str(clone))
    subprocess.run(
        ["git", "apply", "--exclude=moved.bin", "--exclude=data.bin"],
        cwd=clone, input=found["diff"].encode(), env=ENVIRON, check=True,
    )  # fmt: skip
    for name in ("train.py", "new name.py"):
        assert (clone / name).read_bytes() == (repository.root / name).read_bytes()


def test_diff_of_the_whole_tree_is_read_from_a_folder_in_it(repository):
    repository.write("deep/er/a.py", "a\n")
    repository.commit()
    repository.write("train.py", "changed\n")
    assert read(repository, "deep/er")["diff"] == repository.git("diff", "HEAD")


def test_settings_of_the_user_do_not_change_the_diff(repository):
    repository.write("deep/a.py", "a\n")
    repository.commit()
    repository.write("train.py", "changed\n")
    plain = repository.git("diff", "HEAD")
    for name, value in (
        ("diff.noprefix", "true"), ("diff.mnemonicPrefix", "true"), ("color.ui", "always"),
        ("diff.external", "false"), ("diff.relative", "true"), ("core.fsmonitor", "false"),
    ):  # fmt: skip
        repository.git("config", name, value)
    assert read(repository, "deep")["diff"] == plain


def test_binary_file_is_only_named(repository):
    (repository.root / "data.bin").write_bytes(os.urandom(1 << 16) + b"\0")
    diff = read(repository)["diff"]
    assert "Binary files a/data.bin and b/data.bin differ" in diff
    assert len(diff) < 500


def test_long_diff_is_cut_after_a_whole_line(repository):
    repository.write("train.py", "".join(f"line {number}\n" for number in range(100_000)))
    found = read(repository)
    whole = repository.git("diff", "HEAD")
    assert found["isCut"]
    assert MOST_DIFF_BYTES - 100 < len(found["diff"]) <= MOST_DIFF_BYTES
    assert whole.startswith(found["diff"])
    assert found["diff"].endswith("\n")


def test_changes_of_files_with_secrets_are_named_and_not_stored(repository):
    for name in (".env", "deep/.env.local", "keys/server.pem", "AWS-Credentials.json"):
        repository.write(name, "before\n")
    repository.commit()
    for name in (".env", "deep/.env.local", "keys/server.pem", "AWS-Credentials.json", "train.py"):
        repository.write(name, "hunter2\n")
    found = read(repository)
    assert found["diff"] == repository.git("diff", "HEAD", "--", "train.py")
    assert set(found["withheld"]) == {
        ".env",
        "deep/.env.local",
        "keys/server.pem",
        "AWS-Credentials.json",
    }


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://me:hunter2@example.org/a/b.git", "https://example.org/a/b.git"),
        ("https://hunter2@example.org:8443/a.git?token=hunter2#hunter2", "https://example.org:8443/a.git"),
        ("ssh://git@example.org/a.git", "ssh://example.org/a.git"),
        ("git@example.org:a/b.git", "git@example.org:a/b.git"),
        ("/srv/a.git", "/srv/a.git"),
    ],
)
def test_remote_has_no_credentials(repository, address, shown):
    repository.git("remote", "add", "aside", "https://example.org/aside.git")
    repository.git("remote", "add", "origin", address)
    assert read(repository)["remote"] == shown


def test_repository_without_a_commit_has_none(tmp_path):
    subprocess.run(["git", "init", "-q", "-b", "trunk"], cwd=tmp_path, env=ENVIRON, check=True)
    (tmp_path / "a.py").write_text("a")
    found = read_repository(tmp_path, ENVIRON)
    assert (found["commit"], found["branch"], found["diff"]) == (None, "trunk", "")
    assert (found["isDirty"], found["untracked"]) == (True, ["a.py"])


def test_detached_head_has_no_branch(repository):
    repository.git("checkout", "-q", "--detach")
    assert read(repository)["branch"] is None


def test_names_with_spaces_and_renames_are_read(repository):
    repository.write("a b -> c.py", "x\n")
    repository.commit()
    repository.git("mv", "a b -> c.py", "d e.pem")
    found = read(repository)
    assert found["withheld"] == ["d e.pem"]
    assert found["isDirty"]


def test_directory_without_a_repository_has_none(tmp_path):
    assert read_repository(tmp_path, {**ENVIRON, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}) is None


def test_repository_of_a_hook_is_not_taken_for_that_of_the_directory(repository, tmp_path_factory):
    other = Repository(tmp_path_factory.mktemp("other"))
    other.git("checkout", "-q", "-b", "elsewhere")
    found = read_repository(repository.root, {**ENVIRON, "GIT_DIR": str(other.root / ".git")})
    assert (found["root"], found["branch"]) == (str(repository.root), "trunk")


def test_git_that_hangs_is_ended(repository, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bin")
    slow = folder / "git"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(slow.stat().st_mode | stat.S_IXUSR)
    before = time.monotonic()
    assert read_repository(repository.root, {"PATH": f"{folder}:{os.environ['PATH']}"}, timeout_s=0.2) is None
    assert time.monotonic() - before < 5


def test_nothing_in_the_repository_is_written(repository):
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in repository.root.rglob("*") if path.is_file()}

    # The index knows the time of the file before.
    os.utime(repository.root / "train.py", (1, 1))
    before = content()
    assert read(repository)["diff"] == ""
    assert content() == before
