"""Links, anchors and names of files in the documents.

`mkdocs build --strict` checks the links of the site; here the same holds for the files as a reader of the repository
sees them.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator

import pytest

from docs.pages import PAGE_NAMES, ROOT, inline_of, tokens_of

PACKAGE = ROOT / "det_keras"
SUFFIXES = ["cfg", "diff", "html", "ini", "json", "lock", "md", "py", "sh", "toml", "txt", "yaml", "yml"]
A_FILE = re.compile(
    rf"(?!/)[\w./-]*[\w-]\.({'|'.join(SUFFIXES)})|[\w.-]+(/[\w.-]+)*/|(?:tests|det_keras|docs)/[\w./-]+"
)
#: Files of a user, of a run or of a checkpoint, and of the system.
NOT_OURS = {
    "best.py", "callback_state.json", "checkpoints/", "contexts/", "digits.html", "keras.json", "manifest.json",
    "models.json", "model_checkpoint.weights.h5", "options.json", "plain.py", "provenance.json", "report.html",
    "search.yaml", "spec.json", "startup-hook.sh", "storage.yaml", "uv.toml",
}  # fmt: skip


def slug(text: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs make it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())


def anchors_of(page: str) -> set[str]:
    tokens = tokens_of(page)
    titles = [after.content for token, after in itertools.pairwise(tokens) if token.type == "heading_open"]
    return {slug(re.sub(r"[`*]|\]\([^)]*\)|\[", "", title)) for title in titles}


def links_of(page: str) -> Iterator[str]:
    for token in inline_of(page):
        target = token.attrGet("href") or token.attrGet("src")
        if target is not None and "://" not in str(target):
            yield str(target)


def files_named(page: str) -> Iterator[str]:
    """Yield what looks like a file or a folder of the repository in the code of a page's text."""
    for token in inline_of(page):
        if token.type == "code_inline":
            for word in token.content.split():
                if A_FILE.fullmatch(word) and word not in NOT_OURS:
                    yield word


def exists(name: str, page: str) -> bool:
    places = (ROOT, PACKAGE, (ROOT / page).parent)
    if any((place / name).exists() for place in places):
        return True
    # A file's name alone, as in a sentence about its folder.
    return "/" not in name and any(
        True
        for folder in ("det_keras", "docs", "examples", "configs", "tests")
        for _ in (ROOT / folder).rglob(name)
    )


@pytest.mark.parametrize(("page", "link"), [(page, link) for page in PAGE_NAMES for link in links_of(page)])
def test_link_leads_somewhere(page, link):
    path, _, anchor = link.partition("#")
    target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
    assert target.exists()
    if anchor:
        assert anchor in anchors_of(str(target.relative_to(ROOT)))


@pytest.mark.parametrize(
    ("page", "name"), [(page, name) for page in PAGE_NAMES for name in sorted(set(files_named(page)))]
)
def test_named_file_exists(page, name):
    assert exists(name, page)


def test_names_of_files_are_found():
    assert {"keras/fit/fit.py", "core/backend/"} <= set(files_named("docs/architecture.md"))
    assert not exists("keras/fit/nothing.py", "docs/architecture.md")


def test_reference_of_keras_has_each_exported_name():
    tree = ast.parse((ROOT / "det_keras" / "keras" / "__init__.py").read_text(encoding="utf-8"))
    (exported,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    pages = [ROOT / "docs" / "reference" / name for name in ("keras.md", "generations.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    assert [name for name in exported if f"det_keras.keras.{name}" not in text] == []
