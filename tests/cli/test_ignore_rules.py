from __future__ import annotations

import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from det_keras.cli.submission.context_directory import bundle
from det_keras.cli.submission.ignore_rules import IgnoreRules

TREE = [
    "a",
    "b",
    "ab",
    "abc",
    "a.b",
    "c-d",
    "[a]",
    "!b",
    "#c",
    "d/a",
    "d/b",
    "d/ab",
    "d/c/a",
    "d/c/b",
    "e/d/a.b",
    "e/d/c/ab",
]
PLAIN = ["a", "b", "c", "d", "e", "ab", ".", "-", "\\", "!", "#", " "]
WILD = ["*", "**", "***", "?", "/", "/**/", "**/", "/**"]
SETS = ["[ab]", "[!a]", "[^b]", "[a-c]", "[c-a]", "[]a]", "[a", "[\\]a]", "[a-]", "[/]"]
CLASSES = ["[[:alpha:]]", "[[:nope:]]", "[[:digit:]b]"]
PIECES = st.sampled_from([*PLAIN, *WILD, *SETS, *CLASSES])
LINES = st.lists(PIECES, max_size=5).map("".join)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name in TREE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("", encoding="utf-8")
    return root


@given(st.lists(LINES, min_size=1, max_size=4))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_bundle_leaves_out_what_git_would(tree, lines):
    (tree / ".detignore").write_text("\n".join(lines), encoding="utf-8")

    listed = subprocess.run(
        ["git", "-C", str(tree), "ls-files", "-z", "--others", "--exclude-from=.detignore"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout

    kept = {entry["path"] for entry in bundle(tree).entries if entry["type"] == 48}
    assert kept == set(listed.split("\0")) - {""}


@pytest.mark.parametrize(
    ("pattern", "path", "is_ignored"),
    [
        ("*.ckpt", "deep/down/x.ckpt", True),
        ("/data", "src/data", False),
        ("logs/", "logs", False),
        ("# comment", "# comment", False),
        ("\\#really", "#really", True),
        ("name\\ ", "name ", True),
        ("name  ", "name", True),
        ("crlf\r", "crlf", True),
        ("data/**/*.csv", "data/x.csv", True),
    ],
)
def test_pattern(pattern, path, is_ignored):
    assert IgnoreRules([pattern]).is_ignored(path, is_directory=False) is is_ignored


def test_the_last_rule_that_matches_decides():
    rules = IgnoreRules.parse("*.py\n!train.py\n")

    assert rules.is_ignored("other.py", is_directory=False)
    assert not rules.is_ignored("train.py", is_directory=False)
