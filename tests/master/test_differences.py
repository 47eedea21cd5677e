"""Differences: `git apply` and `patch` make the second side of the first with them."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from provenance.git_repository import ENVIRON

from det_keras.master.web.differences import (
    PackageDifference,
    file_differences,
    marked_lines,
    package_differences,
    patch,
    side_by_side,
)

GIT = ["git", "apply", "--whitespace=nowarn", "-"]
PATCH = ["patch", "--binary", "-s", "-p1"]


def write(directory: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)


def content(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def apply(before: dict[str, bytes], text: str, command: list[str]) -> dict[str, bytes]:
    with TemporaryDirectory() as folder:
        write(Path(folder), before)
        if text:
            # Outside of a repository git takes paths as they are.
            environ = {**ENVIRON, "GIT_CEILING_DIRECTORIES": str(Path(folder).parent)}
            subprocess.run(command, cwd=folder, input=text.encode(), env=environ, check=True)
        return content(Path(folder))


# Lines of few kinds, so that both sides have some in common; and what only looks like the end of a line.
LINE = st.sampled_from(
    ["a", "b", "", "-- a", "++ b", "diff --git a/x b/x", "@@ -1 +1 @@", " a", "\u2028x\x0c\x1c", "\r"]
)
TEXT = st.builds(
    lambda lines, end: "\n".join(lines) + end, st.lists(LINE, max_size=14), st.sampled_from(["", "\n"])
)
NAME = st.sampled_from(["a.py", "b c.py", "d/e.py", 'q"uote\\.py', "t\tab.py", "\u00e4.py"])
FILES = st.dictionaries(NAME, TEXT.map(str.encode), max_size=4)


@settings(max_examples=60, deadline=None)
@given(before=FILES, after=FILES)
def test_git_makes_the_second_directory_of_the_first(before, after):
    text = "".join(difference.patch for difference in file_differences(before, after))
    assert apply(before, text, GIT) == after


@settings(max_examples=60, deadline=None)
@given(before=TEXT, after=TEXT)
def test_patch_makes_the_second_text_of_the_first(before, after):
    if shutil.which("patch") is None:
        pytest.skip("patch is not installed")
    made = apply({"a b.py": before.encode()}, patch("a b.py", before, after), PATCH)
    # A text that becomes empty is a file that `patch` removes.
    assert made.get("a b.py", b"") == after.encode()


def test_hunks_are_those_of_git(tmp_path):
    lines = [f"line {number}" for number in range(60)]
    changed = [*lines[:5], "new", *lines[5:30], "other", *lines[31:50], *lines[52:]]
    texts = ["\n".join(lines), "\n".join(changed) + "\n"]
    write(tmp_path, {"a/x": texts[0].encode(), "b/x": texts[1].encode()})
    done = subprocess.run(
        ["git", "diff", "--no-index", "--no-prefix", "a/x", "b/x"],
        cwd=tmp_path, env=ENVIRON, capture_output=True, text=True,
    )  # fmt: skip

    def hunks(text: str) -> list[str]:
        # Git repeats a line of the file behind the place of a hunk.
        lines = text[text.index("@@") :].splitlines()
        return [line[: line.index("@@", 2) + 2] if line.startswith("@@") else line for line in lines]

    assert hunks(patch("x", *texts)) == hunks(done.stdout)
    assert "@@ -0,0 +1,2 @@" in patch("x", "", "a\nb\n")


def test_long_texts_take_a_moment():
    # In reverse order, lines take `difflib` a time that grows with the square of their number.
    lines = [f"line {number}\n" for number in range(20_000)]
    start = time.monotonic()
    text = patch("x", "head\n" + "".join(lines), "head\n" + "".join(reversed(lines)))
    assert time.monotonic() - start < 10.0
    assert text.count("\n-line ") == text.count("\n+line ") == 20_000


def test_what_is_not_text_is_named_only():
    (difference,) = file_differences({"a": b"\0", "same": b"\0"}, {"a": b"\0\0", "same": b"\0"})
    assert (difference.name, difference.kind, difference.patch, difference.is_text) == (
        "a",
        "changed",
        "",
        False,
    )
    latin, gone = file_differences({"gone": b"\xff"}, {"added": b"\xe4"})
    assert (latin.kind, gone.kind, latin.is_text, gone.is_text) == ("added", "removed", False, False)


def test_lines_have_their_kinds():
    text = patch("x", "-- a\nb\nc", "++ a\nb\n")
    assert marked_lines(text) == [
        ("head", "diff --git a/x b/x"),
        ("head", "--- a/x"),
        ("head", "+++ b/x"),
        ("place", "@@ -1,3 +1,2 @@"),
        ("removed", "--- a"),
        ("added", "+++ a"),
        ("", " b"),
        ("removed", "-c"),
        ("note", "\\ No newline at end of file"),
    ]
    assert marked_lines("") == []


def test_packages_that_differ_are_listed_by_name():
    before, after = ["a==1", "B==1", "gone==1"], ["a==1", "B==2", "new==1", "Aa==1"]
    assert package_differences(before, after) == [
        PackageDifference("Aa", None, "1"),
        PackageDifference("B", "1", "2"),
        PackageDifference("gone", "1", None),
        PackageDifference("new", None, "1"),
    ]


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_columns_have_the_lines_of_each_side_that_a_patch_shows(before, after):
    texts = ["".join(f"{line}\n" for line in side) for side in (before, after)]
    lines = [(kind, line) for kind, line in marked_lines(patch("x", *texts)) if kind != "head"]
    rows = side_by_side(lines)
    old, new = ([row[side] for row in rows if row[side] is not None] for side in (0, 1))
    assert old == [line[1:] for kind, line in lines if kind in ("", "removed")]
    assert new == [line[1:] for kind, line in lines if kind in ("", "added")]
    assert all(differs or left == right for left, right, differs in rows)
