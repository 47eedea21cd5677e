"""The documents of the repository, and what they consist of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
#: Everything that the site shows; the changelog is prose.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGE_NAMES = [str(path.relative_to(ROOT)) for path in PAGES]


@dataclass(frozen=True)
class Block:
    """One code block of a page.

    Attributes:
        page: path in the repository.
        line: of its fence, counted from 1.
        language: the first word after the fence; empty for none, and for an indented block.
        title: the name of the file that it shows, None if it shows none.
        text: what is in it.
    """

    page: str
    line: int
    language: str
    title: str | None
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def tokens_of(page: str) -> list[Token]:
    """Return what a page consists of, from its top to its end."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return MarkdownIt("commonmark").enable("table").parse(text)


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page."""
    blocks = []
    for token in tokens_of(page):
        if token.type in ("fence", "code_block"):
            language, _, rest = token.info.partition(" ")
            title = rest.partition('title="')[2].partition('"')[0] or None
            assert token.map is not None
            blocks.append(Block(page, token.map[0] + 1, language, title, token.content))
    return blocks


def inline_of(page: str) -> Iterator[Token]:
    """Yield the pieces of a page's text: words, code, links, images."""
    for token in tokens_of(page):
        if token.type == "inline":
            yield from token.children or ()
