"""docs/security.md and its tests: each promise has one, and each test of this folder belongs to a promise."""

from __future__ import annotations

import re

import pytest
from docs.pages import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
PROMISES = [
    " ".join(item.split()) for item in re.findall(r"^- (.*?)(?=\n- |\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
]
NAMED = re.compile(r"\(`(tests/[\w/]+\.py)::(test_\w+)`\)")


def names_in(path: str) -> list[str]:
    return re.findall(r"^(?:async )?def (test_\w+)", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("promise", PROMISES)
def test_promise_ends_with_the_name_of_its_test(promise):
    (named,) = NAMED.findall(promise)
    assert promise.endswith("`)")
    assert named[1] in names_in(named[0])


def test_no_two_promises_have_the_same_test():
    named = NAMED.findall(PAGE)
    assert len(named) == len(PROMISES) > 40
    assert len(set(named)) == len(named)


def test_each_security_test_belongs_to_a_promise():
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests" / "security").glob("test_*.py")
        if path.name != "test_promises.py"
        for name in names_in(str(path.relative_to(ROOT)))
    }
    assert found <= set(NAMED.findall(PAGE))
